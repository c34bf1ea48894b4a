#pragma once

#include <string>
#include <vector>

#include "backends/device.h"
#include "backends/level_zero/runtime/api.h"
#include "backends/level_zero/target.h"

namespace kiln::level_zero {

/// A device of this host that code can be compiled for.
struct FoundDevice {
  ze_driver_handle_t driver = nullptr;
  ze_device_handle_t handle = nullptr;
  const DeviceFamily* family = nullptr;
  std::string name;          // its maker's
  std::string driver_name;   // Target::driver: the driver's version and the format of the native code it takes
  uint64_t features = 0;     // the family's, and what else the driver offers
  uint32_t queue_group = 0;  // that computes
  uint64_t memory_bytes = 0;
  uint32_t cores = 0;  // Xe cores
};

/// What the loader finds on this host. Immutable.
class Platform {
 public:
  /// Looked for once in a process, in the configured folders, then by the system's loader.
  static const Platform& host();
  explicit Platform(const SearchPath& search);

  const Api& api() const { return *m_api; }
  /// Why there are no devices; ok when there are.
  const Status& status() const { return m_status; }
  const std::vector<FoundDevice>& devices() const { return m_devices; }
  const std::vector<Discovery::Component>& components() const { return m_components; }

 private:
  Status look(const SearchPath& search);
  Status look_at_driver(ze_driver_handle_t driver);
  /// Why the device is of no use, or ok.
  Status look_at_device(ze_driver_handle_t driver, const std::string& driver_version, ze_device_handle_t device);
  Expected<uint32_t> computing_group(ze_device_handle_t device) const;
  uint64_t memory_of(ze_device_handle_t device) const;

  std::unique_ptr<const Api> m_api;
  Status m_status;
  std::vector<FoundDevice> m_devices;
  std::vector<Discovery::Component> m_components;
};

}  // namespace kiln::level_zero
