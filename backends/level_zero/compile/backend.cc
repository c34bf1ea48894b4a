#include "backends/level_zero/compile/backend.h"

#include <spirv-tools/libspirv.h>

#include "backends/device_code.h"
#include "backends/level_zero/compile/write_kernel.h"
#include "backends/level_zero/runtime/module.h"
#include "backends/level_zero/runtime/platform.h"

namespace kiln::level_zero {
namespace {

Expected<const DeviceFamily*> resolve(const Target& target) {
  const DeviceFamily* family = target.backend == "level_zero" ? find_family(target.name) : nullptr;
  if (family == nullptr) return invalid_argument("level zero: no target {}:{}", target.backend, target.name);
  return family;
}

/// The device of this host whose driver is the target's.
Expected<const FoundDevice*> find_device(const Target& target) {
  KILN_RETURN_IF_ERROR(Platform::host().status());
  for (const FoundDevice& found : Platform::host().devices()) {
    if (found.family->name == target.name && found.driver_name == target.driver) return &found;
  }
  return error(StatusCode::unavailable, "level zero: this host has no driver \"{}\" of a {}", target.driver,
               target.name);
}

}  // namespace

std::vector<Target> LevelZeroCompileBackend::targets() const {
  std::vector<Target> result;
  for (const DeviceFamily& family : families()) result.push_back({"level_zero", std::string(family.name), ""});
  return result;
}

Machine LevelZeroCompileBackend::default_machine(const Target& target) const {
  const auto family = resolve(target);
  return family.ok() ? level_zero::default_machine(**family) : Machine();
}

std::string LevelZeroCompileBackend::toolchain() const { return spvSoftwareVersionString(); }

Status LevelZeroCompileBackend::claims(const KernelSpec& spec, const Target& target) const {
  KILN_ASSIGN_OR_RETURN(const DeviceFamily* family, resolve(target));
  return level_zero::claims(spec, *family);
}

std::vector<Schedule> LevelZeroCompileBackend::candidates(const KernelSpec& spec, const Target& target,
                                                          const Machine& machine) const {
  const auto family = resolve(target);
  return family.ok() ? level_zero::candidates(spec, **family, machine) : std::vector<Schedule>{};
}

Expected<Image> LevelZeroCompileBackend::compile(const KernelSpec& spec, const Schedule& schedule,
                                                 const Target& target) const {
  KILN_ASSIGN_OR_RETURN(const DeviceFamily* family, resolve(target));
  KILN_ASSIGN_OR_RETURN(PortableKernel kernel, write_kernel(spec, schedule, *family));
  const DeviceCode code{"", {}, std::move(kernel.spirv), encode(kernel.launch)};
  return finish({.code = pack_device_code(code), .features = kernel.features}, target);
}

Expected<Image> LevelZeroCompileBackend::finish(Image image, const Target& target) const {
  if (target.driver.empty()) return image;
  KILN_ASSIGN_OR_RETURN(const FoundDevice* found, find_device(target));
  if (const uint64_t missing = image.features & ~found->features; missing != 0) {
    return error(StatusCode::unimplemented, "level zero: the code needs {}, which {} lacks", describe(missing),
                 found->name);
  }
  KILN_ASSIGN_OR_RETURN(const DeviceCodeView view, unpack_device_code(image.code));
  KILN_ASSIGN_OR_RETURN(const auto context, Context::create(Platform::host().api(), found->driver, found->handle));
  KILN_ASSIGN_OR_RETURN(const auto module, Module::build(*context, ModuleForm::portable, view.portable));
  DeviceCode code{
      target.driver, {}, {view.portable.begin(), view.portable.end()}, {view.launch.begin(), view.launch.end()}};
  KILN_ASSIGN_OR_RETURN(code.native, module->native_code());
  image.code = pack_device_code(code);
  return image;
}

Expected<std::string> LevelZeroCompileBackend::disassemble(const Image& image, const Target&) const {
  KILN_ASSIGN_OR_RETURN(const DeviceCodeView view, unpack_device_code(image.code));
  return level_zero::disassemble(view.portable);
}

}  // namespace kiln::level_zero
