#pragma once

#include "backends/backend.h"
#include "backends/level_zero/runtime/module.h"
#include "backends/level_zero/runtime/platform.h"

namespace kiln::level_zero {

/// One device behind the contract of backends/device.h.
Expected<std::unique_ptr<Device>> open_device(const Platform& platform, const FoundDevice& found);

}  // namespace kiln::level_zero
