#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// How the program writes numbers, and reads sizes. Pure functions.
namespace kiln {

/// Columns of `text`, counted as one per code point.
size_t width_of(std::string_view text);

/// "512 B", "1.5 KiB", "8.0 GiB".
std::string human_bytes(uint64_t bytes);
/// "950 ms", "3.2 s", "4 min", "2 h", "5 d".
std::string human_duration(uint64_t milliseconds);
/// Since `unix_ms` ago: "3.2 s ago".
std::string human_age(uint64_t unix_ms);

/// "4096", "512K", "8G", "8GiB": powers of 1024. Nothing for anything else, or beyond 64 bits.
std::optional<uint64_t> parse_bytes(std::string_view text);

}  // namespace kiln
