#include "jit/build/kernels/output_demand.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

namespace kiln {

namespace {

// Work is counted in products of a contraction's tight loop: what finding and comparing an element costs, what a node
// costs for an element in a loop of its own, and when it is asked for one element after another, as the sums of
// reductions are. What a score is made of is computed along a row of keys, and of a bias once for heads that share it.
constexpr double k_element_work = 1'024, k_node_work = 256, k_single_work = 512;
constexpr double k_exponential_work = 128, k_comparison_work = 64, k_score_work = 64;
// What the elements of an output may cost, 130 ms of one core at most. A count, so that a busy machine looks at no less. What
// is made of more pieces, as short vectors make it, has more places where one can be wrong: each piece may cost as much.
constexpr double k_piece_work = 0x1.1p17, k_usual_work = 0x1.5p29, k_most_work = 0x1.1p31;
constexpr double k_most_loops_work = 0x1.5p28, k_least_work = 0x1p25;

/// The iteration whose points are stored to a buffer, and how far apart in it neighbours along each dim lie.
struct StoredIteration {
  std::vector<int64_t> extents;
  std::vector<int64_t> strides;  // empty: the kernel does not store to the buffer
  size_t first_shared = 0;  // what the reference computes for a point of the dims before serves all along the others
};

std::optional<StoredIteration> stored(const LoopsSpec& loops, uint32_t buffer) {
  for (const Stage& stage : loops.stages) {
    for (const Store& store : stage.stores) {
      const Access& access = loops.body.accesses[store.access];
      if (access.buffer == buffer) return StoredIteration{loops.extents, access.strides, loops.parallel_rank};
    }
  }
  return std::nullopt;
}

std::vector<int64_t> iteration_of(const GemmSpec& gemm) {
  std::vector<int64_t> extents = gemm.batch;
  extents.insert(extents.end(), {gemm.m, gemm.n});
  return extents;
}

std::optional<StoredIteration> stored(const GemmSpec& gemm, uint32_t buffer) {
  for (const Store& store : gemm.stores) {
    const Access& access = gemm.epilogue.accesses[store.access];
    if (access.buffer == buffer) return StoredIteration{iteration_of(gemm), access.strides, gemm.batch.size() + 2};
  }
  return std::nullopt;
}

std::optional<StoredIteration> rows_of(const Access& access, uint32_t buffer, std::vector<int64_t> extents) {
  if (access.buffer != buffer) return std::nullopt;
  extents.resize(access.strides.size());
  return StoredIteration{extents, access.strides, 3};  // a query's or a key's features
}

std::optional<StoredIteration> stored(const AttentionSpec& a, uint32_t buffer) {
  if (auto out = rows_of(a.out, buffer, {a.batch, a.heads, a.q_len, a.value_dim})) return out;
  return rows_of(a.lse, buffer, {a.batch, a.heads, a.q_len});
}

std::optional<StoredIteration> stored(const AttentionBackwardSpec& backward, uint32_t buffer) {
  const AttentionSpec& a = backward.forward;
  if (auto q = rows_of(backward.grad_q, buffer, {a.batch, a.heads, a.q_len, a.head_dim})) return q;
  if (auto k = rows_of(backward.grad_k, buffer, {a.batch, a.kv_heads, a.k_len, a.head_dim})) return k;
  return rows_of(backward.grad_v, buffer, {a.batch, a.kv_heads, a.k_len, a.value_dim});
}

std::optional<StoredIteration> stored(const SortSpec& sort, uint32_t buffer) {
  if (sort.order.buffer != buffer) return std::nullopt;
  return StoredIteration{sort.order_extents(), sort.order.strides, sort.extents.size() - 1};
}

std::vector<int64_t> small_tile(const KernelSpec& spec) {
  struct Visitor {
    std::vector<int64_t> operator()(const LoopsSpec& loops) const {
      std::vector<int64_t> tile(loops.extents.size(), 1);
      if (!tile.empty()) tile.back() = 64;
      return tile;
    }
    std::vector<int64_t> operator()(const GemmSpec& gemm) const {
      std::vector<int64_t> tile(gemm.batch.size(), 1);
      tile.insert(tile.end(), {4, 16});
      return tile;
    }
    std::vector<int64_t> operator()(const AttentionSpec&) const { return {1, 1, 8, 16}; }
    std::vector<int64_t> operator()(const AttentionBackwardSpec&) const { return {1, 1, 8, 16}; }
    std::vector<int64_t> operator()(const SortSpec& sort) const {
      std::vector<int64_t> tile(sort.extents.size(), 1);
      tile.back() = 16;
      return tile;
    }
  };
  return std::visit(Visitor{}, spec.kernel);
}

/// The dim of the iteration that a step of `stride` elements goes along: the widest that divides it and reaches so far.
std::optional<size_t> dim_along(const StoredIteration& iteration, int64_t stride) {
  std::optional<size_t> found;
  for (size_t i = 0; i < iteration.strides.size(); ++i) {
    const int64_t step = iteration.strides[i];
    if (step <= 0 || stride % step != 0 || stride >= step * iteration.extents[i]) continue;
    if (!found || step > iteration.strides[*found]) found = i;
  }
  return found;
}

struct Work {
  double row = 0, element = 0;
};

/// `shares_rows`: what the reference computes for one element of a row of the output serves the others.
Work work_of(const KernelSpec& spec, bool shares_rows, double nodes) {
  struct Visitor {
    bool shares_rows;
    double nodes;
    Work operator()(const LoopsSpec& loops) const {
      const double length = static_cast<double>(std::accumulate(loops.extents.begin() + loops.parallel_rank,
                                                                loops.extents.end(), int64_t{1}, std::multiplies<>()));
      if (loops.reductions.empty()) return {0, k_element_work + nodes * k_node_work};
      const double reduced = length * nodes * k_single_work;
      return shares_rows ? Work{reduced, k_element_work + nodes * k_node_work} : Work{0, k_element_work + reduced};
    }
    Work operator()(const GemmSpec& gemm) const {
      return {0, static_cast<double>(gemm.k) + k_element_work + nodes * k_node_work};
    }
    Work operator()(const AttentionSpec& a) const {
      const double score = static_cast<double>(a.score.exprs.size()) * k_score_work + k_exponential_work;
      const double work = static_cast<double>(a.k_len) * (static_cast<double>(a.head_dim + a.value_dim) + score);
      return shares_rows ? Work{work, k_element_work} : Work{0, work};
    }
    Work operator()(const AttentionBackwardSpec& backward) const {
      const Work forward = (*this)(backward.forward);
      return {2.5 * forward.row, forward.element};
    }
    Work operator()(const SortSpec& sort) const {
      const auto count = static_cast<double>(sort.extents.back());
      const double work = count * (nodes * k_single_work + std::log2(count + 1) * k_comparison_work);
      return shares_rows ? Work{work, k_element_work} : Work{0, work};
    }
  };
  return std::visit(Visitor{shares_rows, nodes}, spec.kernel);
}

}  // namespace

std::vector<int64_t> smallest_tile(const KernelSpec& spec, std::span<const Schedule> schedules) {
  std::vector<int64_t> smallest;
  for (const Schedule& schedule : schedules) {
    const std::vector<int64_t> tile = schedule.tile.empty() ? small_tile(spec) : schedule.tile;
    if (smallest.empty()) smallest = tile;
    for (size_t d = 0; d < smallest.size(); ++d) smallest[d] = std::min(smallest[d], tile[d]);
  }
  return smallest.empty() ? small_tile(spec) : smallest;
}

Demand demand_of(const KernelSpec& spec, uint32_t buffer, std::span<const int64_t> dims,
                 std::span<const int64_t> strides, std::span<const int64_t> tile, size_t nodes) {
  const auto iteration =
      std::visit([&](const auto& kernel) { return stored(kernel, buffer); }, spec.kernel).value_or(StoredIteration{});
  Demand demand;
  std::vector<int64_t> tiles;
  std::optional<size_t> before;  // the dim of the iteration that the last dim of the demand goes along
  int64_t step = 0;
  bool shares_rows = false;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) continue;
    // Along a dim of stride 0 (an output that the caller wants expanded) the kernel goes nowhere.
    const std::optional<size_t> along = strides[d] == 0 ? std::nullopt : dim_along(iteration, strides[d]);
    const int64_t steps = along ? strides[d] / iteration.strides[*along] : 1;
    const int64_t extent = along && *along < tile.size() ? std::max<int64_t>(tile[*along] / steps, 1) : 1;
    if (!demand.dims.empty() && along && along == before && step == strides[d] * dims[d]) {
      demand.dims.back() *= dims[d];
      tiles.back() = extent;
    } else {
      demand.dims.push_back(dims[d]);
      tiles.push_back(extent);
    }
    before = along, step = strides[d];
    shares_rows = along && *along >= iteration.first_shared;
  }
  if (!tiles.empty()) demand.tile_columns = tiles.back();
  if (tiles.size() > 1) demand.tile_rows = tiles[tiles.size() - 2];
  const Work work = work_of(spec, shares_rows, static_cast<double>(nodes));
  demand.row_work = work.row;
  demand.element_work = work.element;
  double pieces = 1;
  for (size_t d = 0; d < demand.dims.size(); ++d) {
    pieces *= std::ceil(static_cast<double>(demand.dims[d]) / static_cast<double>(tiles[d]));
  }
  demand.work = std::clamp(pieces * k_piece_work, k_usual_work, k_most_work);
  if (std::holds_alternative<LoopsSpec>(spec.kernel)) {  // no loop but over rows: an element of each tile says enough
    double elements = 1.1, rows = 1;
    for (size_t d = 0; d < demand.dims.size(); ++d) {
      elements *= std::ceil(static_cast<double>(demand.dims[d]) / std::max(static_cast<double>(tiles[d] - 1), 1.0));
      if (d + 1 < demand.dims.size()) rows *= static_cast<double>(demand.dims[d]);
    }
    demand.work = std::clamp(elements * work.element + rows * work.row, k_least_work, k_most_loops_work);
  }
  return demand;
}

}  // namespace kiln
