/// Sorting: the operand is a tensor with strides, whatever views led to it, or lies in memory of its own.
#include <algorithm>

#include "frontend/fuse/iteration.h"
#include "frontend/fuse/kernels.h"
#include "frontend/ops/attributes.h"

namespace kiln {

namespace {

/// The dim at `dim` becomes the last.
std::vector<int64_t> with_last(std::vector<int64_t> of_dims, size_t dim) {
  std::rotate(of_dims.begin() + static_cast<ptrdiff_t>(dim), of_dims.begin() + static_cast<ptrdiff_t>(dim) + 1,
              of_dims.end());
  return of_dims;
}

/// A dim of extent 1 has stride 0, so that equal kernels have equal specs.
std::vector<int64_t> ones_to_zero(std::vector<int64_t> strides, const std::vector<int64_t>& extents) {
  for (size_t d = 0; d < strides.size(); ++d) {
    if (extents[d] == 1) strides[d] = 0;
  }
  return strides;
}

}  // namespace

LoweringResult lower_sort(const FusionState& state, GroupId group, NodeId id) {
  const Node& node = state.facts->graph->node(id);
  const ValueId operand = node.operands[0], result = node.results[0];
  const auto dim = static_cast<size_t>(integer_of(node.attributes, "dim"));
  const std::vector<int64_t>& extents = state.facts->extents[operand];
  KernelBuffers buffers;
  const IterationSpace space(extents);
  BodyLowering lowering(state, group, buffers, space.extents());
  ExprId value = lowering.emit(operand, space.index());
  if (value == k_no_expr) return lowering_failed(operand, lowering.failure().why);
  Body& body = lowering.body();
  if (body.exprs[value].op == ScalarOp::cast) value = body.exprs[value].operands[0];  // of a half that was widened
  const ScalarNode load = body.exprs[value];
  if (load.op != ScalarOp::load || load.dtype != state.facts->graph->type(operand).dtype ||
      load.operands[0] != k_no_expr || !merge_pieces(body, space) || !body.accesses[load.slot].indirect.empty()) {
    return lowering_failed(operand, "what is sorted is not a tensor with strides");
  }
  SortSpec sort{.extents = with_last(extents, dim),
                .descending = boolean_of(node.attributes, "descending"),
                .x = body.accesses[load.slot]};
  if (has_attribute(node.attributes, "k")) {
    sort.topk = TopK{state.facts->extents[result][dim], boolean_of(node.attributes, "sorted")};
  }
  sort.x.strides = with_last(sort.x.strides, dim);
  const uint32_t order = buffers.slot(result, 0, BufferRole::output);
  sort.order = {order, 0, with_last(ones_to_zero(state.strides_of(result), state.facts->extents[result]), dim), {}};
  KernelSpec spec{buffer_specs(state, buffers), std::move(sort)};
  if (const Status status = validate(spec); !status.ok()) return lowering_failed(k_none, status.message());
  return {{{std::move(spec), buffers.entries}}, std::nullopt};
}

}  // namespace kiln
