#pragma once

#include <memory>
#include <span>

#include "backends/cuda/launch_record.h"
#include "backends/cuda/runtime/device.h"

namespace kiln::cuda {

/// What a vendor's library computes in the place of a launch's kernels.
///
/// Threading: any thread at once; launches come one after another. Neither waits for the device nor allocates there.
class LibraryCall {
 public:
  virtual ~LibraryCall() = default;
  /// Whether it takes such addresses.
  virtual bool takes(void* const* buffers) const = 0;
  /// The device's context is current.
  virtual Status launch(Stream stream, void* const* buffers, void* workspace) const = 0;
};

/// The call of the record; null where it has none. `code`: what the record is of.
/// Errors: not_found without the library; failed_precondition, unimplemented, unavailable where this host's library, driver or
/// device cannot take the call.
Expected<std::unique_ptr<LibraryCall>> load_library_call(std::shared_ptr<const DeviceContext> context,
                                                         const LaunchRecord& record, std::span<const uint8_t> code);

}  // namespace kiln::cuda
