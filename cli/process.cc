#include "cli/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fd.h"
#include "base/memfd.h"
#include "client/connection/start_daemon.h"

extern char** environ;

namespace kiln::cli {
namespace {

constexpr size_t k_output_bytes = size_t{64} << 20;

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    bool replaced = false;
    for (const auto& [other, value] : variables) replaced = replaced || name == other;
    if (!replaced) result.emplace_back(text);
  }
  for (const auto& [name, value] : variables) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

int wait_for_exit(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// Starts a program with `output` for its stdout and, unless it is negative, `errors` for its stderr.
Expected<pid_t> spawn(const std::vector<std::string>& arguments,
                      const std::vector<std::pair<std::string, std::string>>& variables, int output, int errors) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  if (errors >= 0) posix_spawn_file_actions_adddup2(&files, errors, STDERR_FILENO);
  std::vector<std::string> argument_copies = arguments;
  std::vector<std::string> environment = environment_with(variables);
  pid_t pid = -1;
  const int failure = posix_spawnp(&pid, arguments[0].c_str(), &files, nullptr, pointers(argument_copies).data(),
                                   pointers(environment).data());
  posix_spawn_file_actions_destroy(&files);
  if (failure != 0) return error(StatusCode::unavailable, "starting {}: {}", arguments[0], std::strerror(failure));
  return pid;
}

/// Keeps k_output_bytes or a block more, and reads on all the same: who writes does not wait for ever.
std::string read_to_end(int fd) {
  std::string text;
  char block[4'096];
  for (;;) {
    const ssize_t got = read(fd, block, sizeof block);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    if (text.size() < k_output_bytes) text.append(block, static_cast<size_t>(got));
  }
}

}  // namespace

Expected<std::string> find_python(const Config& config) {
  if (!config.python_path.empty()) return find_program("python", config.python_path);
  auto python = find_program("python3", "");
  if (!python.ok()) python = find_program("python", "");
  if (!python.ok()) {
    return error(StatusCode::not_found, "neither python3 nor python is in PATH; python.path names one");
  }
  return python;
}

Expected<ProcessResult> run_process(const std::vector<std::string>& arguments,
                                    const std::vector<std::pair<std::string, std::string>>& variables, Errors errors) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return error(StatusCode::unavailable, "pipe: {}", std::strerror(errno));
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  UniqueFd kept_errors;
  if (errors == Errors::kept) {
    KILN_ASSIGN_OR_RETURN(kept_errors, make_memfd("errors"));
  }
  KILN_ASSIGN_OR_RETURN(const pid_t pid, spawn(arguments, variables, write_end.get(), kept_errors.get()));
  write_end.reset();

  ProcessResult result;
  result.output = read_to_end(read_end.get());
  result.exit_status = wait_for_exit(pid);
  if (kept_errors && lseek(kept_errors.get(), 0, SEEK_SET) == 0) result.errors = read_to_end(kept_errors.get());
  if (result.output.size() >= k_output_bytes) {
    return error(StatusCode::resource_exhausted, "{} wrote more than {} bytes", arguments[0], k_output_bytes);
  }
  return result;
}

}  // namespace kiln::cli
