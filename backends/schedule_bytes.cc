#include "backends/schedule_bytes.h"

#include <algorithm>

namespace kiln {

Expected<ScheduleBytes> open_schedule(std::span<const uint8_t> bytes) {
  uint32_t length = 0, version = 0;
  const size_t least = sizeof length + sizeof version;
  if (bytes.size() < least) return invalid_argument("schedule: {} bytes, expected at least {}", bytes.size(), least);
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - least) {
    return invalid_argument("schedule: {} bytes hold no name of {}", bytes.size(), length);
  }
  const auto name = bytes.subspan(sizeof length, length);
  const auto is_of_a_name = [](uint8_t c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  if (!std::ranges::all_of(name, is_of_a_name)) return invalid_argument("schedule: no name of an implementation");
  std::memcpy(&version, name.data() + length, sizeof version);
  return ScheduleBytes{{reinterpret_cast<const char*>(name.data()), length}, version, bytes.subspan(least + length)};
}

Status check_schedule(const ScheduleBytes& found, std::string_view implementation, uint32_t version,
                      size_t field_bytes) {
  if (found.implementation != implementation) {
    return invalid_argument("schedule of {}, expected one of {}", found.implementation, implementation);
  }
  if (found.version != version) {
    return invalid_argument("schedule of {}: version {}, expected {}", implementation, found.version, version);
  }
  if (found.fields.size() != field_bytes) {
    return invalid_argument("schedule of {}: {} bytes of fields, expected {}", implementation, found.fields.size(),
                            field_bytes);
  }
  return {};
}

}  // namespace kiln
