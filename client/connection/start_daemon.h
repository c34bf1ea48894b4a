#pragma once

#include <sys/types.h>

#include <string>

#include "base/config/config.h"
#include "base/expected.h"
#include "base/fd.h"

namespace kiln {

/// The program `name` that belongs to this installation: `configured` when set, else beside the library or
/// program this code is in (also its bin/ and ../bin/), else in PATH. Errors: not_found, naming where it was
/// looked for.
Expected<std::string> find_program(const std::string& name, const std::string& configured);

/// kilnd on its way: the launcher detaches the daemon and leaves with 0 when one serves, or not 0 with a line
/// in the log. Ends with the launcher reaped.
class DaemonLaunch {
 public:
  static Expected<DaemonLaunch> start(const Config& config);
  DaemonLaunch(DaemonLaunch&& other) noexcept : m_pid(std::exchange(other.m_pid, -1)) {}
  DaemonLaunch& operator=(DaemonLaunch&&) = delete;
  ~DaemonLaunch();

  /// ok while it is on its way or has succeeded; unavailable when the launcher failed.
  Status check();
  bool finished() const { return m_pid < 0; }

 private:
  explicit DaemonLaunch(pid_t pid) : m_pid(pid) {}
  pid_t m_pid;
};

}  // namespace kiln
