#pragma once

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <vector>

namespace kiln {

/// How many single-character insertions, deletions and replacements turn one word into the other. Quadratic:
/// for names.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

/// The candidate closest to `name`, for "did you mean"; empty when none is close enough to be a misspelling.
/// `Names` is any range of things convertible to std::string_view that outlive the result.
template <typename Names>
std::string_view nearest_name(std::string_view name, const Names& candidates) {
  constexpr size_t k_longest = 64;  // a longer word is no misspelling, and the cost is quadratic
  if (name.size() > k_longest) return {};
  std::string_view best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (std::string_view candidate : candidates) {
    if (candidate.size() > k_longest) continue;
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return best;
}

}  // namespace kiln
