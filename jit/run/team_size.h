#pragma once

#include <cstdint>

namespace kiln {

/// How many threads of its OpenMP pool a process may work with where `wanted` would serve. GCC's OpenMP threads do not survive
/// a fork, yet the child's pool counts on them: where a team worked before the fork, the child works on one thread.
uint32_t team_size(uint32_t wanted);

}  // namespace kiln
