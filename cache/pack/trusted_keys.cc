#include "cache/pack/trusted_keys.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace kiln {

Expected<TrustedKeys> TrustedKeys::read(const std::string& folder) {
  TrustedKeys trusted;
  if (folder.empty()) return trusted;
  struct stat status;
  if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return error(StatusCode::not_found, "{}: is no folder of keys", folder);
  }
  if ((status.st_uid != geteuid() && status.st_uid != 0) || (status.st_mode & 022) != 0) {
    return error(StatusCode::permission_denied, "{}: others than this user and root may write there", folder);
  }
  std::error_code failure;
  for (std::filesystem::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
    if (at->path().extension() != ".pub") continue;
    const auto key = PublicKey::read(at->path());
    if (key.ok()) {
      trusted.m_keys.insert(*key);
    } else {
      trusted.m_unreadable.push_back(key.status().message());
    }
  }
  if (failure) return error(StatusCode::not_found, "{}: {}", folder, failure.message());
  return trusted;
}

}  // namespace kiln
