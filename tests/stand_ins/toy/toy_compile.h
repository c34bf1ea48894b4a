#pragma once

#include "backends/cpu/compile/backend.h"

namespace kiln::toy {

/// The processor's code, packed as a device's: with a driver in the target native for it, and portable beside.
class ToyCompileBackend final : public CompileBackend {
 public:
  std::string_view name() const override;
  std::vector<Target> targets() const override;
  Machine default_machine(const Target& target) const override;
  std::string toolchain() const override { return "toy 1"; }
  Status claims(const KernelSpec& spec, const Target& target) const override;
  std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target, const Machine& machine) const override;
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const override;
  Expected<Image> finish(Image image, const Target& target) const override;

 private:
  cpu::CpuCompileBackend m_cpu;
};

}  // namespace kiln::toy
