#pragma once

#include <algorithm>
#include <cstdint>

#include "base/ceil_div.h"

namespace kiln::cpu {

/// `total` cut into `count` pieces that differ by at most one; the bigger ones first.
struct Split {
  int64_t total = 0, count = 1;

  /// The fewest pieces of at most `largest`.
  static Split of(int64_t total, int64_t largest) { return {total, std::max<int64_t>(1, ceil_div(total, largest))}; }
  int64_t small() const { return total / count; }
  int64_t bigger() const { return total % count; }  // how many pieces are one larger
  int64_t largest() const { return small() + (bigger() > 0); }
  int64_t start(int64_t piece) const { return piece * small() + std::min(piece, bigger()); }
  /// Calls body(from, to, size) for the bigger pieces, then for the others, where there are any.
  template <typename Body>
  void for_each_size(const Body& body) const {
    const int64_t border = bigger() * (small() + 1);
    if (border > 0) body(0, border, small() + 1);
    if (border < total) body(border, total, small());
  }
};

}  // namespace kiln::cpu
