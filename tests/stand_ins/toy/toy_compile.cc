#include "tests/stand_ins/toy/toy_compile.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "backends/device_code.h"
#include "tests/stand_ins/toy/toy_device.h"

namespace kiln::toy {
namespace {

const Target k_processor{"cpu", "x86-64-v2"};

bool compiler_is(std::string_view what) {
  const char* mode = std::getenv("TOY_COMPILER");
  return mode != nullptr && mode == what;
}

std::vector<uint8_t> copy_of(std::span<const uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

std::string_view ToyCompileBackend::name() const { return k_backend; }
std::vector<Target> ToyCompileBackend::targets() const { return ToyRuntimeBackend().known_targets(); }
Machine ToyCompileBackend::default_machine(const Target&) const { return m_cpu.default_machine(k_processor); }

Status ToyCompileBackend::claims(const KernelSpec& spec, const Target&) const {
  if (compiler_is("absent")) return error(StatusCode::failed_precondition, "toy: the compiler is not on this host");
  return m_cpu.claims(spec, k_processor);
}

std::vector<Schedule> ToyCompileBackend::candidates(const KernelSpec& spec, const Target&,
                                                    const Machine& machine) const {
  return m_cpu.candidates(spec, k_processor, machine);
}

Expected<Image> ToyCompileBackend::compile(const KernelSpec& spec, const Schedule& schedule,
                                           const Target& target) const {
  if (compiler_is("dies")) _exit(1);
  KILN_ASSIGN_OR_RETURN(Image image, m_cpu.compile(spec, schedule, k_processor));
  const auto buffer_count = static_cast<uint32_t>(spec.buffers.size());
  DeviceCode code{.portable = std::move(image.code), .launch = std::vector<uint8_t>(sizeof buffer_count)};
  std::memcpy(code.launch.data(), &buffer_count, sizeof buffer_count);
  image.code = pack_device_code(code);
  return finish(std::move(image), target);
}

Expected<Image> ToyCompileBackend::finish(Image image, const Target& target) const {
  KILN_ASSIGN_OR_RETURN(const DeviceCodeView view, unpack_device_code(image.code));
  if (target.driver.empty() || view.is_native_for(target.driver)) return image;
  image.code = pack_device_code({target.driver, copy_of(view.portable), copy_of(view.portable), copy_of(view.launch)});
  return image;
}

}  // namespace kiln::toy
