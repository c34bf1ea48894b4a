#pragma once

#include "backends/backend.h"

namespace kiln::cpu {

/// An image made by backends/cpu/compile, as a kernel. Borrows its code; the caller keeps it mapped read+execute, at an
/// address aligned to 64 bytes, as long as the executable lives.
/// Errors: failed_precondition when the host lacks a feature the code needs, invalid_argument when the launch data and
///   the code disagree.
Expected<std::unique_ptr<HostExecutable>> load_image(const Image& launch_data, std::span<const uint8_t> code);

/// The targets this host runs, best first.
std::vector<Target> host_targets();

/// The host's own processor, as one device. Links no compiler.
class CpuRuntimeBackend final : public RuntimeBackend {
 public:
  std::string_view name() const override { return "cpu"; }
  std::vector<Target> known_targets() const override;
  const Discovery& discover() const override;
  Expected<std::unique_ptr<Device>> open(size_t index) const override;
};

}  // namespace kiln::cpu
