#pragma once

#include <functional>
#include <memory>

#include "backends/cuda/runtime/device.h"

namespace kiln::cuda {

/// What `put` puts on `queue`, which nothing else uses, as a CUDA graph.
/// Errors: of `put`; the driver's, where something that was put there cannot be captured.
Expected<std::unique_ptr<Recording>> record_graph(std::shared_ptr<const DeviceContext> context, Queue& queue,
                                                  const std::function<Status(Queue&)>& put);

}  // namespace kiln::cuda
