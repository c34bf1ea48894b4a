#pragma once

#include "backends/level_zero/compile/kernel.h"

namespace kiln::level_zero {

/// A kernel as every driver of its family takes it.
struct PortableKernel {
  std::vector<uint8_t> spirv;
  LaunchForm launch;
  uint64_t features = 0;  // Image::features
};

/// Writes the kernel and has SPIRV-Tools validate it.
/// Errors: invalid_argument for bytes that are no schedule that fits the spec; internal when the module is not valid, with the validator's words.
Expected<PortableKernel> write_kernel(const KernelSpec& spec, const Schedule& schedule, const DeviceFamily& family);

/// Errors: unimplemented, with the reason.
Status claims(const KernelSpec& spec, const DeviceFamily& family);
/// Best first on `machine`.
std::vector<Schedule> candidates(const KernelSpec& spec, const DeviceFamily& family, const Machine& machine);

/// Errors: invalid_argument with the validator's words. Any bytes may be given.
Status validate_spirv(std::span<const uint8_t> bytes);
/// The assembly of a module, for people.
Expected<std::string> disassemble(std::span<const uint8_t> bytes);

}  // namespace kiln::level_zero
