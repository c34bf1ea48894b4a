#include "client/connection/start_daemon.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/split.h"

extern char** environ;

namespace kiln {
namespace {

bool is_program(const std::string& path) {
  std::error_code failure;
  return std::filesystem::is_regular_file(path, failure) && access(path.c_str(), X_OK) == 0;
}

std::vector<std::string> places(const std::string& name) {
  std::vector<std::string> found;
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&is_program), &info) != 0 && info.dli_fname != nullptr) {
    std::error_code failure;
    auto self = std::filesystem::canonical(info.dli_fname, failure);
    // For the main program dladdr gives argv[0], which need not be a path.
    if (failure) self = std::filesystem::read_symlink("/proc/self/exe", failure);
    const std::string directory = self.parent_path().string();
    for (const char* below : {"", "/bin", "/../bin"}) found.push_back(fmt::format("{}{}/{}", directory, below, name));
  }
  const char* path = std::getenv("PATH");
  for (const std::string& folder : split(path == nullptr ? "" : path, ':'))
    found.push_back(fmt::format("{}/{}", folder, name));
  return found;
}

}  // namespace

Expected<std::string> find_program(const std::string& name, const std::string& configured) {
  if (!configured.empty()) {
    if (is_program(configured)) return configured;
    return error(StatusCode::not_found, "{} is not a program ({})", configured, name);
  }
  for (const std::string& place : places(name)) {
    if (is_program(place)) return place;
  }
  return error(StatusCode::not_found, "{} is neither beside this library nor in PATH", name);
}

Expected<DaemonLaunch> DaemonLaunch::start(const Config& config) {
  KILN_ASSIGN_OR_RETURN(const std::string program, find_program("kilnd", config.daemon_path));

  // The daemon is set up as this client sees the world: every key that is not at its default goes along.
  std::vector<std::string> arguments = {program, "--detach"};
  const Config defaults;
  for (const ConfigKey& key : config_keys()) {
    const std::string text = value_text(config, key);
    if (text == value_text(defaults, key)) continue;
    arguments.insert(arguments.end(), {"--set", fmt::format("{}={}", key.name, text)});
  }
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  // posix_spawn, not fork: the caller may be a training process with many threads and much memory.
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (int fd = 0; fd < 3; ++fd) posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_RDWR, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  pid_t pid = -1;
  const int failure = posix_spawn(&pid, program.c_str(), &files, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (failure != 0) return error(StatusCode::unavailable, "starting {}: {}", program, std::strerror(failure));
  return DaemonLaunch(pid);
}

DaemonLaunch::~DaemonLaunch() {
  if (m_pid < 0) return;
  kill(m_pid, SIGKILL);  // it did not detach in time: no half-started program is left behind
  while (waitpid(m_pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Status DaemonLaunch::check() {
  if (m_pid < 0) return {};
  int status = 0;
  const pid_t reaped = waitpid(m_pid, &status, WNOHANG);
  if (reaped == 0 || (reaped < 0 && errno == EINTR)) return {};
  m_pid = -1;
  if (reaped < 0) return {};  // the host program reaps all its children: only connecting will tell
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (WIFSIGNALED(status))
    return error(StatusCode::unavailable, "kilnd was killed by signal {} while starting", WTERMSIG(status));
  return error(StatusCode::unavailable, "kilnd left with {} while starting; kiln daemon logs says why",
               WEXITSTATUS(status));
}

}  // namespace kiln
