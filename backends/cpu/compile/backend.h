#pragma once

#include "backends/backend.h"
#include "backends/cpu/compile/emit/image.h"

namespace kiln::cpu {

/// Kernels for x86-64 through LLVM: IR in its final shape, code generation, a relocation-free image.
/// Stateless.
class CpuCompileBackend final : public CompileBackend {
 public:
  std::string_view name() const override { return "cpu"; }
  std::vector<Target> targets() const override;
  Machine default_machine(const Target& target) const override;
  std::string toolchain() const override;
  bool is_fork_safe() const override { return true; }
  Status claims(const KernelSpec& spec, const Target& target) const override;
  std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target, const Machine& machine) const override;
  std::optional<SizedSpec> sized(const KernelSpec& spec, const Target& target,
                                 std::span<const uint8_t> like = {}) const override;
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const override;
  Expected<Image> finish(Image image, const Target& target) const override;
  Expected<std::string> disassemble(const Image& image, const Target& target) const override;

  /// All that the implementations list, candidates() at the front.
  std::vector<Schedule> schedules(const KernelSpec& spec, const Target& target, const Machine& machine) const;
  /// compile(), with what it showed.
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target,
                          ImageReport* report) const;
};

}  // namespace kiln::cpu
