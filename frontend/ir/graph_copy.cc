#include "frontend/ir/graph_copy.h"

#include <utility>

namespace kiln {

GraphCopy::GraphCopy(const Graph& from) : m_from(from), m_values(from.values().size(), k_none) {
  for (const std::string& symbol : from.symbols()) m_graph.add_symbol(symbol);
  for (const ValueId input : from.inputs()) bind(input, m_graph.add_input(from.type(input), from.value(input).name));
}

std::vector<ValueId> GraphCopy::operands_of(const Node& node) const {
  std::vector<ValueId> operands = node.operands;
  carry(operands);
  return operands;
}

void GraphCopy::add(const Node& node, std::vector<ValueId> operands, Attributes attributes) {
  std::vector<TensorType> types;
  for (const ValueId result : node.results) types.push_back(m_from.type(result));
  const NodeId added = m_graph.add_node(node.op, std::move(operands), std::move(attributes), std::move(types));
  for (size_t i = 0; i < node.results.size(); ++i) bind(node.results[i], m_graph.node(added).results[i]);
}

void GraphCopy::carry(std::vector<ValueId>& values) const {
  for (ValueId& value : values) value = (*this)[value];
}

Graph GraphCopy::finish() {
  std::vector<ValueId> outputs = m_from.outputs();
  carry(outputs);
  m_graph.set_outputs(std::move(outputs));
  for (size_t i = 0; i < m_from.output_strides().size(); ++i) {
    m_graph.set_output_strides(i, m_from.output_strides()[i]);
  }
  return std::move(m_graph);
}

}  // namespace kiln
