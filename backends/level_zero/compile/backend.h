#pragma once

#include "backends/backend.h"

namespace kiln::level_zero {

/// Kernels for the families of target.h as SPIR-V, and native code where their driver is on this host.
/// Stateless.
class LevelZeroCompileBackend final : public CompileBackend {
 public:
  std::string_view name() const override { return "level_zero"; }
  std::vector<Target> targets() const override;
  Machine default_machine(const Target& target) const override;
  std::string toolchain() const override;
  Status claims(const KernelSpec& spec, const Target& target) const override;
  std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target, const Machine& machine) const override;
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const override;
  Expected<Image> finish(Image image, const Target& target) const override;
  /// The portable form; the native code is the driver's alone.
  Expected<std::string> disassemble(const Image& image, const Target& target) const override;
};

}  // namespace kiln::level_zero
