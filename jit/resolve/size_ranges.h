#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "jit/run/sized_numbers.h"

namespace kiln {

/// How coarse a grid of ranges is: what is looked for first comes first. A range of the grid begins at a power of two and ends
/// before the one that is so many doublings on.
inline constexpr uint32_t k_range_doublings[] = {4, 2, 1};

/// The ranges of one grid that these sizes lie in. A size below 2 has one of its own: code may be another for it.
std::vector<SizeRange> ranges_around(std::span<const int64_t> sizes, uint32_t doublings);

}  // namespace kiln
