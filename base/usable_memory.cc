#include "base/usable_memory.h"

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <optional>
#include <sstream>

#include "base/control_groups.h"

namespace kiln {
namespace {

constexpr uint64_t k_no_limit = std::numeric_limits<uint64_t>::max();

/// The number that a file begins with; nothing where there is none: "max".
std::optional<uint64_t> number_in(const std::string& path) {
  uint64_t number = 0;
  return std::ifstream(path) >> number ? std::optional(number) : std::nullopt;
}

/// The number after `name` in a file of such lines.
std::optional<uint64_t> number_after(const std::string& name, const std::string& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first;
    uint64_t number = 0;
    if (words >> first >> number && first == name) return number;
  }
  return std::nullopt;
}

/// What control group `folder` leaves. Pages of files that nobody has used lately are dropped for whoever needs memory.
uint64_t left_in(const std::string& folder) {
  uint64_t limit = k_no_limit;
  for (const char* name : {"/memory.max", "/memory.high", "/memory.limit_in_bytes"}) {
    limit = std::min(limit, number_in(folder + name).value_or(k_no_limit));
  }
  if (limit == k_no_limit) return k_no_limit;
  const auto current = number_in(folder + "/memory.current");  // of the unified hierarchy alone
  const uint64_t taken = current ? *current : number_in(folder + "/memory.usage_in_bytes").value_or(0);
  const uint64_t idle =
      number_after(current ? "inactive_file" : "total_inactive_file", folder + "/memory.stat").value_or(0);
  const uint64_t held = taken - std::min(idle, taken);
  return limit - std::min(held, limit);
}

}  // namespace

uint64_t usable_memory(const std::string& root) {
  const auto available_kib = number_after("MemAvailable:", root + "/proc/meminfo");
  uint64_t usable = available_kib ? *available_kib << 10 : k_no_limit;
  for (const std::string& folder : control_groups_of("memory", root)) usable = std::min(usable, left_in(folder));
  return usable;
}

}  // namespace kiln
