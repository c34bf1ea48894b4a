#pragma once

#include <memory>
#include <unordered_map>

#include "backends/device.h"
#include "cache/sources/source.h"
#include "jit/run/program.h"

namespace kiln {

/// Plans and kernels of a source, for programs of one device. Of equal kernels there is one.
///
/// Ownership: programs use code mapped here; it must outlive them, and source and device must outlive it.
/// Threading: any thread at once. Errors: not_found, with why the source does not have it; the device's.
class SourcedKernels final : public ArtifactSource {
 public:
  /// `stream`: the device's; null is the host.
  SourcedKernels(Source& source, Device& device, DeviceStream* stream)
      : m_source(source), m_device(device), m_stream(stream) {}

  Expected<std::span<const uint8_t>> plan(const Digest& digest) override;
  Expected<std::shared_ptr<const Executable>> executable(const Digest& digest) override;
  DeviceStream* stream() override { return m_stream; }

 private:
  Source& m_source;
  Device& m_device;
  DeviceStream* const m_stream;
  std::unordered_map<Digest, std::shared_ptr<const Executable>> m_executables;  // process_mutex() guards it
};

inline std::span<const uint8_t> payload_of(const kiln_view& view) { return {view.payload, view.header.payload_size}; }

}  // namespace kiln
