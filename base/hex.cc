#include "base/hex.h"

#include <charconv>

namespace kiln {

std::string to_hex(std::span<const uint8_t> bytes) {
  static constexpr char k_digits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    text += k_digits[byte >> 4];
    text += k_digits[byte & 15];
  }
  return text;
}

std::optional<std::vector<uint8_t>> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::vector<uint8_t> bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char* first = text.data() + 2 * i;
    const auto [end, code] = std::from_chars(first, first + 2, bytes[i], 16);
    if (code != std::errc() || end != first + 2) return std::nullopt;
  }
  return bytes;
}

}  // namespace kiln
