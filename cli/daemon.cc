// kiln daemon start | stop | restart | logs.

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/config/directories.h"
#include "base/fd.h"
#include "cli/command.h"
#include "cli/text.h"

namespace kiln::cli {
namespace {

constexpr auto k_poll_interval = std::chrono::milliseconds(10);
constexpr auto k_follow_interval = std::chrono::milliseconds(200);
/// Closing the store after the last build: a flush to a slow disk.
constexpr uint64_t k_close_timeout_ms = 10'000;

/// A daemon holds this lock for as long as it lives (docs/protocol.md).
bool is_held(const std::string& cache_directory) {
  const UniqueFd file(open((cache_directory + "/kilnd.lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  return file && flock(file.get(), LOCK_EX | LOCK_NB) != 0;
}

ExitCode report(const Session& session, std::string_view state, uint64_t pid) {
  if (session.out().json) {
    Json answer{{"state", state}};
    if (pid != 0) answer["pid"] = pid;
    session.out().print_json(std::move(answer));
  } else if (!session.out().quiet) {
    session.out().line(pid == 0 ? std::string(state) : fmt::format("{}, pid {}", state, pid));
  }
  return ExitCode::ok;
}

ExitCode start(Session& session) {
  const bool ran = session.ask({.verb = protocol::Verb::status}, Session::Start::never).ok();
  KILN_CLI_ASSIGN(session, const Json status, session.ask({.verb = protocol::Verb::status}));
  return report(session, ran ? "already running" : "started", status.value("pid", uint64_t{0}));
}

/// For a daemon that holds the cache and cannot be asked (another version, or stuck): the signal its service manager
/// would send. The lock is held, so the pid in its file is a living daemon's.
Status terminate_holder(const std::string& cache_directory) {
  std::ifstream file(cache_directory + "/kilnd.lock");
  pid_t pid = 0;
  if (!(file >> pid) || pid <= 1) return error(StatusCode::unavailable, "who holds {} is not known", cache_directory);
  if (kill(pid, SIGTERM) != 0) {
    return error(StatusCode::permission_denied, "signalling pid {}: {}", pid, std::strerror(errno));
  }
  return {};
}

/// True when a daemon ran. Returns once it has left: the next command meets a closed store or the next daemon.
Expected<bool> stop_and_wait(const Config& configured) {
  Config config = configured;
  config.daemon_use = true;  // KILN_NO_DAEMON keeps programs from using a daemon, not people from stopping it
  config.disable = false;
  Connection connection(config);
  const std::string cache = canonical_path(config.cache_directory);
  const Deadline deadline = deadline_in(config.daemon_drain_timeout_ms + k_close_timeout_ms);
  if (!connection.open(false).ok()) {
    if (!is_held(cache)) return false;
    KILN_RETURN_IF_ERROR(terminate_holder(cache));
  } else {
    const auto answer = connection.command({.verb = protocol::Verb::shutdown}, deadline, false);
    if (!answer.ok() && answer.status().code() != StatusCode::unavailable) return answer.status();
  }
  while (is_held(cache)) {
    if (Clock::now() > deadline) {
      return error(StatusCode::deadline_exceeded, "the daemon did not leave in {} ms",
                   config.daemon_drain_timeout_ms + k_close_timeout_ms);
    }
    std::this_thread::sleep_for(k_poll_interval);
  }
  return true;
}

ExitCode stop(Session& session) {
  KILN_CLI_ASSIGN(session, const bool ran, stop_and_wait(session.config()));
  return report(session, ran ? "stopped" : "not running", 0);
}

ExitCode restart(Session& session) {
  KILN_CLI_ASSIGN(session, [[maybe_unused]] const bool ran, stop_and_wait(session.config()));
  return start(session);
}

Expected<std::string> log_path(const Config& config) {
  KILN_ASSIGN_OR_RETURN(const std::string socket, socket_path(canonical_path(config.cache_directory)));
  return default_state_directory() + "/" + std::filesystem::path(socket).stem().string() + ".log";
}

std::deque<std::string> last_lines(std::istream& file, size_t count) {
  std::deque<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(std::move(line));
    if (lines.size() > count) lines.pop_front();
  }
  return lines;
}

/// Prints what is appended, until interrupted; begins anew when the file was rotated away.
void follow(const std::string& path, std::streamoff at) {
  for (;;) {
    std::ifstream file(path, std::ios::binary);
    file.seekg(0, std::ios::end);
    const std::streamoff size = file ? std::streamoff(file.tellg()) : 0;
    if (size < at) at = 0;
    file.seekg(at);
    std::string fresh(static_cast<size_t>(size - at), '\0');
    if (!fresh.empty() && file.read(fresh.data(), size - at)) {
      std::fwrite(fresh.data(), 1, fresh.size(), stdout);
      std::fflush(stdout);
      at = size;
    }
    std::this_thread::sleep_for(k_follow_interval);
  }
}

ExitCode logs(Session& session, size_t count, bool following) {
  KILN_CLI_ASSIGN(session, const std::string path, log_path(session.config()));
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    session.out().error(error(StatusCode::not_found, "there is no log {}: no daemon has run for {}", path,
                              session.config().cache_directory),
                        "kiln daemon start starts one");
    return ExitCode::failure;
  }
  const auto lines = last_lines(file, count);
  if (session.out().json) {
    session.out().print_json({{"file", path}, {"lines", lines}});
    return ExitCode::ok;
  }
  for (const std::string& line : lines) session.out().line(escaped(line));
  std::fflush(stdout);
  if (following) {
    file.clear();
    follow(path, std::streamoff(file.tellg()));
  }
  return ExitCode::ok;
}

}  // namespace

Action add_daemon(CLI::App& app) {
  app.require_subcommand(1);
  const CLI::App* start_command = app.add_subcommand("start", "Start it; nothing when it runs")->fallthrough();
  const CLI::App* stop_command =
      app.add_subcommand("stop", "Let it finish its builds and leave; nothing when none runs")->fallthrough();
  const CLI::App* restart_command = app.add_subcommand("restart", "Stop it, then start it")->fallthrough();
  CLI::App* logs_command = app.add_subcommand("logs", "What it wrote last")->fallthrough();
  auto count = std::make_shared<size_t>(100);
  auto following = std::make_shared<bool>(false);
  logs_command->add_option("-n,--lines", *count, "How many lines")->type_name("N");
  logs_command->add_flag("-f,--follow", *following, "Go on with what is written from now on");
  return [=](Session& session) {
    if (start_command->parsed()) return start(session);
    if (stop_command->parsed()) return stop(session);
    if (restart_command->parsed()) return restart(session);
    return logs(session, *count, *following);
  };
}

}  // namespace kiln::cli
