#include "cache/fleet/address.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "base/fd.h"

namespace kiln {
namespace {

constexpr size_t k_password_bytes = 1'024;

/// A part of the URL; empty where it has none.
std::string part_of(CURLU* url, CURLUPart part) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, 0) != CURLUE_OK) return "";
  std::string copy(text);
  curl_free(text);
  return copy;
}

}  // namespace

Expected<UrlParts> parse_url(const std::string& url) {
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parsed(curl_url(), curl_url_cleanup);
  if (!parsed || curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), CURLU_NON_SUPPORT_SCHEME) != CURLUE_OK) {
    return invalid_argument("'{}' is no URL", url.substr(0, 128));
  }
  if (!part_of(parsed.get(), CURLUPART_USER).empty() || !part_of(parsed.get(), CURLUPART_PASSWORD).empty()) {
    return invalid_argument("a URL with a name or a password in it; remote.password_file names a file with one");
  }
  UrlParts parts{part_of(parsed.get(), CURLUPART_SCHEME), part_of(parsed.get(), CURLUPART_HOST),
                 part_of(parsed.get(), CURLUPART_PATH)};
  const std::string port = part_of(parsed.get(), CURLUPART_PORT);
  std::from_chars(port.data(), port.data() + port.size(), parts.port);
  parts.query = part_of(parsed.get(), CURLUPART_QUERY);
  if (parts.host.empty()) return invalid_argument("'{}' names no host", url.substr(0, 128));
  return parts;
}

std::string query_value(const UrlParts& url, std::string_view name) {
  std::string_view rest = url.query;
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
    if (pair.size() > name.size() && pair.starts_with(name) && pair[name.size()] == '=') {
      return std::string(pair.substr(name.size() + 1));
    }
  }
  return "";
}

Expected<std::string> read_password(const std::string& path) {
  if (path.empty()) return std::string();
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return error(StatusCode::not_found, "{}: {}", path, std::strerror(errno));
  struct stat status{};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      (status.st_uid != geteuid() && status.st_uid != 0) || (status.st_mode & 077) != 0) {
    return error(StatusCode::permission_denied, "{}: is no file that this user or root alone may read", path);
  }
  std::string text(k_password_bytes + 1, '\0');
  const ssize_t got = read(file.get(), text.data(), text.size());
  text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  text.resize(std::min(text.size(), text.find('\n')));
  if (text.empty() || text.size() > k_password_bytes) {
    return invalid_argument("{}: a password has 1 to {} bytes", path, k_password_bytes);
  }
  return text;
}

}  // namespace kiln
