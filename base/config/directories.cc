#include "base/config/directories.h"

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/digest.h"

namespace kiln {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// $XDG_…/kiln, else ~/<under_home>/kiln, else "". The convention ignores relative paths.
std::string xdg_directory(const char* variable, std::string_view under_home) {
  if (const std::string base = environment(variable); base.starts_with('/')) return base + "/kiln";
  // HOME=/ is how containers say that the user has none.
  if (const std::string home = environment("HOME"); home.starts_with('/') && home != "/") {
    return fmt::format("{}/{}/kiln", home, under_home);
  }
  return "";
}

/// A name for what belongs to a directory and lies elsewhere.
std::string short_name(const std::string& directory) { return digest_of(directory).to_hex().substr(0, 16); }

std::string temporary_directory() { return fmt::format("/tmp/kiln-{}", geteuid()); }

}  // namespace

std::string default_config_file() {
  const std::string directory = xdg_directory("XDG_CONFIG_HOME", ".config");
  return directory.empty() ? "" : directory + "/config.yaml";
}

std::string fallback_state_directory() { return temporary_directory() + "/state"; }

std::string default_cache_directory() {
  const std::string directory = xdg_directory("XDG_CACHE_HOME", ".cache");
  return directory.empty() ? temporary_directory() + "/cache" : directory;
}

std::string local_cache_directory(const std::string& cache_directory) {
  return fmt::format("{}/cache-{}", temporary_directory(), short_name(canonical_path(cache_directory)));
}

std::string default_state_directory() {
  const std::string directory = xdg_directory("XDG_STATE_HOME", ".local/state");
  return directory.empty() ? fallback_state_directory() : directory;
}

Status check_private_directory(const std::string& path) {
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) {
    return error(errno == ENOENT ? StatusCode::not_found : StatusCode::unavailable, "{}: {}", path,
                 std::strerror(errno));
  }
  if (!S_ISDIR(info.st_mode)) return error(StatusCode::permission_denied, "{} is not a directory", path);
  if (info.st_uid != geteuid()) {
    return error(StatusCode::permission_denied,
                 "{} belongs to user {}, expected {}; set cache.directory to a place of your own", path, info.st_uid,
                 geteuid());
  }
  if ((info.st_mode & 077) != 0) {
    return error(StatusCode::permission_denied, "{} is mode {:o}, expected 700; chmod 700 {}", path,
                 info.st_mode & 07777, path);
  }
  return {};
}

Status make_private_directory(const std::string& path) {
  std::error_code failure;
  // Below the shared /tmp the first step is private, too, and checked.
  const std::string temporary = temporary_directory();
  if (path.starts_with(temporary + "/")) KILN_RETURN_IF_ERROR(make_private_directory(temporary));
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, failure);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    const bool is_full = errno == ENOSPC || errno == EDQUOT;
    return error(is_full ? StatusCode::resource_exhausted : StatusCode::permission_denied, "{} cannot be made: {}; {}",
                 path, std::strerror(errno),
                 is_full ? "make room" : "set cache.directory to a place that can be written");
  }
  return check_private_directory(path);
}

std::string canonical_path(const std::string& path) {
  std::error_code failure;
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, failure);
  std::string text = failure ? std::filesystem::path(path).lexically_normal().string() : resolved.string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

Expected<std::string> socket_path(const std::string& cache_directory) {
  const std::string directory = canonical_path(cache_directory);
  if (std::string path = directory + "/kilnd.sock"; path.size() < sizeof(sockaddr_un::sun_path)) return path;
  // A deep directory does not fit: the other private place is short by construction.
  return fmt::format("{}/{}.sock", temporary_directory(), short_name(directory));
}

std::string log_path(const std::string& state_directory, const std::string& cache_directory) {
  return fmt::format("{}/{}.log", state_directory, short_name(canonical_path(cache_directory)));
}

}  // namespace kiln
