#pragma once

#include <cstdint>
#include <vector>

#include "jit/build/program_verdict/program_script.h"

namespace kiln {

/// By step: the first step that it repeats, or itself. A step repeats another when it is the same launch of the same plan
/// in another call, stands for equal ops of the client's graph, and finds and makes all that they begin with and end in at
/// the same arguments of its call: what is known of what one computes is known of what the other does.
std::vector<uint32_t> find_repeated_launches(const ProgramScript& script);

}  // namespace kiln
