// Tensors made of attributes alone.

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"
#include "frontend/ops/index_math.h"
#include "frontend/ops/rules.h"
#include "frontend/ops/tensor.h"

namespace kiln {

namespace {

Expected<Types> infer_filled(const OpContext& context) {
  return Types{{dtype_of(context.attributes, "dtype"), shape_of(context.attributes, "shape"), {}}};
}

/// Constants of floating dtypes are exact, like every value of the reference; others are what the dtype holds.
double as_constant(DType dtype, double value) { return is_floating(dtype) ? value : round_to(dtype, value); }

double full_element(ElementEvaluator&, const Graph& graph, NodeId id, uint32_t, int64_t) {
  const Node& node = graph.node(id);
  return as_constant(dtype_of(node.attributes, "dtype"), number_of(node.attributes, "value"));
}

Expected<Types> infer_iota(const OpContext& context) {
  KILN_RETURN_IF_ERROR(dim_attribute(context, "dim", shape_of(context.attributes, "shape").size()).status());
  return infer_filled(context);
}

double iota_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const auto dim = static_cast<size_t>(integer_of(node.attributes, "dim"));
  const auto at = static_cast<double>(coordinate(e, node.results[0], index, dim));
  const DType dtype = dtype_of(node.attributes, "dtype");
  // Integers are counted in integers, as torch's arange does.
  const double start = as_constant(is_floating(dtype) ? dtype : DType::i64, number_of(node.attributes, "start"));
  const double step = as_constant(is_floating(dtype) ? dtype : DType::i64, number_of(node.attributes, "step"));
  return as_constant(dtype, start + step * at);
}

Expected<Types> infer_extent(const OpContext& context) {
  return Types{{dtype_of(context.attributes, "dtype"), {}, {}}};
}

double extent_element(ElementEvaluator&, const Graph& graph, NodeId id, uint32_t, int64_t) {
  return static_cast<double>(extent_of(graph.node(id).attributes, "value").constant());
}

}  // namespace

std::span<const OpDef> creation_ops() {
  static const AttributeDef shape = required("shape", AttributeType::shape);
  static const AttributeDef dtype = required("dtype", AttributeType::dtype);
  static const std::vector<OpDef> rows = {
      {.name = "full",
       .kind = OpKind::creation,
       .attributes = {shape, required("value", AttributeType::number), dtype},
       .infer = infer_filled,
       .element = full_element},
      {.name = "iota",
       .kind = OpKind::creation,
       .attributes = {shape, required("dim", AttributeType::integer), fallback("start", AttributeType::number, 0.0),
                      fallback("step", AttributeType::number, 1.0), dtype},
       .infer = infer_iota,
       .element = iota_element},
      {.name = "extent",
       .kind = OpKind::creation,
       .attributes = {required("value", AttributeType::extent), dtype},
       .infer = infer_extent,
       .element = extent_element},
  };
  return rows;
}

}  // namespace kiln
