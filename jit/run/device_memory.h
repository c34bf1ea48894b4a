#pragma once

#include <utility>

#include "backends/device.h"

namespace kiln {

/// Memory of a device that is given back with this. Movable; must not outlive the device.
class DeviceMemory {
 public:
  static Expected<DeviceMemory> allocate(Device& device, size_t bytes) {
    KILN_ASSIGN_OR_RETURN(void* memory, device.allocate(bytes));
    return DeviceMemory(device, memory);
  }
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(m_device, other.m_device);
    std::swap(m_memory, other.m_memory);
    return *this;
  }
  ~DeviceMemory() {
    if (m_memory != nullptr) m_device->release(m_memory);
  }

  /// An address on the device: not for the host to follow.
  uint8_t* get() const { return static_cast<uint8_t*>(m_memory); }

 private:
  DeviceMemory(Device& device, void* memory) : m_device(&device), m_memory(memory) {}

  Device* m_device = nullptr;
  void* m_memory = nullptr;
};

}  // namespace kiln
