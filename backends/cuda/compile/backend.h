#pragma once

#include "backends/cuda/compile/kernel_source.h"
#include "backends/cuda/compile/nvrtc.h"

namespace kiln::cuda {

/// Compiles kernel specs to cubins with NVRTC. Without NVRTC it still writes sources; compile() then says why not.
class CudaCompileBackend : public CompileBackend {
 public:
  /// `nvrtc`: null is the process's own (Nvrtc::of_process), opened when it is first needed.
  explicit CudaCompileBackend(const Expected<Nvrtc>* nvrtc = nullptr) : m_nvrtc(nvrtc) {}

  std::string_view name() const override { return "cuda"; }
  std::vector<Target> targets() const override;
  Machine default_machine(const Target& target) const override;
  std::string toolchain() const override;
  /// What a library of the vendor's may compute is also of that library on this host: attention of cuDNN, products of cuBLASLt.
  std::string toolchain_of(const KernelSpec& spec, const Target& target) const override;
  /// What is computed takes less time than what is read, and cuBLASLt has such products.
  bool computes_heavy_factors(const Target&) const override { return true; }
  Status claims(const KernelSpec& spec, const Target& target) const override;
  std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target, const Machine& machine) const override;
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const override;

  /// The kernels of a schedule as text, in the order of its launch record.
  /// Errors: unimplemented for a spec that is not claimed, invalid_argument for a schedule of another one.
  static Expected<LaunchSource> source(const KernelSpec& spec, const Schedule& schedule, const Target& target);

 private:
  const Expected<Nvrtc>& nvrtc() const { return m_nvrtc != nullptr ? *m_nvrtc : Nvrtc::of_process(); }

  const Expected<Nvrtc>* m_nvrtc;
};

}  // namespace kiln::cuda
