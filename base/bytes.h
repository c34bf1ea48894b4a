#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kiln {

static_assert(std::endian::native == std::endian::little, "formats are little endian and written in place");

/// Appends values in Kiln's canonical byte form: little endian, fixed width, strings and lists led by a u32
/// count. The form is what keys are hashed over, so equal content must give equal bytes: no padding, no
/// pointers.
class ByteWriter {
 public:
  template <typename T>
    requires(std::is_arithmetic_v<T> || std::is_enum_v<T>)
  void write(T value) {
    const auto* first = reinterpret_cast<const uint8_t*>(&value);
    m_bytes.insert(m_bytes.end(), first, first + sizeof value);
  }
  void write(std::string_view text) {
    write(static_cast<uint32_t>(text.size()));
    m_bytes.insert(m_bytes.end(), text.begin(), text.end());
  }
  template <typename T>
  void write(const std::vector<T>& list) {
    write(static_cast<uint32_t>(list.size()));
    for (const T& item : list) write(item);
  }

  const std::vector<uint8_t>& bytes() const { return m_bytes; }
  std::vector<uint8_t> take() { return std::move(m_bytes); }

 private:
  std::vector<uint8_t> m_bytes;
};

}  // namespace kiln
