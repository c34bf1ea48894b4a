#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "base/config/config.h"
#include "base/expected.h"
#include "base/fd.h"

namespace kiln {

/// The program `name` that belongs to this installation: `configured` when set, else beside the library or
/// program this code is in (also its bin/ and ../bin/, and libexec/kiln of its prefix), else in PATH. Errors: not_found,
/// naming where it was looked for.
Expected<std::string> find_program(const std::string& name, const std::string& configured);

/// kilnd on its way: the launcher detaches the daemon and leaves with 0 when one serves, or not 0 with a sentence on its
/// standard error. Ends with the launcher reaped.
class DaemonLaunch {
 public:
  static Expected<DaemonLaunch> start(const Config& config);
  DaemonLaunch(DaemonLaunch&& other) noexcept
      : m_pid(std::exchange(other.m_pid, -1)), m_words(std::move(other.m_words)) {}
  DaemonLaunch& operator=(DaemonLaunch&&) = delete;
  ~DaemonLaunch();

  /// ok while it is on its way or has succeeded; unavailable, in its own words, when the launcher failed.
  Status check();
  bool finished() const { return m_pid < 0; }

 private:
  DaemonLaunch(pid_t pid, UniqueFd words) : m_pid(pid), m_words(std::move(words)) {}
  std::string last_words() const;

  pid_t m_pid;
  UniqueFd m_words;  // the launcher's standard error
};

/// Starts a daemon where there is none: of all clients that wait, who holds the start lock launches it. The others keep
/// trying to connect.
class Starter {
 public:
  Starter(const Config& config, const std::string& socket_path) : m_config(config), m_socket_path(socket_path) {}

  /// Takes one step; the caller calls it again as long as nobody listens. Errors: why there can be no daemon, and what
  /// to do.
  Status start_if_nobody_does();
  /// Whether it has started one: then it is the one that answers, as nobody else starts one meanwhile.
  bool has_started() const { return m_launch.has_value(); }

 private:
  const Config& m_config;
  const std::string& m_socket_path;
  UniqueFd m_lock;
  std::optional<DaemonLaunch> m_launch;
};

}  // namespace kiln
