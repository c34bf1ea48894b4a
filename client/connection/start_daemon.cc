#include "client/connection/start_daemon.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/config/directories.h"
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
    for (const char* below : {"", "/bin", "/../bin", "/../libexec/kiln", "/../../libexec/kiln"})
      found.push_back(fmt::format("{}{}/{}", directory, below, name));
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
  int words[2];
  if (pipe2(words, O_CLOEXEC | O_NONBLOCK) != 0)
    return error(StatusCode::unavailable, "pipe: {}", std::strerror(errno));
  UniqueFd heard(words[0]);
  const UniqueFd said(words[1]);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (int fd = 0; fd < 2; ++fd) posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&files, said.get(), 2);
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
  return DaemonLaunch(pid, std::move(heard));
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
  if (std::string why = last_words(); !why.empty()) return {StatusCode::unavailable, std::move(why)};
  return error(StatusCode::unavailable, "kilnd left with {} while starting; kiln daemon logs", WEXITSTATUS(status));
}

/// The last line that the launcher wrote, without its name.
std::string DaemonLaunch::last_words() const {
  std::string text(4'096, '\0');
  const ssize_t size = read(m_words.get(), text.data(), text.size());
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  while (text.ends_with('\n')) text.pop_back();
  text.erase(0, text.rfind('\n') + 1);
  constexpr std::string_view k_name = "kilnd: ";
  if (text.starts_with(k_name)) text.erase(0, k_name.size());
  return text;
}

Status Starter::start_if_nobody_does() {
  if (!m_lock) {
    KILN_RETURN_IF_ERROR(make_private_directory(canonical_path(m_config.cache_directory)));
    KILN_RETURN_IF_ERROR(make_private_directory(m_socket_path.substr(0, m_socket_path.rfind('/'))));
    const std::string path = m_socket_path + ".start";
    UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) return error(StatusCode::unavailable, "{}: {}", path, std::strerror(errno));
    if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) m_lock = std::move(file);
  }
  if (!m_lock) return {};
  if (m_launch) KILN_RETURN_IF_ERROR(m_launch->check());
  if (m_launch && !m_launch->finished()) return {};
  KILN_ASSIGN_OR_RETURN(DaemonLaunch started, DaemonLaunch::start(m_config));
  m_launch.reset();
  m_launch.emplace(std::move(started));
  return {};
}

}  // namespace kiln
