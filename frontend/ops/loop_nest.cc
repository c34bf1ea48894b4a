#include "frontend/ops/loop_nest.h"

#include "frontend/kernel/affine.h"

namespace kiln {

LoopNest LoopNest::of_line(int64_t first, int64_t step, int64_t count) {
  LoopNest nest{first, {}};
  if (count != 1) nest.loops.push_back({count, step});
  return nest;
}

bool LoopNest::split_by_dims(std::span<const int64_t> extents) {
  for (;;) {
    Affine flat{first, {}};
    DimTable counts;
    for (uint32_t i = 0; i < loops.size(); ++i) {
      counts.iteration.push_back(loops[i].count);
      if (loops[i].step != 0) flat.terms.emplace_back(i, loops[i].step);
    }
    const Unflattened coordinates = unflatten(std::move(flat), extents, counts);
    if (coordinates.index || !coordinates.split) return coordinates.index.has_value();
    const auto [loop, inner] = *coordinates.split;
    const auto [count, step] = loops[loop];
    loops[loop] = {inner, step};
    loops.insert(loops.begin() + loop, {count / inner, step * inner});
  }
}

}  // namespace kiln
