#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "jit/run/sized_numbers.h"

namespace kiln {

/// The sizes of each symbol that plans are looked at for.
using Sizes = std::vector<int64_t>;

/// Sizes in the ranges: the largest, the smallest, every other corner, then ones drawn at random, the same each time; all there
/// are where these are few. Enough to say a polynomial of fit_numbers(), and some more to hold it against.
std::vector<Sizes> sample_sizes(std::span<const SizeRange> ranges);

}  // namespace kiln
