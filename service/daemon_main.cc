#include "service/daemon_main.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/config/directories.h"
#include "base/printable.h"
#include "jit/resolve/job_heads.h"
#include "service/instance.h"
#include "service/server.h"
#include "service/supervisor.h"

namespace kiln {
namespace {

/// Longer than an old daemon takes to close its store once it has drained; shorter than a client waits.
constexpr uint64_t k_takeover_timeout_ms = 1'800;
constexpr int k_starts = 2;  // the second sets aside what the first has died of

struct Arguments {
  bool detach = false;
  std::optional<std::string> config_file;
  std::vector<std::pair<std::string, std::string>> settings;
};

/// Exit status when the program should end now.
std::optional<int> parse(int argc, char** argv, Arguments& arguments) {
  CLI::App app(
      "kilnd, the daemon of Kiln: builds what clients miss and keeps the cache. Clients start it "
      "themselves.");
  std::string config_file;
  std::vector<std::string> settings;
  app.add_flag("--detach", arguments.detach, "Serve in the background; return when it serves");
  app.add_option("--config", config_file, "Configuration file instead of the user's");
  app.add_option("--set", settings, "key=value, over all other configuration");
  app.set_version_flag("--version", std::string(protocol::build_id()));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem);
  }
  if (!config_file.empty()) arguments.config_file = config_file;
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      std::fprintf(stderr, "kilnd: --set %s is not key=value\n", setting.c_str());
      return 2;
    }
    arguments.settings.emplace_back(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return std::nullopt;
}

/// Workers and device executors read no configuration: they inherit where vendors' libraries are. Before any thread.
void export_library_hints(const Config& config) {
  setenv(environment_name("libraries.path").c_str(), config.libraries_path.c_str(), 1);
  setenv(environment_name("python.path").c_str(), config.python_path.c_str(), 1);
}

/// What the launching process limits itself to is not meant for a daemon that serves all of the user's: its processors,
/// priority and soft limits go as far as this process may change them. Its cgroup, and hard limits, stay.
void leave_callers_limits() {
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof all);
  sched_setaffinity(0, sizeof all, &all);  // those the machine, or the cpuset, does not have are passed over
  const sched_param none{};
  sched_setscheduler(0, SCHED_OTHER, &none);
  setpriority(PRIO_PROCESS, 0, 0);  // from a nicer caller only where RLIMIT_NICE allows
  for (const auto resource : {RLIMIT_AS, RLIMIT_CPU, RLIMIT_DATA, RLIMIT_FSIZE, RLIMIT_NOFILE, RLIMIT_NPROC}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0) continue;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(resource, &limit);
  }
}

/// Tells the launcher how the start went, with a sentence when it went wrong.
void tell_launcher(UniqueFd& ready, char code, std::string_view why) {
  if (!ready) return;
  std::string text(1, code);
  text += why;
  [[maybe_unused]] const ssize_t told = write(ready.get(), text.data(), text.size());
  ready.reset();
}

