#include "backends/cuda/compile/gemm_packing.h"

#include <algorithm>
#include <utility>

#include "base/ceil_div.h"
#include "base/limits.h"

namespace kiln::cuda {
namespace {

constexpr int64_t k_line_bytes = 128;
// What a device computes element by element in the time that another launch takes.
constexpr int64_t k_least_computed = 1 << 20;
constexpr int64_t k_usual_tile = 128;

/// Where a packed operand lies: for each batch rows of neighbours.
struct Layout {
  int64_t batches = 1, rows = 0, row = 0, pitch = 0;  // elements
  int64_t elements() const { return batches * rows * pitch; }
};

Layout layout_of(const GemmProblem& problem, const GemmOperand& operand) {
  const int64_t line = k_line_bytes / static_cast<int64_t>(size_of(problem.gemm->dtype));
  Layout layout{
      .batches = operand.has_batch ? problem.batches : 1, .rows = problem.gemm->k, .row = operand.outer.extent()};
  if (!operand.outer_is_adjacent) std::swap(layout.rows, layout.row);
  layout.pitch = round_up(layout.row, line);
  return layout;
}

/// Where it is packed to, over the batch and the pieces of `outer` and `k`.
Access packed_access(const GemmProblem& problem, const GemmOperand& operand, const Layout& layout, uint32_t buffer,
                     const GemmDims& outer, const GemmDims& k) {
  const std::vector<int64_t>& batch = problem.gemm->batch;
  Access access{buffer, 0, std::vector<int64_t>(batch.size() + outer.pieces.size() + k.pieces.size()), {}};
  int64_t stride = layout.rows * layout.pitch;
  for (size_t d = batch.size(); d-- > 0; stride *= batch[d]) access.strides[d] = operand.has_batch ? stride : 0;
  for (const GemmDims* dims : {&outer, &k}) {
    int64_t step = (dims == &outer) == operand.outer_is_adjacent ? 1 : layout.pitch;
    for (size_t d = dims->pieces.size(); d-- > 0; step *= dims->pieces[d]) access.strides[dims->first + d] = step;
  }
  return access;
}

/// Makes the last iteration dims, from `border` on, those from `first` on.
void exchange_dims(LoopsSpec& loops, size_t first, size_t border) {
  const auto exchange = [&](std::vector<int64_t>& dims) {
    std::rotate(dims.begin() + static_cast<ptrdiff_t>(first), dims.begin() + static_cast<ptrdiff_t>(border),
                dims.end());
  };
  const size_t before = border - first, behind = loops.extents.size() - border;
  exchange(loops.extents);
  for (Access& access : loops.body.accesses) exchange(access.strides);
  for (ScalarNode& node : loops.body.exprs) {
    if (node.op != ScalarOp::index || node.slot < first) continue;
    node.slot = static_cast<uint32_t>(node.slot < border ? node.slot + behind : node.slot - before);
  }
}

/// Stores each value of the operand to `to`, neighbours last.
LoopsSpec loops_of(const GemmProblem& problem, const GemmOperand& operand, Access to) {
  LoopsSpec loops{.extents = operand.extents, .body = *operand.body};
  if (!operand.has_batch) std::fill_n(loops.extents.begin(), problem.gemm->batch.size(), 1);
  const auto [rows, columns] = operand.rows_and_columns();
  loops.parallel_rank = static_cast<uint32_t>(loops.extents.size());
  const auto slot = static_cast<uint32_t>(loops.body.accesses.size());
  loops.body.accesses.push_back(std::move(to));
  loops.stages = {{.stores = {{operand.value, slot, StoreMode::assign}}}};
  const GemmDims& adjacent = operand.outer_is_adjacent ? operand.outer : operand.k;
  if (&adjacent == rows) exchange_dims(loops, rows->first, columns->first);
  return loops;
}

std::vector<const GemmOperand*> packed_operands(const GemmProblem& problem) {
  std::vector<const GemmOperand*> packed;
  for (const GemmOperand* operand : {&problem.a, &problem.b}) {
    if (!operand->is_tensor) packed.push_back(operand);
  }
  return packed;
}

}  // namespace

GemmPacking packing_of(const GemmProblem& problem) {
  GemmPacking packing{.gemm = *problem.spec};
  auto& gemm = std::get<GemmSpec>(packing.gemm.kernel);
  std::vector<BufferSpec>& buffers = packing.gemm.buffers;
  std::vector<LoopsSpec> loops;
  for (const GemmOperand* operand : packed_operands(problem)) {
    const Layout layout = layout_of(problem, *operand);
    const auto buffer = static_cast<uint32_t>(buffers.size());
    const auto packed = [&](const GemmDims& outer, const GemmDims& k) {
      return packed_access(problem, *operand, layout, buffer, outer, k);
    };
    loops.push_back(loops_of(problem, *operand, packed(operand->outer, operand->k)));
    buffers.push_back({gemm.dtype, layout.elements(), BufferRole::input});
    packing.workspace_parts.push_back(static_cast<uint64_t>(layout.elements()) * size_of(gemm.dtype));
    const bool is_a = operand == &problem.a;
    const size_t rank = gemm.batch.size();
    const GemmDims outer{is_a ? rank : rank + 1, {operand->outer.extent()}}, k{is_a ? rank + 1 : rank, {gemm.k}};
    (is_a ? gemm.a : gemm.b) = {.exprs = {{ScalarOp::load, gemm.dtype}}, .accesses = {packed(outer, k)}};
    (is_a ? gemm.a_value : gemm.b_value) = 0;
    (is_a ? gemm.a_pieces : gemm.b_pieces) = {};
  }
  for (size_t i = 0; i < loops.size(); ++i) {
    packing.loops.push_back({buffers, std::move(loops[i])});
    packing.loops.back().buffers[problem.spec->buffers.size() + i].role = BufferRole::output;
  }
  return packing;
}

bool is_packable(const GemmProblem& problem) {
  const auto packed = packed_operands(problem);
  int64_t elements = 0;
  for (const GemmOperand* operand : packed) elements += layout_of(problem, *operand).elements();
  const auto most = static_cast<int64_t>(limits::k_launch_workspace_bytes / size_of(problem.gemm->dtype));
  return !packed.empty() && problem.gemm->k > 0 && elements <= most &&
         problem.spec->buffers.size() + packed.size() <= limits::k_kernel_buffers;
}

bool packing_pays(const GemmProblem& problem) {
  const auto tiles = [](int64_t extent) { return (extent + k_usual_tile - 1) / k_usual_tile; };
  int64_t computed = 0;
  for (const GemmOperand* operand : packed_operands(problem)) {
    const int64_t across = tiles(operand == &problem.a ? problem.gemm->n : problem.gemm->m);
    computed += problem.batches * operand->outer.extent() * problem.gemm->k * across;
  }
  return computed >= k_least_computed;
}

}  // namespace kiln::cuda
