#pragma once

#include <string>

#include "base/expected.h"
#include "base/fd.h"

namespace kiln {

/// The right to be the daemon of a cache directory: a lock on <cache_directory>/kilnd.lock, which the kernel takes back
/// however the process ends. The file tells people its holder's pid.
class Instance {
 public:
  /// Takes the lock. While another process holds it and does not answer at `socket_path` (it is starting, or leaving),
  /// this waits, and takes over. Errors: already_exists once the other one answers; unavailable after `timeout_ms`;
  /// permission_denied. `owns_socket`: it is this process that answers there already.
  static Expected<Instance> acquire(const std::string& cache_directory, const std::string& socket_path,
                                    uint64_t timeout_ms, bool owns_socket);

  /// False once the locked file is not the one at its path any more: the directory was removed or replaced, and
  /// another daemon may have it.
  bool is_in_force() const;

 private:
  Instance(std::string path, UniqueFd file) : m_path(std::move(path)), m_file(std::move(file)) {}
  std::string m_path;
  UniqueFd m_file;
};

}  // namespace kiln
