#include "backends/simplified_loops.h"

#include <algorithm>

namespace kiln {
namespace {

void drop_dim(LoopsSpec& loops, size_t dim) {
  for (ScalarNode& node : loops.body.exprs) {
    if (node.op != ScalarOp::index || node.slot < dim) continue;
    if (node.slot == dim) {
      node = {ScalarOp::constant, DType::i64};  // its only value: 0
    } else {
      --node.slot;
    }
  }
  for (Access& access : loops.body.accesses) access.strides.erase(access.strides.begin() + static_cast<long>(dim));
  loops.extents.erase(loops.extents.begin() + static_cast<long>(dim));
  if (dim < loops.parallel_rank) --loops.parallel_rank;
}

bool has_index(const LoopsSpec& loops, size_t dim) {
  return std::any_of(loops.body.exprs.begin(), loops.body.exprs.end(),
                     [&](const ScalarNode& node) { return node.op == ScalarOp::index && node.slot == dim; });
}

bool can_merge(const LoopsSpec& loops, size_t dim) {
  if (dim + 1 == loops.parallel_rank || has_index(loops, dim) || has_index(loops, dim + 1)) return false;
  return std::all_of(loops.body.accesses.begin(), loops.body.accesses.end(), [&](const Access& access) {
    return access.strides[dim] == access.strides[dim + 1] * loops.extents[dim + 1];
  });
}

}  // namespace

LoopsSpec simplified(const LoopsSpec& loops) {
  LoopsSpec result = loops;
  for (size_t dim = result.extents.size(); dim-- > 0;) {
    if (result.extents[dim] == 1) drop_dim(result, dim);
  }
  for (size_t dim = result.extents.size(); dim-- > 1;) {
    if (!can_merge(result, dim - 1)) continue;
    result.extents[dim] *= result.extents[dim - 1];
    drop_dim(result, dim - 1);
  }
  return result;
}

}  // namespace kiln
