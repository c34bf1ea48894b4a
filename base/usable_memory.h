#pragma once

#include <cstdint>
#include <string>

namespace kiln {

/// How much memory this process can still take, in bytes: what the machine has available, and no more than its control group
/// and those around it leave (memory.max and memory.high, or memory.limit_in_bytes, without what is taken already and could
/// not be dropped). 2^64 - 1 where nothing says it. `root` is where /proc and /sys lie.
uint64_t usable_memory(const std::string& root = "");

}  // namespace kiln
