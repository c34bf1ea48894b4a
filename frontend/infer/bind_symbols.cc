#include "frontend/infer/bind_symbols.h"

#include <cassert>
#include <functional>

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

/// What a dim of a graph is in another.
using NewDim = std::function<Expected<Dim>(const Dim&)>;

Expected<std::vector<Dim>> rewritten(const std::vector<Dim>& dims, const NewDim& new_dim) {
  std::vector<Dim> result;
  for (const Dim& dim : dims) {
    KILN_ASSIGN_OR_RETURN(result.emplace_back(), new_dim(dim));
  }
  return result;
}

Expected<TensorType> rewritten(const TensorType& type, const NewDim& new_dim) {
  TensorType result{type.dtype, {}, {}};
  KILN_ASSIGN_OR_RETURN(result.shape, rewritten(type.shape, new_dim));
  KILN_ASSIGN_OR_RETURN(result.strides, rewritten(type.strides, new_dim));
  return result;
}

Expected<Attributes> rewritten_attributes(const Node& node, const NewDim& new_dim) {
  Attributes attributes = node.attributes;
  for (auto& [name, value] : attributes) {
    const Shape* shape = std::get_if<Shape>(&value);
    if (shape == nullptr) continue;
    KILN_ASSIGN_OR_RETURN(Shape dims, rewritten(*shape, new_dim));
    value = std::move(dims);
    for (const AttributeDef& def : node.op->attributes) {
      if (def.name == name && def.type == AttributeType::extent)
        value = extent_attribute(Dim(std::get<Shape>(value)[0]));
    }
  }
  return attributes;
}

/// Adds the inputs, nodes and outputs of one graph to another without any. Nodes keep their ids. `new_number`: of what is
/// computed with, not an extent.
Status rewrite(const Graph& graph, const NewDim& new_dim, const NewDim& new_number, Graph& result) {
  for (const ValueId input : graph.inputs()) {
    KILN_ASSIGN_OR_RETURN(TensorType type, rewritten(graph.type(input), new_dim));
    result.add_input(std::move(type), graph.value(input).name);
  }
  // A graph may name inputs after nodes: ids are translated, in practice to themselves.
  std::vector<ValueId> renamed(graph.values().size(), k_none);
  for (size_t i = 0; i < graph.inputs().size(); ++i) renamed[graph.inputs()[i]] = result.inputs()[i];
  static const OpDef* const extent = find_op("extent");
  static const OpDef* const full = find_op("full");
  for (const Node& node : graph.nodes()) {
    std::vector<ValueId> operands;
    for (const ValueId operand : node.operands) operands.push_back(operand == k_none ? k_none : renamed[operand]);
    std::vector<TensorType> types;
    for (const ValueId value : node.results) {
      KILN_ASSIGN_OR_RETURN(types.emplace_back(), rewritten(graph.type(value), new_dim));
    }
    const OpDef* op = node.op;
    KILN_ASSIGN_OR_RETURN(Attributes attributes, rewritten_attributes(node, op == extent ? new_number : new_dim));
    if (op == extent && extent_of(attributes, "value").is_constant()) {
      op = full;
      const auto value = static_cast<double>(extent_of(attributes, "value").constant());
      attributes = {{"dtype", dtype_of(attributes, "dtype")}, {"shape", Shape{}}, {"value", value}};
    }
    const NodeId id = result.add_node(op, std::move(operands), std::move(attributes), std::move(types));
    for (size_t r = 0; r < node.results.size(); ++r) {
      renamed[node.results[r]] = result.node(id).results[r];
      result.set_name(result.node(id).results[r], graph.value(node.results[r]).name);
    }
  }
  std::vector<ValueId> outputs;
  for (const ValueId output : graph.outputs()) outputs.push_back(renamed[output]);
  result.set_outputs(std::move(outputs));
  for (size_t i = 0; i < graph.output_strides().size(); ++i) {
    KILN_ASSIGN_OR_RETURN(std::vector<Dim> strides, rewritten(graph.output_strides()[i], new_dim));
    result.set_output_strides(i, std::move(strides));
  }
  return {};
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
  const auto bind_number = [&](const Dim& dim) -> Expected<Dim> {
    if (const std::optional<int64_t> value = dim.evaluate(extents)) return Dim(*value);
    return invalid_argument("dim {} is beyond i64", dim.to_string());
  };
  const auto bind = [&](const Dim& dim) -> Expected<Dim> {
    KILN_ASSIGN_OR_RETURN(Dim extent, bind_number(dim));
    if (extent.constant() >= 0) return extent;
    return invalid_argument("dim {} has no extent of 0 or more", dim.to_string());
  };
  KILN_RETURN_IF_ERROR(rewrite(graph, bind, bind_number, bound));
  return bound;
}

Graph merge_symbols(const Graph& graph, std::span<const SymbolId> into) {
  Graph merged;
  for (SymbolId id = 0; id < graph.symbols().size(); ++id) {
    if (into[id] == merged.symbols().size()) merged.add_symbol(graph.symbols()[id]);
  }
  const auto merge = [&](const Dim& dim) {
    std::vector<Dim::Term> terms = dim.terms();
    for (Dim::Term& term : terms) {
      for (SymbolId& symbol : term.symbols) symbol = into[symbol];
    }
    return Dim::from_terms(std::move(terms));
  };
  for (const Guard& guard : graph.guards()) merged.add_guard({merge(guard.dim), guard.relation, guard.modulus});
  const auto merge_any = [&](const Dim& dim) { return Expected<Dim>(merge(dim)); };
  [[maybe_unused]] const Status status = rewrite(graph, merge_any, merge_any, merged);
  assert(status.ok());
  return merged;
}

}  // namespace kiln
