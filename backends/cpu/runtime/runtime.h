#pragma once

#include "backends/backend.h"

namespace kiln::cpu {

/// Loads and runs images made by backends/cpu/compile. Links no compiler.
///
/// Ownership: an executable borrows its code; the caller keeps it mapped read+execute, at an address aligned
///   to 64 bytes, as long as the executable lives.
/// Threading: everything may be called from any thread at once.
/// Errors: failed_precondition when the host lacks a feature the code needs, invalid_argument when the launch
///   data and the code disagree.
class CpuRuntimeBackend final : public RuntimeBackend {
 public:
  std::string_view name() const override { return "cpu"; }
  std::vector<Target> targets() const override;
  uint64_t features() const override;
  Expected<std::unique_ptr<Executable>> load(const Image& launch_data, std::span<const uint8_t> code) const override;
};

}  // namespace kiln::cpu
