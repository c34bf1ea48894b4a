#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/expected.h"

namespace kiln {

/// What Image::code is for devices that are not the host: native code if there is some, the form that any driver of
/// the target can finish, and how to launch either.
struct DeviceCode {
  std::string driver;             // Target::driver that `native` is bound to; empty when bound to none
  std::vector<uint8_t> native;    // may be empty
  std::vector<uint8_t> portable;  // may be empty, not both
  std::vector<uint8_t> launch;    // the backend's own: entry point, grid, group, arguments
};

/// Spans of what they were taken from.
struct DeviceCodeView {
  std::string_view driver;
  std::span<const uint8_t> native, portable, launch;

  /// Whether `native` may be given to this driver.
  bool is_native_for(std::string_view host_driver) const {
    return !native.empty() && (driver.empty() || driver == host_driver);
  }
};

/// magic:u32 version:u32 { size:u32 bytes } × 4 in the order of the fields, little endian.
std::vector<uint8_t> pack_device_code(const DeviceCode& code);
/// Errors: data_loss for anything but packed code.
Expected<DeviceCodeView> unpack_device_code(std::span<const uint8_t> bytes);

}  // namespace kiln
