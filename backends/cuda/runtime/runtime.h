#pragma once

#include "backends/backend.h"
#include "backends/cuda/libraries.h"

namespace kiln::cuda {

/// Devices of the vendor's driver, opened at run time. Kernels are launched on the caller's streams, in the device's
/// primary context, which frameworks share.
class CudaRuntimeBackend final : public RuntimeBackend {
 public:
  CudaRuntimeBackend() = default;

  std::string_view name() const override { return "cuda"; }
  std::vector<Target> known_targets() const override;
  const Discovery& discover() const override;
  Expected<std::unique_ptr<Device>> open(size_t index) const override;
};

/// What a driver found by `search` has; uncached, for tests and for discover().
Discovery discover_devices(const SearchPath& search);
/// Errors: unavailable, not_found.
Expected<std::unique_ptr<Device>> open_cuda_device(const SearchPath& search, size_t index);

}  // namespace kiln::cuda
