#include "frontend/decompose/uses_apart.h"

#include "frontend/infer/builder.h"

#include "frontend/ops/op.h"

namespace kiln {

namespace {

// How many pointwise ops in a row are made again for a use, and how many times as large the graph may become.
constexpr int k_depth = 4;
constexpr size_t k_growth = 64;

class Copier {
 public:
  explicit Copier(const Graph& from) : m_from(from), m_builder(m_graph), m_values(from.values().size(), k_none) {}

  Graph run() {
    for (const std::string& symbol : m_from.symbols()) m_graph.add_symbol(symbol);
    for (const ValueId input : m_from.inputs()) m_values[input] = m_graph.add_input(m_from.type(input));
    for (const Node& node : m_from.nodes()) {
      const std::vector<ValueId> results = copy(node, 0);
      for (size_t i = 0; i < results.size(); ++i) m_values[node.results[i]] = results[i];
    }
    std::vector<ValueId> outputs;
    for (const ValueId output : m_from.outputs()) outputs.push_back(m_values[output]);
    m_graph.set_outputs(std::move(outputs));
    return std::move(m_graph);
  }

 private:
  std::vector<ValueId> copy(const Node& node, int depth) {
    std::vector<ValueId> operands;
    std::vector<TensorType> types;
    for (const ValueId operand : node.operands) operands.push_back(operand == k_none ? k_none : use_of(operand, depth));
    for (const ValueId result : node.results) types.push_back(m_from.type(result));
    return m_graph.node(m_graph.add_node(node.op, std::move(operands), node.attributes, std::move(types))).results;
  }

  ValueId use_of(ValueId value, int depth) {
    if (!is_floating(m_from.type(value).dtype)) return m_values[value];
    const NodeId producer = m_from.value(value).producer;
    if (producer != k_none && is_made_again(m_from.node(producer).op->kind, depth)) {
      const bool computes = m_from.node(producer).op->kind == OpKind::pointwise;
      return copy(m_from.node(producer), depth + (computes ? 1 : 0)).front();
    }
    return m_builder.mul(m_values[value], 1.0);
  }

  /// What kernels compute again for themselves, from operands that they see in their own way.
  bool is_made_again(OpKind kind, int depth) const {
    if (m_graph.nodes().size() > k_growth * (m_from.nodes().size() + 1)) return false;
    return kind == OpKind::view || (kind == OpKind::pointwise && depth < k_depth);
  }

  const Graph& m_from;
  Graph m_graph;
  GraphBuilder m_builder;
  std::vector<ValueId> m_values;  // of m_from, in m_graph
};

}  // namespace

Graph with_uses_apart(const Graph& graph) { return Copier(graph).run(); }

}  // namespace kiln
