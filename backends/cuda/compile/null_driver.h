#pragma once

#include "base/status.h"

namespace kiln::cuda {

/// A libcuda.so.1 for this process, which cuDNN asks to load the kernels of each plan that it finishes: the one that is loaded
/// already, or one of ours that has no device and takes any kernel (null_driver.c). For processes that use no device
/// afterwards, as compile workers are: the name is then taken for good.
/// Threading: any thread. Errors: unavailable when there is none.
Status ensure_driver();

}  // namespace kiln::cuda
