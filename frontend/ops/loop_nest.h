#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kiln {

/// Elements of a value by their flat index: first + Σ i * step over the loops, each i below its count, the last loop
/// innermost. Internal to frontend/ops.
struct LoopNest {
  struct Loop {
    int64_t count, step;
  };
  int64_t first = 0;
  std::vector<Loop> loops;  // none is of one count

  /// `count` elements, `step` apart.
  static LoopNest of_line(int64_t first, int64_t step, int64_t count);

  /// Splits loops until the coordinates in a value of these extents are affine in them, so that an affine function of the
  /// coordinates turns each step into another. False: there is no such split.
  bool split_by_dims(std::span<const int64_t> extents);

  /// The same elements where `address(flat index)` says: an affine function of the coordinates that were split by.
  template <typename Address>
  void rename(const Address& address) {
    const int64_t renamed = address(first);
    for (Loop& loop : loops) loop.step = address(first + loop.step) - renamed;
    first = renamed;
  }

  /// Calls body(first index, step, count) for each run of the innermost loop.
  template <typename Body>
  void for_each_run(const Body& body) const {
    run_from(0, first, body);
  }

 private:
  template <typename Body>
  void run_from(size_t depth, int64_t index, const Body& body) const {
    if (loops.empty()) return body(index, 0, 1);
    const Loop& loop = loops[depth];
    if (depth + 1 == loops.size()) return body(index, loop.step, loop.count);
    for (int64_t i = 0; i < loop.count; ++i) run_from(depth + 1, index + i * loop.step, body);
  }
};

}  // namespace kiln
