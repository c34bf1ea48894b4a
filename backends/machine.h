#pragma once

#include <cstdint>
#include <string>

#include "base/expected.h"

namespace kiln {

/// What decides which of several right kernels is fastest, besides the target: the processor or device, as far as
/// analytic models look at it. Part of keys of choices (which schedule wins), never of keys of code. 0 and empty: unknown.
struct Machine {
  std::string model;                // its maker's name, or what a default machine stands for
  uint32_t cores = 0;               // of a processor; multiprocessors, Xe cores of a device
  uint64_t first_level_bytes = 0;   // data cache of a core
  uint64_t second_level_bytes = 0;  // cache of a core of a processor; of a device, the one that all cores share
  uint64_t third_level_bytes = 0;   // cache that cores of a processor share
  bool operator==(const Machine&) const = default;
};

/// "cores=132 l1=0 l2=62914560 l3=0 model=NVIDIA H200": equal texts are equal machines.
std::string to_string(const Machine& machine);
/// Errors: invalid_argument for a text that to_string did not make.
Expected<Machine> parse_machine(const std::string& text);

}  // namespace kiln
