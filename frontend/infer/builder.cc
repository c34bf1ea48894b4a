#include "frontend/infer/builder.h"

#include <algorithm>

#include "base/limits.h"
#include "base/nearest.h"
#include "frontend/ops/attributes.h"

namespace kiln {

namespace {

Status unknown_op(std::string_view name) {
  std::vector<std::string_view> names;
  for (const OpDef* op : all_ops()) names.push_back(op->name);
  const std::string_view nearest = nearest_name(name, names);
  return error(StatusCode::not_found, "unknown op '{}'{}", name.substr(0, limits::k_name_bytes),
               nearest.empty() ? "" : fmt::format(", the nearest is '{}'", nearest));
}

std::string_view to_string(AttributeType type) {
  switch (type) {
    case AttributeType::boolean:
      return "boolean";
    case AttributeType::integer:
      return "integer";
    case AttributeType::number:
      return "number";
    case AttributeType::string:
      return "string";
    case AttributeType::dtype:
      return "dtype";
    case AttributeType::integers:
      return "list of integers";
    case AttributeType::shape:
      return "shape";
    case AttributeType::extent:
      return "extent";
  }
  return "unknown";
}

/// Constant shapes and lists of integers are written alike; so are whole numbers and integers.
std::optional<Attribute> coerce(Attribute value, AttributeType type) {
  const auto keep_if = [&](bool fits) { return fits ? std::optional(std::move(value)) : std::nullopt; };
  switch (type) {
    case AttributeType::boolean:
      return keep_if(std::holds_alternative<bool>(value));
    case AttributeType::integer:
      return keep_if(std::holds_alternative<int64_t>(value));
    case AttributeType::string:
      return keep_if(std::holds_alternative<std::string>(value));
    case AttributeType::dtype:
      return keep_if(std::holds_alternative<DType>(value));
    case AttributeType::number:
      if (const auto* integer = std::get_if<int64_t>(&value)) return static_cast<double>(*integer);
      return keep_if(std::holds_alternative<double>(value));
    case AttributeType::integers:
      if (const auto* shape = std::get_if<Shape>(&value)) {
        std::vector<int64_t> integers;
        for (const Dim& dim : *shape) {
          if (!dim.is_constant()) return std::nullopt;
          integers.push_back(dim.constant());
        }
        return integers;
      }
      return keep_if(std::holds_alternative<std::vector<int64_t>>(value));
    case AttributeType::shape:
      if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
        return Shape(integers->begin(), integers->end());
      }
      return keep_if(std::holds_alternative<Shape>(value));
    case AttributeType::extent:
      if (const auto* shape = std::get_if<Shape>(&value); shape != nullptr && shape->size() == 1) {
        return extent_attribute(shape->front());
      }
      return keep_if(std::holds_alternative<int64_t>(value));
  }
  return std::nullopt;
}

Status check_operand_count(const OpDef& op, std::span<const TensorType* const> operands) {
  const bool variadic = !op.operands.empty() && op.operands.back().kind == OperandKind::variadic;
  const size_t declared = op.operands.size();
  if (operands.size() > limits::k_node_operands ||
      (variadic ? operands.size() < declared : operands.size() != declared)) {
    return invalid_argument("{}: got {} operands, expected {}{}", op.name, operands.size(), declared,
                            variadic ? " or more" : "");
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    const OperandDef& def = op.operands[std::min(i, declared - 1)];
    if (operands[i] == nullptr && def.kind != OperandKind::optional) {
      return invalid_argument("{}: operand {} '{}' is absent, expected a tensor", op.name, i, def.name);
    }
  }
  return {};
}

Status check_result(const OpDef& op, const TensorType& type) {
  if (type.rank() > limits::k_tensor_rank) {
    return invalid_argument("{}: result has rank {}, at most {} is supported", op.name, type.rank(),
                            limits::k_tensor_rank);
  }
  int64_t elements = 1;
  for (const Dim& dim : type.shape) {
    if (!dim.is_constant()) continue;
    if (dim.constant() < 0) {
      return invalid_argument("{}: result would be {}, expected no negative extent", op.name, type.to_string());
    }
    if (__builtin_mul_overflow(elements, std::max<int64_t>(dim.constant(), 1), &elements) ||
        elements > limits::k_tensor_elements) {
      return invalid_argument("{}: result {} is larger than {} elements", op.name, type.to_string(),
                              limits::k_tensor_elements);
    }
  }
  return {};
}

}  // namespace

