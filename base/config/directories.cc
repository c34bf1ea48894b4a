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
  if (const std::string home = environment("HOME"); home.starts_with('/')) {
    return fmt::format("{}/{}/kiln", home, under_home);
  }
  return "";
}

std::string temporary_directory() { return fmt::format("/tmp/kiln-{}", geteuid()); }

}  // namespace

std::string default_config_file() {
  const std::string directory = xdg_directory("XDG_CONFIG_HOME", ".config");
  return directory.empty() ? "" : directory + "/config.yaml";
}

std::string default_cache_directory() {
  const std::string directory = xdg_directory("XDG_CACHE_HOME", ".cache");
  return directory.empty() ? temporary_directory() + "/cache" : directory;
}

std::string local_cache_directory(const std::string& cache_directory) {
  return fmt::format("{}/cache-{}", temporary_directory(),
                     digest_of(canonical_path(cache_directory)).to_hex().substr(0, 16));
}

std::string default_state_directory() {
  const std::string directory = xdg_directory("XDG_STATE_HOME", ".local/state");
  return directory.empty() ? temporary_directory() + "/state" : directory;
}

std::string default_runtime_directory() {
  // Under sudo or in containers the variable may name another user's directory, or one that is not there.
  const std::string base = environment("XDG_RUNTIME_DIR");
  struct stat info{};
  if (base.starts_with('/') && stat(base.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid()) {
    return base + "/kiln";
  }
  return temporary_directory();
}

Status make_private_directory(const std::string& path) {
  std::error_code failure;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, failure);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return error(errno == EACCES ? StatusCode::permission_denied : StatusCode::unavailable, "directory {}: {}", path,
                 std::strerror(errno));
  }
  struct stat info{};
  if (lstat(path.c_str(), &info) != 0) {
    return error(StatusCode::unavailable, "directory {}: {}", path, std::strerror(errno));
  }
  if (!S_ISDIR(info.st_mode)) return error(StatusCode::permission_denied, "{} is not a directory", path);
  if (info.st_uid != geteuid()) {
    return error(StatusCode::permission_denied, "directory {} belongs to user {}, expected {}", path, info.st_uid,
                 geteuid());
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return error(StatusCode::permission_denied, "directory {} has mode {:o}, writable by others; chmod 700 it", path,
                 info.st_mode & 07777);
  }
  return {};
}

std::string canonical_path(const std::string& path) {
  std::error_code failure;
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, failure);
  std::string text = failure ? std::filesystem::path(path).lexically_normal().string() : resolved.string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

Expected<std::string> socket_path(const std::string& cache_directory) {
  const std::string name = digest_of(canonical_path(cache_directory)).to_hex().substr(0, 16);
  std::string path = fmt::format("{}/{}.sock", default_runtime_directory(), name);
  // A deep XDG_RUNTIME_DIR does not fit: the other private place is short by construction.
  if (path.size() >= sizeof(sockaddr_un::sun_path)) path = fmt::format("{}/{}.sock", temporary_directory(), name);
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return error(StatusCode::out_of_range, "socket path {} has {} bytes, at most {}", path, path.size(),
                 sizeof(sockaddr_un::sun_path) - 1);
  }
  return path;
}

}  // namespace kiln