/// Waits for what the daemon tells and leaves with it. Returns when it died before it told anything.
void launch(int ready) {
  std::string text;
  char buffer[4'096];
  for (ssize_t got = 0; (got = read(ready, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(got));
  if (text.empty()) return;
  if (text.size() > 1) std::fprintf(stderr, "kilnd: %s\n", text.c_str() + 1);
  std::fflush(stderr);
  std::_Exit(text[0]);
}

/// Opens the file of last words to append, with nobody else's file in its place. Begun anew when it has grown.
UniqueFd open_last_words(const std::string& path, uint64_t max_bytes) {
  UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
  struct stat facts{};
  if (!file || fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_nlink != 1) return {};
  if (static_cast<uint64_t>(facts.st_size) > max_bytes && ftruncate(file.get(), 0) != 0) return {};
  return file;
}

/// Leaves the caller's session, directory, descriptors and limits. Returns in the daemon, with the descriptor over
/// which it tells how its start went; the launcher waits for that and exits. Before any thread.
UniqueFd detach(const std::string& last_words, uint64_t max_bytes) {
  // The launching process may be any program, with any descriptors open: none of them is ours to keep.
  close_range(3, ~0U, 0);
  int ready[2] = {-1, -1};
  bool is_daemon = false;
  for (int attempt = 0; attempt < k_starts && !is_daemon; ++attempt) {
    if (pipe2(ready, O_CLOEXEC) != 0) std::exit(1);
    is_daemon = fork() == 0;
    close(ready[is_daemon ? 0 : 1]);
    if (!is_daemon) launch(ready[0]);
  }
  if (!is_daemon) {
    std::fprintf(stderr, "kilnd: it died while it started; kiln daemon logs\n");
    std::_Exit(1);
  }
  setsid();
  leave_callers_limits();
  if (const int null = open("/dev/null", O_RDWR | O_CLOEXEC); null >= 0) {
    dup2(null, 0);
    dup2(null, 1);
    dup2(null, 2);
  }
  // Last words of libraries (asserts, the compiler's fatal errors) go to a file of their own.
  if (const UniqueFd log = open_last_words(last_words, max_bytes); log) dup2(log.get(), 2);
  if (chdir("/") != 0) std::_Exit(1);
  return UniqueFd(ready[1]);
}

/// What is logged, on one line: names from graphs and words of servers are in it, and forge no lines.
class EscapedMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    const std::string text = escaped({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<EscapedMessage>(); }
};

void open_log(const Config& config, const std::string& path, bool also_terminal) {
  std::vector<spdlog::sink_ptr> sinks;
  try {
    sinks.push_back(
        std::make_shared<spdlog::sinks::rotating_file_sink_mt>(path, config.log_file_max_bytes, config.log_files));
  } catch (const spdlog::spdlog_ex&) {
    also_terminal = true;  // a daemon without a log file still serves
  }
  if (also_terminal) sinks.push_back(std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  auto logger = std::make_shared<spdlog::logger>("kilnd", sinks.begin(), sinks.end());
  logger->set_level(spdlog::level::from_str(config.log_level));
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<EscapedMessage>('v').set_pattern("%Y-%m-%dT%H:%M:%S.%e %P %l %v");
  logger->set_formatter(std::move(formatter));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

/// The worker's program: what the configuration names, else the one beside this program.
std::string worker_program(const Config& config) {
  if (!config.worker_path.empty()) return config.worker_path;
  std::error_code failure;
  return std::filesystem::read_symlink("/proc/self/exe", failure).replace_filename("kiln-worker").string();
}

Status serve(const Config& config, const std::string& socket, const StoreFactory& open_store, Supervisor& supervisor,
             UniqueFd& ready) {
  UniqueFd handed_over = supervisor.take_socket();
  KILN_ASSIGN_OR_RETURN(const Instance instance,
                        Instance::acquire(config.cache_directory, socket, k_takeover_timeout_ms, bool(handed_over)));
  KILN_ASSIGN_OR_RETURN(auto store, open_store(config));
  JobHeads::forget_old(config.cache_directory);
  {
    Server server({config, socket, worker_program(config), [&instance] { return instance.is_in_force(); }},
                  std::move(store));
    KILN_RETURN_IF_ERROR(server.listen(std::move(handed_over)));
    spdlog::info("serving {} at {}", config.cache_directory, socket);
    tell_launcher(ready, 0, "");
    supervisor.tell_ready();
    server.run();
    // The store knows its files by their paths, which are another's by now: closing it would write and delete there.
    if (!instance.is_in_force()) std::_Exit(0);
  }
  spdlog::info("left");
  return {};
}

}  // namespace

int daemon_main(int argc, char** argv, const StoreFactory& open_store) {
  Arguments arguments;
  if (const auto status = parse(argc, argv, arguments)) return *status;
  umask(077);
  signal(SIGPIPE, SIG_IGN);
  // Whoever supervises a daemon that detaches supervises the program that launches it.
  auto supervisor = arguments.detach ? Expected<Supervisor>(Supervisor()) : Supervisor::from_environment();
  if (!supervisor) {
    std::fprintf(stderr, "kilnd: %s\n", supervisor.status().message().c_str());
    return 1;
  }
  auto loaded = load_config(ConfigSources::from_process(arguments.settings, arguments.config_file));
  if (!loaded) {
    std::fprintf(stderr, "kilnd: %s\n", loaded.status().message().c_str());
    return 2;
  }
  Config config = std::move(loaded->values);
  export_library_hints(config);
  config.cache_directory = canonical_path(config.cache_directory);
  const auto socket = socket_path(config.cache_directory);
  Status status = socket.status();
  if (status.ok()) status = make_private_directory(config.cache_directory);
  if (status.ok()) status = make_private_directory(socket->substr(0, socket->rfind('/')));
  if (!status.ok()) {
    std::fprintf(stderr, "kilnd: %s\n", status.message().c_str());
    return 1;
  }
  // A daemon that cannot keep a log still serves.
  std::string state = default_state_directory();
  if (!make_private_directory(state).ok()) state = fallback_state_directory();
  if (!make_private_directory(state).ok()) state = "/dev/null";
  const std::string log = log_path(state, config.cache_directory);
  UniqueFd ready;
  if (arguments.detach) ready = detach(log + ".stderr", config.log_file_max_bytes);
  open_log(config, log, !arguments.detach);

  status = serve(config, *socket, open_store, *supervisor, ready);
  const bool served = status.ok() || status.code() == StatusCode::already_exists;
  if (!status.ok()) spdlog::log(served ? spdlog::level::info : spdlog::level::err, "{}", status.message());
  tell_launcher(ready, served ? 0 : 1, served ? "" : status.message());
  return served ? 0 : 1;
}

}  // namespace kiln
