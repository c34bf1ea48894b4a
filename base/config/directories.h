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
/// $XDG_RUNTIME_DIR/kiln when that directory is ours, else /tmp/kiln-$UID. Sockets.
std::string default_runtime_directory();

/// Creates `path` with its parents, mode 0700. permission_denied when it is another user's, a link, or
/// writable by others: what lies in it could not be trusted.
Status make_private_directory(const std::string& path);

/// The absolute path without links, also when the last parts do not exist yet.
std::string canonical_path(const std::string& path);

/// The socket of the daemon that serves `cache_directory`: <runtime directory>/<16 hex digits of its
/// canonical path's digest>.sock. Short enough for sun_path, or an error.
Expected<std::string> socket_path(const std::string& cache_directory);

}  // namespace kiln
