#include "base/process_identity.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <sstream>

namespace kiln {

std::optional<ProcessIdentity> ProcessIdentity::of(pid_t pid) {
  ProcessIdentity identity{.pid = pid};
  struct stat space{};
  if (stat(fmt::format("/proc/{}/ns/pid", pid).c_str(), &space) != 0) return std::nullopt;
  identity.pid_namespace = space.st_ino;
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The second field is the program's name, which may hold anything; it ends with the last parenthesis.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(name_end + 1));
  constexpr int k_fields_between = 19;  // the third field is the next one, the start is the 22nd
  std::string skipped;
  for (int i = 0; i < k_fields_between; ++i) rest >> skipped;
  if (!(rest >> identity.started)) return std::nullopt;
  return identity;
}

std::optional<ProcessIdentity> ProcessIdentity::from_text(std::string_view text) {
  ProcessIdentity identity;
  std::istringstream stream{std::string(text)};
  if (!(stream >> identity.pid >> identity.started >> identity.pid_namespace) || identity.pid <= 1) return std::nullopt;
  return identity;
}

std::string ProcessIdentity::to_text() const { return fmt::format("{} {} {}\n", pid, started, pid_namespace); }

}  // namespace kiln
