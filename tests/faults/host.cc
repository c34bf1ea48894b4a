#include "tests/faults/host.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "client/connection/connection.h"

extern char** environ;

namespace kiln::faults {

Child::Child(const std::vector<std::string>& command, const std::map<std::string, std::string>& environment)
    : m_start(Clock::now()) {
  int pipe_ends[2];
  EXPECT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  m_output.reset(pipe_ends[0]);
  const UniqueFd theirs(pipe_ends[1]);

  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string variable = *each, name = variable.substr(0, variable.find('='));
    if (!environment.contains(name) && !name.starts_with("KILN_")) variables.push_back(variable);
  }
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  const auto pointers = [](const std::vector<std::string>& strings) {
    std::vector<char*> list;
    for (const std::string& each : strings) list.push_back(const_cast<char*>(each.c_str()));
    list.push_back(nullptr);
    return list;
  };
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, theirs.get(), STDOUT_FILENO);
  EXPECT_EQ(
      posix_spawn(&m_pid, command[0].c_str(), &files, nullptr, pointers(command).data(), pointers(variables).data()),
      0);
  posix_spawn_file_actions_destroy(&files);
}

Child::~Child() {
  if (m_output) (void)wait(0);
}

void Child::kill(int signal) const { ::kill(m_pid, signal); }

Outcome Child::wait(double seconds) {
  Outcome outcome;
  const Deadline deadline = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
  std::string text;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd poll_fd{m_output.get(), POLLIN, 0};
    char buffer[4096];
    const ssize_t got =
        left > 0 && poll(&poll_fd, 1, static_cast<int>(left)) > 0 ? read(m_output.get(), buffer, sizeof buffer) : -1;
    if (got <= 0) {
      outcome.ended = got == 0;
      break;
    }
    text.append(buffer, static_cast<size_t>(got));
  }
  if (!outcome.ended) kill(SIGKILL);
  int status = 0;
  waitpid(m_pid, &status, 0);
  m_output.reset();
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  outcome.seconds = std::chrono::duration<double>(Clock::now() - m_start).count();
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) outcome.lines.push_back(line);
  return outcome;
}

Host::Host() {
  std::string name = std::filesystem::temp_directory_path() / "kiln-faults-XXXXXX";
  m_directory = mkdtemp(name.data());
  std::filesystem::create_directories(m_directory + "/run");
  std::filesystem::permissions(m_directory + "/run", std::filesystem::perms::owner_all);
  m_environment = {{"KILN_CACHE_DIR", cache()},
                   {"XDG_RUNTIME_DIR", m_directory + "/run"},
                   {"XDG_STATE_HOME", m_directory + "/state"},
                   {"KILN_DAEMON_PATH", KILN_KILND},
                   {"KILN_DAEMON_START_TIMEOUT_MS", "20000"},  // a loaded machine is no fault here
                   {"KILN_DAEMON_IDLE_EXIT_MS", "60000"}};
  setenv("XDG_RUNTIME_DIR", m_environment["XDG_RUNTIME_DIR"].c_str(), 1);
}

Host::~Host() {
  stop_daemon();
  std::filesystem::remove_all(m_directory);
}

Config Host::config() const {
  Config config;
  config.cache_directory = cache();
  config.daemon_path = KILN_KILND;
  return config;
}

Child Host::start(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), KILN_CLIENT_PROCESS);
  return {arguments, m_environment};
}

Outcome Host::compile(const std::vector<int>& numbers, double seconds) const {
  std::vector<std::string> arguments{"compile"};
  for (int number : numbers) arguments.push_back(std::to_string(number));
  return start(std::move(arguments)).wait(seconds);
}

pid_t Host::daemon_pid() const {
  Connection connection(config());
  const auto json = connection.command({.verb = protocol::Verb::status}, deadline_in(10'000), false);
  const size_t at = json.ok() ? json->find("\"pid\":") : std::string::npos;
  return at == std::string::npos ? 0 : static_cast<pid_t>(std::stol(json->substr(at + 6)));
}

void Host::kill_daemon() const {
  if (const pid_t pid = daemon_pid(); pid > 0) kill(pid, SIGKILL);
}

void Host::stop_daemon() const {
  Connection connection(config());
  (void)connection.command({.verb = protocol::Verb::shutdown}, deadline_in(5'000), false);
  for (int i = 0; i < 1'000; ++i) {
    const UniqueFd lock(open((cache() + "/kilnd.lock").c_str(), O_RDWR | O_CLOEXEC));
    if (!lock || flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ADD_FAILURE() << "the daemon did not end";
}

std::optional<int> number_that_was_right(const std::string& line) {
  const size_t space = line.find(" ok ");
  if (space == std::string::npos) return std::nullopt;
  return std::stoi(line.substr(0, space));
}

int error_code_in(const std::string& line) {
  const size_t at = line.find(" error ");
  return at == std::string::npos ? 0 : std::stoi(line.substr(at + 7));
}

int counter_in(const std::string& line, const std::string& name) {
  const size_t at = line.find("\"" + name + "\":");
  return at == std::string::npos ? -1 : std::stoi(line.substr(at + name.size() + 3));
}

}  // namespace kiln::faults
