#pragma once

#include <sys/stat.h>

#include <string>

#include "base/expected.h"
#include "base/fd.h"

namespace kiln {

/// The socket at which clients find the daemon, by its path.
class ListeningSocket {
 public:
  /// Binds it: mode 0600, a stale one is replaced. The caller holds the instance lock. Errors: unavailable.
  static Expected<ListeningSocket> bind(const std::string& path);
  /// One that a supervisor has bound, and keeps when the daemon leaves. Errors: failed_precondition when it is not the one
  /// at `path`, where clients look.
  static Expected<ListeningSocket> adopt(UniqueFd socket, const std::string& path);

  /// For whoever accepts.
  UniqueFd take() { return std::move(m_socket); }
  /// Takes the name away, unless a supervisor has it, or another daemon by now.
  void remove_name() const;

 private:
  ListeningSocket(UniqueFd socket, std::string path, const struct stat& file, bool is_ours)
      : m_socket(std::move(socket)), m_path(std::move(path)), m_file(file), m_is_ours(is_ours) {}

  UniqueFd m_socket;
  std::string m_path;
  struct stat m_file;
  bool m_is_ours;
};

}  // namespace kiln
