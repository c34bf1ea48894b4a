#include "jit/resolve/size_ranges.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace kiln {

std::vector<SizeRange> ranges_around(std::span<const int64_t> sizes, uint32_t doublings) {
  std::vector<SizeRange> ranges;
  for (const int64_t size : sizes) {
    if (size < 2) {
      ranges.push_back({size, size});
      continue;
    }
    const auto exponent = static_cast<uint32_t>(std::bit_width(static_cast<uint64_t>(size)) - 1);
    const uint32_t begin = exponent / doublings * doublings, end = begin + doublings;
    const int64_t last = end >= 63 ? std::numeric_limits<int64_t>::max() : (int64_t{1} << end) - 1;
    ranges.push_back({std::max<int64_t>(int64_t{1} << begin, 2), last});
  }
  return ranges;
}

}  // namespace kiln
