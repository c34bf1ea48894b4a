#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kiln {

/// Two digits a byte, in lower case.
std::string to_hex(std::span<const uint8_t> bytes);
/// Nothing where the text is not made of such pairs.
std::optional<std::vector<uint8_t>> from_hex(std::string_view text);

}  // namespace kiln