Expected<Attributes> normalise_attributes(const OpDef& op, Attributes attributes) {
  for (const auto& [name, value] : attributes) {
    const auto is_name = [&name = name](const AttributeDef& def) { return def.name == name; };
    if (std::none_of(op.attributes.begin(), op.attributes.end(), is_name)) {
      return invalid_argument("{}: unknown attribute '{}'", op.name, name);
    }
  }
  Attributes stored;
  for (const AttributeDef& def : op.attributes) {
    const Attribute* given = nullptr;
    for (const auto& [name, value] : attributes) {
      if (name != def.name) continue;
      if (given != nullptr) return invalid_argument("{}: attribute '{}' is given twice", op.name, def.name);
      given = &value;
    }
    if (given == nullptr && def.fallback) given = &*def.fallback;
    if (given == nullptr && !def.required) continue;
    if (given == nullptr) return invalid_argument("{}: attribute '{}' is missing", op.name, def.name);
    std::optional<Attribute> coerced = coerce(*given, def.type);
    if (!coerced) {
      return invalid_argument("{}: attribute '{}' has the wrong type, expected {}", op.name, def.name,
                              to_string(def.type));
    }
    stored.emplace_back(def.name, std::move(*coerced));
  }
  std::sort(stored.begin(), stored.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return stored;
}

Expected<std::vector<TensorType>> infer_types(const OpDef& op, std::span<const TensorType* const> operands,
                                              const Attributes& attributes, std::vector<Guard>& guards) {
  KILN_RETURN_IF_ERROR(check_operand_count(op, operands));
  KILN_ASSIGN_OR_RETURN(std::vector<TensorType> types, op.infer(OpContext{op, operands, attributes, guards}));
  assert(types.size() == op.result_count && "a row's rule gives one type per result");
  for (const TensorType& type : types) KILN_RETURN_IF_ERROR(check_result(op, type));
  return types;
}

Expected<std::vector<ValueId>> GraphBuilder::add(std::string_view name, std::span<const ValueId> operands,
                                                 Attributes attributes) {
  const OpDef* op = find_op(name);
  if (op == nullptr) return unknown_op(name);
  return add(*op, operands, std::move(attributes));
}

Expected<std::vector<ValueId>> GraphBuilder::add(const OpDef& op, std::span<const ValueId> operands,
                                                 Attributes attributes) {
  if (m_graph.nodes().size() >= limits::k_graph_nodes) {
    return error(StatusCode::resource_exhausted, "{}: the graph has {} nodes already, at most {} are supported",
                 op.name, m_graph.nodes().size(), limits::k_graph_nodes);
  }
  std::vector<const TensorType*> types;
  for (const ValueId operand : operands) {
    if (operand != k_none && operand >= m_graph.values().size()) {
      return invalid_argument("{}: operand {} is value {}, the graph has {}", op.name, types.size(), operand,
                              m_graph.values().size());
    }
    types.push_back(operand == k_none ? nullptr : &m_graph.type(operand));
  }
  KILN_ASSIGN_OR_RETURN(Attributes stored, normalise_attributes(op, std::move(attributes)));
  std::vector<Guard> guards;
  KILN_ASSIGN_OR_RETURN(std::vector<TensorType> results, infer_types(op, types, stored, guards));
  for (Guard& guard : guards) {
    const auto& known = m_graph.guards();
    if (std::find(known.begin(), known.end(), guard) == known.end()) m_graph.add_guard(std::move(guard));
  }
  const NodeId node = m_graph.add_node(&op, {operands.begin(), operands.end()}, std::move(stored), std::move(results));
  return m_graph.node(node).results;
}

}  // namespace kiln
