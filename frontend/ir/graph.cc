#include "frontend/ir/graph.h"

#include <algorithm>
#include <cassert>

namespace kiln {
namespace {

void append_list(std::string& text, const std::vector<Dim>& dims, std::span<const std::string> symbols) {
  std::string_view comma;
  for (const Dim& dim : dims) {
    text += comma;
    text += dim.to_string(symbols);
    comma = ", ";
  }
}

}  // namespace

std::string TensorType::to_string(std::span<const std::string> symbols) const {
  std::string text{kiln::to_string(dtype)};
  text += '[';
  append_list(text, shape, symbols);
  text += ']';
  if (strides.empty()) return text;
  text += '{';
  append_list(text, strides, symbols);
  text += '}';
  return text;
}

SymbolId Graph::add_symbol(std::string name) {
  m_symbols.push_back(std::move(name));
  return static_cast<SymbolId>(m_symbols.size() - 1);
}

ValueId Graph::add_input(TensorType type, std::string name) {
  assert((type.strides.empty() || type.strides.size() == type.shape.size()) && "one stride per dimension");
  const auto id = static_cast<ValueId>(m_values.size());
  m_values.push_back({std::move(type), k_none, static_cast<uint32_t>(m_inputs.size()), std::move(name)});
  m_inputs.push_back(id);
  return id;
}

NodeId Graph::add_node(const OpDef* op, std::vector<ValueId> operands, Attributes attributes,
                       std::vector<TensorType> result_types) {
  assert(op != nullptr);
  for ([[maybe_unused]] ValueId operand : operands) {
    assert((operand == k_none || operand < m_values.size()) && "operands are defined before they are used");
  }
  const auto id = static_cast<NodeId>(m_nodes.size());
  std::ranges::sort(attributes, {}, &Attributes::value_type::first);
  Node node{op, std::move(operands), std::move(attributes), {}};
  node.results.reserve(result_types.size());
  for (TensorType& type : result_types) {
    node.results.push_back(static_cast<ValueId>(m_values.size()));
    const auto index = static_cast<uint32_t>(node.results.size() - 1);
    m_values.push_back({std::move(type), id, index, {}});
  }
  m_nodes.push_back(std::move(node));
  return id;
}

void Graph::set_outputs(std::vector<ValueId> outputs) {
  for ([[maybe_unused]] ValueId output : outputs) assert(output < m_values.size());
  m_output_strides.assign(outputs.size(), {});
  m_outputs = std::move(outputs);
}

void Graph::set_output_strides(size_t index, std::vector<Dim> strides) {
  assert(index < m_outputs.size());
  assert((strides.empty() || strides.size() == type(m_outputs[index]).rank()) && "one stride per dimension");
  m_output_strides[index] = std::move(strides);
}

std::vector<std::vector<NodeId>> Graph::users() const {
  std::vector<std::vector<NodeId>> users(m_values.size());
  for (NodeId id = 0; id < m_nodes.size(); ++id) {
    for (ValueId operand : m_nodes[id].operands) {
      if (operand == k_none) continue;
      std::vector<NodeId>& list = users[operand];
      if (list.empty() || list.back() != id) list.push_back(id);
    }
  }
  return users;
}

const Attribute* find_attribute(const Attributes& attributes, std::string_view name) {
  auto at = std::ranges::find(attributes, name, &Attributes::value_type::first);
  return at == attributes.end() ? nullptr : &at->second;
}

}  // namespace kiln
