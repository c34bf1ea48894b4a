// libnvrtc.so.13 with the host's compiler behind it: a cubin is a shared object for the emulated machine, which driver.cc
// loads. Its log names registers that nobody counted, and no spills.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "backends/cuda/compile/kernel_source.h"
#include "backends/cuda/compile/texts.h"
#include "tests/stand_ins/cuda/host_module.h"

#define KILN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int k_success = 0, k_compilation_failed = 6;

struct Program {
  std::string source, log;
  std::vector<uint8_t> code;
};

Program& of(void* handle) { return *static_cast<Program*>(handle); }

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the vendor's names

KILN_EXPORT int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 0;
  return k_success;
}
KILN_EXPORT const char* nvrtcGetErrorString(int result) {
  return result == k_success ? "NVRTC_SUCCESS" : "NVRTC_ERROR_COMPILATION";
}
KILN_EXPORT int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                                   const char* const*) {
  *program = new Program{source, {}, {}};
  return k_success;
}
KILN_EXPORT int nvrtcDestroyProgram(void** program) {
  delete &of(*program);
  *program = nullptr;
  return k_success;
}
KILN_EXPORT int nvrtcCompileProgram(void* handle, int, const char* const*) {
  Program& program = of(handle);
  std::string_view text = program.source;
  if (!text.starts_with(kiln::cuda::prelude_text)) {
    program.log = "the stand-in compiles what stands after Kiln's prelude, nothing else";
    return k_compilation_failed;
  }
  text.remove_prefix(kiln::cuda::prelude_text.size());
  auto compiled = kiln::cuda_emulator::compile_for_host(text, kiln::cuda::k_entry);
  if (!compiled.ok()) {
    program.log = compiled.status().message();
    return k_compilation_failed;
  }
  program.code = std::move(*compiled);
  program.log =
      "ptxas info    : Used 32 registers\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
  return k_success;
}
KILN_EXPORT int nvrtcGetCUBINSize(void* program, size_t* bytes) {
  *bytes = of(program).code.size();
  return k_success;
}
KILN_EXPORT int nvrtcGetCUBIN(void* program, char* bytes) {
  std::memcpy(bytes, of(program).code.data(), of(program).code.size());
  return k_success;
}
KILN_EXPORT int nvrtcGetProgramLogSize(void* program, size_t* bytes) {
  *bytes = of(program).log.size() + 1;
  return k_success;
}
KILN_EXPORT int nvrtcGetProgramLog(void* program, char* text) {
  std::memcpy(text, of(program).log.c_str(), of(program).log.size() + 1);
  return k_success;
}

// NOLINTEND(readability-identifier-naming)
