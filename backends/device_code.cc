#include "backends/device_code.h"

#include <array>
#include <cstring>

namespace kiln {
namespace {

constexpr uint32_t k_magic = 0x43444e4b;  // "KNDC"
constexpr uint32_t k_version = 1;

void append(std::vector<uint8_t>& out, const void* data, size_t size) {
  const auto* first = static_cast<const uint8_t*>(data);
  out.insert(out.end(), first, first + size);
}

/// Takes values off the front.
class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : m_left(bytes) {}

  bool number(uint32_t& value) {
    if (m_left.size() < sizeof value) return false;
    std::memcpy(&value, m_left.data(), sizeof value);
    m_left = m_left.subspan(sizeof value);
    return true;
  }
  bool list(std::span<const uint8_t>& bytes) {
    uint32_t size = 0;
    if (!number(size) || size > m_left.size()) return false;
    bytes = m_left.first(size);
    m_left = m_left.subspan(size);
    return true;
  }
  bool is_at_end() const { return m_left.empty(); }

 private:
  std::span<const uint8_t> m_left;
};

}  // namespace

std::vector<uint8_t> pack_device_code(const DeviceCode& code) {
  std::vector<uint8_t> bytes;
  append(bytes, &k_magic, sizeof k_magic);
  append(bytes, &k_version, sizeof k_version);
  const std::span driver(reinterpret_cast<const uint8_t*>(code.driver.data()), code.driver.size());
  for (const std::span<const uint8_t> list :
       std::array<std::span<const uint8_t>, 4>{driver, code.native, code.portable, code.launch}) {
    const auto size = static_cast<uint32_t>(list.size());
    append(bytes, &size, sizeof size);
    append(bytes, list.data(), list.size());
  }
  return bytes;
}

Expected<DeviceCodeView> unpack_device_code(std::span<const uint8_t> bytes) {
  Reader reader(bytes);
  uint32_t magic = 0, version = 0;
  if (!reader.number(magic) || magic != k_magic || !reader.number(version) || version != k_version) {
    return error(StatusCode::data_loss, "{} bytes are no device code of version {}", bytes.size(), k_version);
  }
  DeviceCodeView view;
  std::span<const uint8_t> driver;
  if (!reader.list(driver) || !reader.list(view.native) || !reader.list(view.portable) || !reader.list(view.launch) ||
      !reader.is_at_end()) {
    return error(StatusCode::data_loss, "device code of {} bytes is cut off or too long", bytes.size());
  }
  if (view.native.empty() && view.portable.empty()) return error(StatusCode::data_loss, "device code without code");
  view.driver = {reinterpret_cast<const char*>(driver.data()), driver.size()};
  return view;
}

}  // namespace kiln
