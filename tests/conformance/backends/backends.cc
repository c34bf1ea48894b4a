#include <cctype>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/runtime/runtime.h"
#include "tests/conformance/backend_under_test.h"

namespace kiln::conformance {

namespace {

/// The target as a device of this host runs it, and that device.
BackendUnderTest on_this_host(std::shared_ptr<const CompileBackend> compile, const RuntimeBackend& runtime,
                              const Target& target) {
  const auto& devices = runtime.discover().devices;
  for (size_t i = 0; i < devices.size(); ++i) {
    for (const Target& runnable : devices[i].targets) {
      if (runnable.name != target.name) continue;
      if (auto device = runtime.open(i); device.ok()) return {std::move(compile), runnable, std::move(*device)};
    }
  }
  return {std::move(compile), target, nullptr};
}

}  // namespace

std::vector<BackendUnderTest> backends_under_test() {
  std::vector<BackendUnderTest> result;
  const auto add = [&](std::shared_ptr<const CompileBackend> compile, const RuntimeBackend& runtime) {
    for (const Target& target : compile->targets()) result.push_back(on_this_host(compile, runtime, target));
  };
  add(std::make_shared<cpu::CpuCompileBackend>(), cpu::CpuRuntimeBackend());
  return result;
}

std::string name_of(const BackendUnderTest& backend) {
  std::string name = backend.target.backend + "_" + backend.target.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

}  // namespace kiln::conformance
