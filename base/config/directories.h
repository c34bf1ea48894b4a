#pragma once

#include <string>
#include <string_view>

#include "base/expected.h"

/// Where Kiln's files live, by the XDG conventions, and how the socket is named.
namespace kiln {

/// $XDG_CONFIG_HOME/kiln/config.yaml, else ~/.config/kiln/config.yaml; empty without a home.
std::string default_config_file();
/// $XDG_CACHE_HOME/kiln, else ~/.cache/kiln, else /tmp/kiln-$UID/cache.
std::string default_cache_directory();
/// $XDG_STATE_HOME/kiln, else ~/.local/state/kiln, else /tmp/kiln-$UID/state. Logs.
std::string default_state_directory();
/// A directory of this host in place of `cache_directory`, which is on a network file system.
std::string local_cache_directory(const std::string& cache_directory);
/// The directory that takes the place of default_state_directory() where that cannot be written.
std::string fallback_state_directory();

/// Creates `path` with its parents, mode 0700. What is there already must pass check_private_directory.
/// Errors: permission_denied, resource_exhausted on a full disk; a sentence that says what to do.
Status make_private_directory(const std::string& path);

/// A directory of this user that nobody else can look into: what lies in it can be trusted. Errors: not_found;
/// permission_denied with a sentence that says what to do.
Status check_private_directory(const std::string& path);

/// The absolute path without links, also when the last parts do not exist yet.
std::string canonical_path(const std::string& path);

/// The socket of the daemon that serves `cache_directory`: kilnd.sock in it, so that whoever sees the cache sees the
/// daemon (a login, a cron job and a container have other runtime directories). /tmp/kiln-$UID/<16 hex digits>.sock when
/// that is too long for sun_path.
Expected<std::string> socket_path(const std::string& cache_directory);

/// The log of that daemon.
std::string log_path(const std::string& state_directory, const std::string& cache_directory);

}  // namespace kiln
