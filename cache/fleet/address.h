#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/expected.h"

namespace kiln {

/// The parts of a URL.
struct UrlParts {
  std::string scheme, host, path;  // path: with its leading slash, or empty
  uint16_t port = 0;               // 0: none is said
  std::string query = {};          // what is behind the question mark
};

/// Errors: invalid_argument for what is no URL of a host, or has a name or a password in it: those would be in logs.
Expected<UrlParts> parse_url(const std::string& url);

/// What a URL's query says of `name` (name=value&…), or nothing.
std::string query_value(const UrlParts& url, std::string_view name);

/// The first line of a file that this user or root alone may read. Empty for an empty path.
/// Errors: not_found, permission_denied, invalid_argument when it is empty or too long.
Expected<std::string> read_password(const std::string& path);

}  // namespace kiln
