#include "base/printable.h"

#include <fmt/format.h>

#include "base/limits.h"

namespace kiln {
namespace {

struct CodePoint {
  char32_t value = 0;
  size_t bytes = 0;  // 0: no UTF-8 starts here
};

CodePoint first_code_point(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  char32_t value = lead & (0x7fU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0U) != 0x80) return {};
    value = value << 6 | (next & 0x3fU);
  }
  constexpr char32_t k_smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < k_smallest[bytes] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return {};
  return {value, bytes};
}

bool steers_terminal(char32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    const size_t bytes = point.bytes == 0 ? 1 : point.bytes;
    if (point.bytes == 0) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (point.value == '\n') {
      result += "\\n";
    } else if (point.value == '\t') {
      result += "\\t";
    } else if (steers_terminal(point.value)) {
      result += point.value < 0x80 ? fmt::format("\\x{:02x}", static_cast<unsigned>(point.value))
                                   : fmt::format("\\u{:04x}", static_cast<unsigned>(point.value));
    } else {
      result += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return result;
}

std::string printable_name(std::string_view text) {
  constexpr std::string_view k_cut = "…";
  std::string name = escaped(text.substr(0, limits::k_name_bytes + 1));
  if (name.size() <= limits::k_name_bytes) return name;
  size_t size = limits::k_name_bytes - k_cut.size();
  while ((static_cast<unsigned char>(name[size]) & 0xc0U) == 0x80) --size;  // not within a character
  name.resize(size);
  return name.append(k_cut);
}

}  // namespace kiln
