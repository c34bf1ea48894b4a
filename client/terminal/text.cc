#include "client/terminal/text.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>

namespace kiln {

size_t width_of(std::string_view text) {
  size_t width = 0;
  for (const char c : text) width += (static_cast<unsigned char>(c) & 0xc0U) != 0x80 ? 1 : 0;
  return width;
}

std::string human_bytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  constexpr std::string_view k_units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  while (value >= 1024 && unit + 1 < std::size(k_units)) value /= 1024, ++unit;
  return fmt::format("{:.1f} {}", value, k_units[unit]);
}

std::string human_duration(uint64_t milliseconds) {
  if (milliseconds < 1'000) return fmt::format("{} ms", milliseconds);
  const double seconds = static_cast<double>(milliseconds) / 1e3;
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  if (seconds < 2 * 3'600) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 2 * 86'400) return fmt::format("{:.0f} h", seconds / 3'600);
  return fmt::format("{:.0f} d", seconds / 86'400);
}

std::string human_age(uint64_t unix_ms) {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  const auto now = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(since_1970).count());
  return unix_ms >= now ? "now" : human_duration(now - unix_ms) + " ago";
}

std::optional<uint64_t> parse_bytes(std::string_view text) {
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end == text.data()) return std::nullopt;
  const std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
  if (suffix.empty() || suffix == "B") return value;
  const size_t power = std::string_view("KMGT").find(suffix[0]);
  if (power == std::string_view::npos) return std::nullopt;
  if (const auto rest = suffix.substr(1); !rest.empty() && rest != "iB" && rest != "B") return std::nullopt;
  const unsigned shift = 10 * static_cast<unsigned>(power + 1);
  if (value > UINT64_MAX >> shift) return std::nullopt;
  return value << shift;
}

}  // namespace kiln
