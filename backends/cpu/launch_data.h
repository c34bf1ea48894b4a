#pragma once

#include "backends/backend.h"
#include "base/limits.h"
#include "base/status.h"

namespace kiln::cpu {

/// Whether code of so many bytes can have these launch data, on whatever processor. Errors: invalid_argument.
inline Status check_launch_data(const Image& launch_data, size_t code_bytes) {
  if (launch_data.entry >= code_bytes) {
    return invalid_argument("cpu: the entry point is at {}, the code has {} bytes", launch_data.entry, code_bytes);
  }
  if (launch_data.workspace_bytes > limits::k_task_workspace_bytes) {
    return invalid_argument("cpu: the code wants {} bytes of workspace, the limit is {}", launch_data.workspace_bytes,
                            limits::k_task_workspace_bytes);
  }
  return {};
}

}  // namespace kiln::cpu
