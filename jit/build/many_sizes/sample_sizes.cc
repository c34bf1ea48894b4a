#include "jit/build/many_sizes/sample_sizes.h"

#include <algorithm>
#include <random>

#include "jit/build/many_sizes/fit_numbers.h"

namespace kiln {

namespace {

constexpr size_t k_held_out = 4;  // beyond what a polynomial needs

/// At most `most`, one more than which is as good as infinity.
size_t how_many(std::span<const SizeRange> ranges, size_t most) {
  size_t count = 1;
  for (const SizeRange& range : ranges) {
    const auto width = static_cast<uint64_t>(range.last - range.first) + 1;
    if (width > most) return most + 1;
    count *= width;
    if (count > most) return most + 1;
  }
  return count;
}

void add(std::vector<Sizes>& samples, Sizes sizes) {
  if (std::ranges::find(samples, sizes) == samples.end()) samples.push_back(std::move(sizes));
}

}  // namespace

std::vector<Sizes> sample_sizes(std::span<const SizeRange> ranges) {
  std::vector<Sizes> samples;
  const size_t corners = size_t{1} << ranges.size();
  const auto add_corner = [&](size_t corner) {
    Sizes sizes;
    for (size_t s = 0; s < ranges.size(); ++s)
      sizes.push_back((corner >> s & 1) != 0 ? ranges[s].last : ranges[s].first);
    add(samples, std::move(sizes));
  };
  add_corner(corners - 1);
  for (size_t corner = 0; corner < corners; ++corner) add_corner(corner);
  const size_t wanted = samples.size() + sum_terms(ranges.size()) + k_held_out;
  const size_t enough = std::min(wanted, how_many(ranges, wanted));
  std::mt19937_64 draw(0);
  while (samples.size() < enough) {
    Sizes sizes;
    for (const SizeRange& range : ranges)
      sizes.push_back(std::uniform_int_distribution<int64_t>(range.first, range.last)(draw));
    add(samples, std::move(sizes));
  }
  return samples;
}

}  // namespace kiln
