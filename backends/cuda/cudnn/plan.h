#pragma once

#include <cstdint>
#include <string>

#include "backends/cuda/cudnn/object.h"

namespace kiln::cuda {

/// A plan out of its text, for the device of the handle; `driver` is its driver's version, 13000. The kernels in a plan are
/// finished, and any driver of their CUDA or a newer one takes them, but the library compares the version for equality: a
/// text of an older driver is read as one of this driver.
/// Errors: failed_precondition for a device or a library other than the plan's.
Expected<CudnnObject> load_plan(const Cudnn& cudnn, CudnnHandle handle, const std::string& text, int driver);

/// The same for a device that is described and need not be there; nothing can be launched of it.
Expected<CudnnObject> load_plan(const Cudnn& cudnn, const CudnnObject& device, const std::string& text);

/// A device by its description (compile/cudnn_*.json).
Expected<CudnnObject> described_device(const Cudnn& cudnn, std::string_view text);

/// The text with another driver's version in it; empty where it names none.
std::string with_driver(const std::string& plan, int driver);

}  // namespace kiln::cuda
