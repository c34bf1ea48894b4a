#include "frontend/ops/loop_nest.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

namespace kiln {

namespace {

/// How many elements a loop moves along which dim.
struct Move {
  size_t dim;
  int64_t by;
};

/// Where a step is along one dim and shorter than it.
std::optional<Move> move_of(int64_t step, const std::vector<int64_t>& extents, const std::vector<int64_t>& strides) {
  for (size_t d = 0; d < extents.size(); ++d) {
    const bool fits = std::abs(step) >= strides[d] && std::abs(step) < strides[d] * extents[d];
    if (fits && step % strides[d] == 0) return Move{d, step / strides[d]};
  }
  return std::nullopt;
}

}  // namespace

LoopNest LoopNest::of_line(int64_t first, int64_t step, int64_t count) {
  LoopNest nest{first, {}};
  if (count != 1) nest.loops.push_back({count, step});
  return nest;
}

bool LoopNest::split_by_dims(const std::vector<int64_t>& extents, const std::vector<int64_t>& strides) {
  std::vector<int64_t> least(extents.size()), most(extents.size());  // coordinates that are reached
  for (size_t d = 0; d < extents.size(); ++d) least[d] = most[d] = extents[d] > 1 ? first / strides[d] % extents[d] : 0;
  std::vector<Loop> split;  // the innermost first
  for (size_t i = loops.size(); i-- > 0;) {
    Loop rest = loops[i];
    while (rest.count > 1) {
      if (rest.step == 0) {
        split.push_back(rest);
        break;
      }
      const std::optional<Move> move = move_of(rest.step, extents, strides);
      if (!move) return false;
      const auto [d, by] = *move;
      const int64_t lap = by > 0 && extents[d] % by == 0 ? extents[d] / by : rest.count;
      const int64_t count = rest.count > lap && rest.count % lap == 0 ? lap : rest.count;
      split.push_back({count, rest.step});
      (by > 0 ? most : least)[d] += by * (count - 1);
      if (least[d] < 0 || most[d] >= extents[d]) return false;
      rest = {rest.count / count, strides[d] * extents[d]};
    }
  }
  std::ranges::reverse(split);
  loops = std::move(split);
  return true;
}

}  // namespace kiln
