// Renamings of indices. A graph has no layout, so a view computes nothing and remembers nothing.

#include <algorithm>

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"
#include "frontend/ops/index_math.h"
#include "frontend/ops/rules.h"

namespace kiln {

namespace {

using Values = std::span<const ValueId>;
using Gradients = Expected<std::vector<ValueId>>;

double view_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  return e.at(node.operands[0], node.op->source == nullptr ? index : node.op->source(e, node, index));
}

// --- reshape -----------------------------------------------------------------------------------------------------------

Expected<Types> infer_reshape(const OpContext& context) {
  const TensorType& x = *context.operands[0];
  const Shape& shape = shape_of(context.attributes, "shape");
  KILN_RETURN_IF_ERROR(expect_equal(context, element_count(shape), element_count(x.shape), 0,
                                    fmt::format("{} with elements", TensorType{x.dtype, shape, {}}.to_string())));
  return Types{{x.dtype, shape, {}}};
}

Gradients reshape_gradient(GraphBuilder& b, const Node&, Values in, Values, Values g) {
  return b.finish({b.reshape(g[0], b.shape(in[0]))});
}

// --- permute -----------------------------------------------------------------------------------------------------------

Expected<Types> infer_permute(const OpContext& context) {
  const TensorType& x = *context.operands[0];
  const std::vector<int64_t>& dims = integers_of(context.attributes, "dims");
  KILN_RETURN_IF_ERROR(check_dims(context, "dims", x.rank()));
  if (dims.size() != x.rank()) {
    return invalid_argument("permute: attribute 'dims' has {} dims, expected {}", dims.size(), x.rank());
  }
  TensorType result{x.dtype, {}, {}};
  for (const int64_t dim : dims) result.shape.push_back(x.shape[static_cast<size_t>(dim)]);
  return Types{std::move(result)};
}

int64_t permute_source(const ElementEvaluator& e, const Node& node, int64_t index) {
  const std::vector<int64_t>& dims = integers_of(node.attributes, "dims");
  int64_t address = 0;
  for (size_t d = 0; d < dims.size(); ++d) {
    address += coordinate(e, node.results[0], index, d) * e.strides(node.operands[0])[static_cast<size_t>(dims[d])];
  }
  return address;
}

Gradients permute_gradient(GraphBuilder& b, const Node& node, Values, Values, Values g) {
  const std::vector<int64_t>& dims = integers_of(node.attributes, "dims");
  std::vector<int64_t> inverse(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) inverse[static_cast<size_t>(dims[d])] = static_cast<int64_t>(d);
  return b.finish({b.permute(g[0], std::move(inverse))});
}

// --- expand ------------------------------------------------------------------------------------------------------------

Expected<Types> infer_expand(const OpContext& context) {
  const TensorType& x = *context.operands[0];
  const Shape& shape = shape_of(context.attributes, "shape");
  const auto does_not_fit = [&] {
    return operand_error(context, 0, "what broadcasts to " + TensorType{x.dtype, shape, {}}.to_string());
  };
  if (shape.size() < x.rank()) return does_not_fit();
  for (size_t d = 0; d < x.rank(); ++d) {
    const Dim& from = x.shape[d];
    const Dim& to = shape[shape.size() - x.rank() + d];
    if (from == Dim(1)) continue;
    KILN_RETURN_IF_ERROR(expect_equal(context, to, from, 0, fmt::format("dim {} of extent", d)));
  }
  return Types{{x.dtype, shape, {}}};
}

int64_t expand_source(const ElementEvaluator& e, const Node& node, int64_t index) {
  return e.broadcast_index(node.operands[0], node.results[0], index);
}

Gradients expand_gradient(GraphBuilder& b, const Node&, Values in, Values, Values g) {
  return b.finish({b.sum_to(g[0], Shape(b.shape(in[0])))});
}

// --- slice -------------------------------------------------------------------------------------------------------------

int64_t slice_source(const ElementEvaluator& e, const Node& node, int64_t index) {
  const auto dim = static_cast<size_t>(integer_of(node.attributes, "dim"));
  const int64_t inner = e.strides(node.results[0])[dim];
  const Split split = split_at(index, e.extents(node.results[0])[dim], inner);
  const int64_t at = integer_of(node.attributes, "start") + split.at * integer_of(node.attributes, "step");
  return (split.outer * e.extents(node.operands[0])[dim] + at) * inner + split.rest;
}

Expected<Types> infer_slice(const OpContext& context) {
  const TensorType& x = *context.operands[0];
  KILN_ASSIGN_OR_RETURN(const size_t dim, dim_attribute(context, "dim", x.rank()));
  KILN_ASSIGN_OR_RETURN(Dim length, slice_length(context, x.shape[dim]));
  TensorType result{x.dtype, x.shape, {}};
  result.shape[dim] = std::move(length);
  return Types{std::move(result)};
}

Gradients slice_gradient(GraphBuilder& b, const Node& node, Values in, Values, Values g) {
  const ValueId zeros = b.full(b.shape(in[0]), 0, b.dtype(in[0]));
  return b.finish({b.op("slice_scatter", {zeros, g[0]}, node.attributes)});
}

// --- flip --------------------------------------------------------------------------------------------------------------

Expected<Types> infer_flip(const OpContext& context) {
  KILN_RETURN_IF_ERROR(check_dims(context, "dims", context.operands[0]->rank()));
  return infer_same(context);
}

int64_t flip_source(const ElementEvaluator& e, const Node& node, int64_t index) {
  int64_t address = index;
  for (const int64_t d : integers_of(node.attributes, "dims")) {
    const auto dim = static_cast<size_t>(d);
    const int64_t mirrored = e.extents(node.results[0])[dim] - 1 - 2 * coordinate(e, node.results[0], index, dim);
    address += mirrored * e.strides(node.results[0])[dim];
  }
  return address;
}

Gradients flip_gradient(GraphBuilder& b, const Node& node, Values, Values, Values g) {
  return b.finish({b.op("flip", {g[0]}, node.attributes)});
}

}  // namespace

std::span<const OpDef> view_ops() {
  const auto view = [](std::string_view name, std::vector<AttributeDef> attributes, decltype(OpDef::infer) infer,
                       decltype(OpDef::source) source, decltype(OpDef::gradient) gradient) {
    return OpDef{.name = name,
                 .kind = OpKind::view,
                 .operands = {{"x"}},
                 .attributes = std::move(attributes),
                 .infer = infer,
                 .element = view_element,
                 .source = source,
                 .gradient = gradient};
  };
  static const std::vector<OpDef> rows = {
      view("reshape", {required("shape", AttributeType::shape)}, infer_reshape, nullptr, reshape_gradient),
      view("permute", {required("dims", AttributeType::integers)}, infer_permute, permute_source, permute_gradient),
      view("expand", {required("shape", AttributeType::shape)}, infer_expand, expand_source, expand_gradient),
      view("slice", slice_attributes(), infer_slice, slice_source, slice_gradient),
      view("flip", {required("dims", AttributeType::integers)}, infer_flip, flip_source, flip_gradient),
  };
  return rows;
}

}  // namespace kiln
