#include "backends/machine.h"

#include <fmt/format.h>

#include <cinttypes>
#include <cstdio>

namespace kiln {

std::string to_string(const Machine& machine) {
  return fmt::format("cores={} l1={} l2={} l3={} model={}", machine.cores, machine.first_level_bytes,
                     machine.second_level_bytes, machine.third_level_bytes, machine.model);
}

Expected<Machine> parse_machine(const std::string& text) {
  Machine machine;
  int end = 0;
  std::sscanf(text.c_str(), "cores=%" SCNu32 " l1=%" SCNu64 " l2=%" SCNu64 " l3=%" SCNu64 " model=%n", &machine.cores,
              &machine.first_level_bytes, &machine.second_level_bytes, &machine.third_level_bytes, &end);
  machine.model = text.substr(static_cast<size_t>(end));
  if (end == 0 || to_string(machine) != text)
    return invalid_argument("\"{}\" describes no machine", text.substr(0, 200));
  return machine;
}

}  // namespace kiln
