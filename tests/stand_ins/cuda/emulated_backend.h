#pragma once

#include <memory>
#include <span>

#include "backends/cuda/compile/backend.h"
#include "tests/stand_ins/cuda/host_module.h"
#include "tests/stand_ins/cuda/machine.h"

namespace kiln::cuda_emulator {

/// A kernel's text with what stands before it after the prelude.
std::string full_text(const cuda::KernelSource& source);

/// Kernels the CUDA backend wrote, compiled for the emulated machine: what its launch record and cubins are on a device.
class EmulatedKernels {
 public:
  /// `source`: with full texts. `buffers`: the spec's.
  static Expected<EmulatedKernels> compile(const cuda::LaunchSource& source, std::vector<BufferSpec> buffers);
  /// Whether two full texts make different code.
  static bool differs(const std::string& text, const std::string& other);

  /// Launches the first alternative that takes these addresses, in a workspace of its own. Answers what the machine found wrong,
  /// or nothing. Bits that the kernels set come into *status.
  std::string run(void* const* buffers, uint32_t* status, uint64_t seed) const;

 private:
  std::string run(const cuda::KernelRecord& kernel, std::span<void* const> pointers, uint32_t* status,
                  uint64_t seed) const;

  std::vector<BufferSpec> m_buffers;
  cuda::LaunchRecord m_record;
  std::vector<std::shared_ptr<const HostModule>> m_modules;  // of its kernels
};

/// The CUDA backend with the host's compiler in NVRTC's place. Its images are handed over in memory: the code names an
/// entry of a table in this process.
class EmulatedCompileBackend : public CompileBackend {
 public:
  std::string_view name() const override { return "cuda_emulated"; }
  std::vector<Target> targets() const override;
  kiln::Machine default_machine(const Target& target) const override;
  std::string toolchain() const override { return "emulator"; }
  Status claims(const KernelSpec& spec, const Target& target) const override;
  /// The best and, in turn, one of the others: each costs a compilation, and the suite has many specs.
  std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target,
                                   const kiln::Machine& machine) const override;
  Expected<Image> compile(const KernelSpec& spec, const Schedule& schedule, const Target& target) const override;

 private:
  cuda::CudaCompileBackend m_real;
};

/// Runs what EmulatedCompileBackend made as grids of one slice, each launch under another seed; what the machine finds
/// wrong is a failure of the running test. Memory and queues it has none: buffers are the test's own, with their guards.
class EmulatedDevice : public Device {
 public:
  bool is_host() const override { return true; }
  Expected<std::unique_ptr<Executable>> load(const Image& launch_data, std::span<const uint8_t> code) override;
  Expected<void*> allocate(size_t bytes) override;
  void release(void* memory) override;
  Expected<std::unique_ptr<Queue>> create_queue() override;
  Expected<std::unique_ptr<Queue>> adopt_queue(void* native) override;
};

}  // namespace kiln::cuda_emulator
