#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/config/config.h"
#include "base/fd.h"

namespace kiln::faults {

/// What a process left behind.
struct Outcome {
  bool ended = false;  // false: it had to be killed at the deadline
  int exit_code = -1;  // -1 when a signal ended it
  int signal = 0;
  double seconds = 0;
  std::vector<std::string> lines;
};

/// A process with its standard output.
class Child {
 public:
  Child(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment);
  Child(Child&&) = default;
  ~Child();
  /// Waits; kills it when it takes longer.
  Outcome wait(double seconds = 60);
  void kill(int signal) const;

 private:
  pid_t m_pid = -1;
  UniqueFd m_output;
  Deadline m_start;
};

/// A cache directory, a runtime directory and the environment that leads clients to both, gone with the object.
class Host {
 public:
  Host();
  ~Host();
  Host(const Host&) = delete;

  std::string cache() const { return m_directory + "/cache"; }
  const std::string& directory() const { return m_directory; }
  /// Of every client that is started; "" removes a variable.
  std::map<std::string, std::string>& environment() { return m_environment; }
  Config config() const;

  Child start(std::vector<std::string> arguments) const;
  /// The numbers compiled by one new client; its lines.
  Outcome compile(const std::vector<int>& numbers, double seconds = 60) const;

  /// 0 when none answers.
  pid_t daemon_pid() const;
  void kill_daemon() const;
  /// Asks it to end and waits for that.
  void stop_daemon() const;

 private:
  std::string m_directory;
  std::map<std::string, std::string> m_environment;
};

/// "7 ok …": 7. Nothing for anything else.
std::optional<int> number_that_was_right(const std::string& line);
/// "7 error 14 …": 14. 0 for anything else.
int error_code_in(const std::string& line);
/// A counter of the statistics in "7 ok {…}".
int counter_in(const std::string& line, const std::string& name);

}  // namespace kiln::faults
