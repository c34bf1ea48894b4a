#pragma once

#include "backends/backend.h"

namespace kiln::level_zero {

/// Devices behind the Level Zero loader, which is opened when somebody asks for them and never linked.
/// Threading: any thread at once.
class LevelZeroRuntimeBackend final : public RuntimeBackend {
 public:
  std::string_view name() const override { return "level_zero"; }
  std::vector<Target> known_targets() const override;
  const Discovery& discover() const override;
  Expected<std::unique_ptr<Device>> open(size_t index) const override;
};

}  // namespace kiln::level_zero
