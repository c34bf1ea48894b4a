#include "base/fault.h"

#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "base/split.h"

namespace kiln {
namespace {

struct Fault {
  bool kills = false;
  int at = 1;
};

/// What cannot be read is no fault: a test that waits for it fails.
std::map<std::string, Fault, std::less<>> faults_of_environment() {
  std::map<std::string, Fault, std::less<>> faults;
  const char* text = std::getenv("KILN_FAULTS");
  for (const std::string& one : split(text == nullptr ? "" : text, ',')) {
    const size_t equals = one.find('=');
    if (equals == std::string::npos) continue;
    std::string_view action = std::string_view(one).substr(equals + 1);
    Fault fault;
    if (const size_t sign = action.find('@'); sign != std::string_view::npos) {
      std::from_chars(action.data() + sign + 1, action.data() + action.size(), fault.at);
      action = action.substr(0, sign);
    }
    fault.kills = action == "kill";
    if (fault.kills || action == "error") faults.emplace(one.substr(0, equals), fault);
  }
  return faults;
}

}  // namespace

Status pass_fault_point(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, Fault, std::less<>> faults = faults_of_environment();
  const std::scoped_lock lock(mutex);
  const auto found = faults.find(name);
  if (found == faults.end() || --found->second.at != 0) return {};
  if (found->second.kills) kill(getpid(), SIGKILL);
  return error(StatusCode::internal, "fault point {}", name);
}

}  // namespace kiln
