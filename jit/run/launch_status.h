#pragma once

#include "backends/device.h"
#include "base/status.h"

namespace kiln {

/// What kernels reported, in torch's words.
inline Status to_status(LaunchStatus status) {
  if (status == LaunchStatus::ok) return {};
  return error(StatusCode::out_of_range, "index out of range in self");
}

}  // namespace kiln
