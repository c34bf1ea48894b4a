#pragma once

#include <string>
#include <string_view>

/// Text from outside, for logs, terminals and lists. Pure functions.
namespace kiln {

/// `text` with everything that could steer a terminal or begin a line shown as an escape: control characters (\n, \x1b,
/// \u0085), characters that reorder a line (\u202e), and bytes that are no UTF-8 (\xff).
std::string escaped(std::string_view text);

/// The same, and at most limits::k_name_bytes long: what is cut off is shown as "…".
std::string printable_name(std::string_view text);

}  // namespace kiln
