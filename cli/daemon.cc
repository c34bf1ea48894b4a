// kiln daemon start | stop | restart | logs.

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/config/directories.h"
#include "base/fd.h"
#include "base/printable.h"
#include "base/process_identity.h"
#include "cli/command.h"

namespace kiln::cli {
namespace {

constexpr auto k_poll_interval = std::chrono::milliseconds(10);
constexpr auto k_follow_interval = std::chrono::milliseconds(200);
/// Closing the store after the last build: a flush to a slow disk.
constexpr uint64_t k_close_timeout_ms = 10'000;
/// A daemon that says nothing, and takes no notice of SIGTERM for so long, hangs. Killing it loses nothing that it answered.
constexpr uint64_t k_mute_timeout_ms = 5'000;

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
/// would send. Only to the very process that wrote the lock: its number may be another's here, in another container or
/// after it died.
Status signal_holder(const std::string& cache_directory, int signal) {
  std::ifstream file(cache_directory + "/kilnd.lock");
  const auto holder = ProcessIdentity::from_text(std::string(std::istreambuf_iterator<char>(file), {}));
  if (!holder) return error(StatusCode::unavailable, "who holds {} is not known", cache_directory);
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, holder->pid, 0)));
  if (!process || ProcessIdentity::of(holder->pid) != holder) {
    return error(StatusCode::failed_precondition, "{} is held by process {} of another container; stop it there",
                 cache_directory, holder->pid);
  }
  if (syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0) != 0) {
    return error(StatusCode::permission_denied, "signalling process {}: {}", holder->pid, std::strerror(errno));
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
  const Status opened = connection.open(false);
  Deadline kill_at = k_no_deadline;
  if (!opened.ok()) {
    if (!is_held(cache)) return false;
    KILN_RETURN_IF_ERROR(signal_holder(cache, SIGTERM));
    if (opened.code() == StatusCode::unavailable) kill_at = deadline_in(k_mute_timeout_ms);
  } else {
    const auto answer = connection.command({.verb = protocol::Verb::shutdown}, deadline, false);
    if (!answer.ok() && answer.status().code() != StatusCode::unavailable) return answer.status();
  }
  while (is_held(cache)) {
    if (Clock::now() > deadline) {
      return error(StatusCode::deadline_exceeded, "the daemon did not leave in {} ms",
                   config.daemon_drain_timeout_ms + k_close_timeout_ms);
    }
    if (Clock::now() > kill_at) {
      KILN_RETURN_IF_ERROR(signal_holder(cache, SIGKILL));
      kill_at = k_no_deadline;
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

/// Where the daemon could write it.
std::string log_of(const Config& config) {
  const std::string usual = log_path(default_state_directory(), config.cache_directory);
  return access(usual.c_str(), R_OK) == 0 ? usual : log_path(fallback_state_directory(), config.cache_directory);
}

/// A file that is appended to and rotated away: the lines of each file that has the name, each once.
class Log {
 public:
  explicit Log(std::string path) : m_path(std::move(path)), m_file(open_it()) {}

  bool is_open() const { return static_cast<bool>(m_file); }
  /// Calls with the lines that were ended since the last time.
  void read_on(const std::function<void(std::string)>& use) {
    read_file(use);
    struct stat ours{}, there{};
    if (!m_file || fstat(m_file.get(), &ours) != 0 || stat(m_path.c_str(), &there) != 0) return;
    if (ours.st_ino == there.st_ino && ours.st_dev == there.st_dev) return;
    read_file(use);  // what came before it was rotated away
    m_file = open_it();
    m_at = 0;
    read_file(use);
  }
  /// A line that is not ended yet.
  const std::string& rest() const { return m_rest; }

 private:
  UniqueFd open_it() const { return UniqueFd(open(m_path.c_str(), O_RDONLY | O_CLOEXEC)); }

  void read_file(const std::function<void(std::string)>& use) {
    char buffer[65'536];
    for (ssize_t got = 0; (got = pread(m_file.get(), buffer, sizeof buffer, m_at)) > 0;) {
      m_at += got;
      m_rest.append(buffer, static_cast<size_t>(got));
      for (size_t end = 0; (end = m_rest.find('\n')) != std::string::npos; m_rest.erase(0, end + 1)) {
        use(m_rest.substr(0, end));
      }
    }
  }

  const std::string m_path;
  UniqueFd m_file;
  off_t m_at = 0;
  std::string m_rest;
};

ExitCode logs(Session& session, size_t count, bool following) {
  const std::string path = log_of(session.config());
  Log log(path);
  if (!log.is_open()) {
    session.out().error(error(StatusCode::not_found, "there is no log {}: no daemon has run for {}", path,
                              session.config().cache_directory),
                        "kiln daemon start starts one");
    return ExitCode::failure;
  }
  std::deque<std::string> lines;
  const auto keep_last = [&](std::string line) {
    lines.push_back(std::move(line));
    if (lines.size() > count) lines.pop_front();
  };
  log.read_on(keep_last);
  if (!following && !log.rest().empty()) keep_last(log.rest());
  if (session.out().json) {
    session.out().print_json({{"file", path}, {"lines", lines}});
    return ExitCode::ok;
  }
  for (const std::string& line : lines) session.out().line(escaped(line));
  if (!following) return ExitCode::ok;
  for (;;) {  // until interrupted
    std::fflush(stdout);
    std::this_thread::sleep_for(k_follow_interval);
    log.read_on([&](const std::string& line) { session.out().line(escaped(line)); });
  }
}

}  // namespace

Action add_daemon(CommandLine& line) {
  const CommandLine start_line = line.command("start", "Start it; nothing when it runs");
  const CommandLine stop_line = line.command("stop", "Let it finish its builds and leave; nothing when none runs");
  const CommandLine restart_line = line.command("restart", "Stop it, then start it");
  CommandLine logs_line = line.command("logs", "What it wrote last");
  auto count = std::make_shared<size_t>(100);
  auto following = std::make_shared<bool>(false);
  logs_line.option("-n,--lines", *count, "How many lines", {.name = "N"});
  logs_line.flag("-f,--follow", *following, "Go on with what is written from now on");
  return [=](Session& session) {
    if (start_line.is_chosen()) return start(session);
    if (stop_line.is_chosen()) return stop(session);
    if (restart_line.is_chosen()) return restart(session);
    return logs(session, *count, *following);
  };
}

}  // namespace kiln::cli
