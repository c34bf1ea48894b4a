#include "frontend/infer/bind_symbols.h"

#include "frontend/ops/attributes.h"

namespace kiln {

namespace {

Status check_guard(const Guard& guard, std::span<const int64_t> extents) {
  const std::optional<int64_t> value = guard.dim.evaluate(extents);
  if (!value) return invalid_argument("guard on {} has no value", guard.dim.to_string());
  const auto violated = [&](std::string_view relation) {
    return error(StatusCode::failed_precondition, "guard {} {} does not hold: it is {}", guard.dim.to_string(),
                 relation, *value);
  };
  switch (guard.relation) {
    case Guard::Relation::equal:
      return *value == 0 ? Status() : violated("== 0");
    case Guard::Relation::not_equal:
      return *value != 0 ? Status() : violated("!= 0");
    case Guard::Relation::at_least:
      return *value >= 0 ? Status() : violated(">= 0");
    case Guard::Relation::divisible:
      if (guard.modulus > 0 && *value % guard.modulus == 0) return {};
      return violated(fmt::format("% {} == 0", guard.modulus));
  }
  return {};
}

Expected<std::vector<Dim>> bind_dims(const std::vector<Dim>& dims, std::span<const int64_t> extents) {
  std::vector<Dim> bound;
  for (const Dim& dim : dims) {
    const std::optional<int64_t> value = dim.evaluate(extents);
    if (!value || *value < 0) return invalid_argument("dim {} has no extent of 0 or more", dim.to_string());
    bound.emplace_back(*value);
  }
  return bound;
}

Expected<TensorType> bind_type(const TensorType& type, std::span<const int64_t> extents) {
  TensorType bound{type.dtype, {}, {}};
  KILN_ASSIGN_OR_RETURN(bound.shape, bind_dims(type.shape, extents));
  KILN_ASSIGN_OR_RETURN(bound.strides, bind_dims(type.strides, extents));
  return bound;
}

Expected<Attributes> bind_attributes(const Node& node, std::span<const int64_t> extents) {
  Attributes attributes = node.attributes;
  for (auto& [name, value] : attributes) {
    const Shape* shape = std::get_if<Shape>(&value);
    if (shape == nullptr) continue;
    KILN_ASSIGN_OR_RETURN(Shape bound, bind_dims(*shape, extents));
    value = std::move(bound);
    for (const AttributeDef& def : node.op->attributes) {
      if (def.name == name && def.type == AttributeType::extent)
        value = extent_attribute(Dim(std::get<Shape>(value)[0]));
    }
  }
  return attributes;
}

}  // namespace

Status check_guards(const Graph& graph, std::span<const int64_t> extents) {
  if (extents.size() != graph.symbols().size()) {
    return invalid_argument("got {} extents, the graph has {} symbols", extents.size(), graph.symbols().size());
  }
  for (const Guard& guard : graph.guards()) KILN_RETURN_IF_ERROR(check_guard(guard, extents));
  return {};
}

Expected<Graph> bind_symbols(const Graph& graph, std::span<const int64_t> extents) {
  KILN_RETURN_IF_ERROR(check_guards(graph, extents));

  Graph bound;
  for (const ValueId input : graph.inputs()) {
    KILN_ASSIGN_OR_RETURN(TensorType type, bind_type(graph.type(input), extents));
    bound.add_input(std::move(type), graph.value(input).name);
  }
  // A graph may name inputs after nodes: ids are translated, in practice to themselves.
  std::vector<ValueId> renamed(graph.values().size(), k_none);
  for (size_t i = 0; i < graph.inputs().size(); ++i) renamed[graph.inputs()[i]] = bound.inputs()[i];
  static const OpDef* const extent = find_op("extent");
  static const OpDef* const full = find_op("full");
  for (const Node& node : graph.nodes()) {
    std::vector<ValueId> operands;
    for (const ValueId operand : node.operands) operands.push_back(operand == k_none ? k_none : renamed[operand]);
    std::vector<TensorType> types;
    for (const ValueId result : node.results) {
      KILN_ASSIGN_OR_RETURN(types.emplace_back(), bind_type(graph.type(result), extents));
    }
    KILN_ASSIGN_OR_RETURN(Attributes attributes, bind_attributes(node, extents));
    const OpDef* op = node.op;
    if (op == extent) {
      op = full;
      const auto value = static_cast<double>(extent_of(attributes, "value").constant());
      attributes = {{"dtype", dtype_of(attributes, "dtype")}, {"shape", Shape{}}, {"value", value}};
    }
    const NodeId id = bound.add_node(op, std::move(operands), std::move(attributes), std::move(types));
    for (size_t r = 0; r < node.results.size(); ++r) {
      renamed[node.results[r]] = bound.node(id).results[r];
      bound.set_name(bound.node(id).results[r], graph.value(node.results[r]).name);
    }
  }
  std::vector<ValueId> outputs;
  for (const ValueId output : graph.outputs()) outputs.push_back(renamed[output]);
  bound.set_outputs(std::move(outputs));
  for (size_t i = 0; i < graph.output_strides().size(); ++i) {
    KILN_ASSIGN_OR_RETURN(std::vector<Dim> strides, bind_dims(graph.output_strides()[i], extents));
    bound.set_output_strides(i, std::move(strides));
  }
  return bound;
}

}  // namespace kiln
