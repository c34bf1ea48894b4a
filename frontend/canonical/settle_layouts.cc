#include <vector>

#include "frontend/canonical/canonical.h"
#include "frontend/ops/op.h"

// A value has the strides of the first output that is this value. A further output of it is a renaming of nothing, the
// identity permutation: a value of its own, which lies in that output's strides and is made by a kernel as any other.

namespace kiln {
namespace {

const OpDef* permute_op() {
  static const OpDef* const op = find_op("permute");
  return op;
}

class Settler {
 public:
  explicit Settler(const Graph& graph) : m_graph(graph), m_copied(graph.outputs().size()) {
    std::vector<bool> settled(graph.values().size());
    m_strides.resize(graph.values().size());
    for (const ValueId input : graph.inputs()) m_strides[input] = graph.type(input).strides;
    for (size_t i = 0; i < graph.outputs().size(); ++i) {
      const ValueId output = graph.outputs()[i];
      const std::vector<Dim>& wanted = graph.output_strides()[i];
      if (is_input(output)) {
        m_copied[i] = wanted != m_strides[output];
        continue;
      }
      m_copied[i] = settled[output];
      if (!settled[output]) m_strides[output] = wanted;
      settled[output] = true;
    }
  }

  Graph run() {
    for (const std::string& symbol : m_graph.symbols()) m_result.add_symbol(symbol);
    for (const Guard& guard : m_graph.guards()) m_result.add_guard(guard);
    m_new_ids.resize(m_graph.values().size(), k_none);
    for (const ValueId input : m_graph.inputs()) {
      m_new_ids[input] = m_result.add_input(m_graph.type(input), m_graph.value(input).name);
    }
    for (const Node& node : m_graph.nodes()) write(node);
    std::vector<ValueId> outputs;
    for (size_t i = 0; i < m_copied.size(); ++i) outputs.push_back(m_copied[i] ? copy_for(i) : here(i));
    m_result.set_outputs(std::move(outputs));
    for (size_t i = 0; i < m_copied.size(); ++i) m_result.set_output_strides(i, m_graph.output_strides()[i]);
    return std::move(m_result);
  }

 private:
  bool is_input(ValueId value) const { return m_graph.value(value).producer == k_none; }
  ValueId here(size_t output) const { return m_new_ids[m_graph.outputs()[output]]; }

  void write(const Node& node) {
    std::vector<ValueId> operands = node.operands;
    for (ValueId& operand : operands) operand = operand == k_none ? k_none : m_new_ids[operand];
    std::vector<TensorType> types;
    for (const ValueId result : node.results) {
      types.push_back({m_graph.type(result).dtype, m_graph.type(result).shape, m_strides[result]});
    }
    const NodeId added = m_result.add_node(node.op, std::move(operands), node.attributes, std::move(types));
    for (size_t i = 0; i < node.results.size(); ++i) {
      m_new_ids[node.results[i]] = m_result.node(added).results[i];
      m_result.set_name(m_new_ids[node.results[i]], m_graph.value(node.results[i]).name);
    }
  }

  ValueId copy_for(size_t output) {
    TensorType type = m_graph.type(m_graph.outputs()[output]);
    type.strides = m_graph.output_strides()[output];
    std::vector<int64_t> dims;
    for (size_t d = 0; d < type.rank(); ++d) dims.push_back(static_cast<int64_t>(d));
    const NodeId added = m_result.add_node(permute_op(), {here(output)}, {{"dims", std::move(dims)}}, {type});
    return m_result.node(added).results[0];
  }

  const Graph& m_graph;
  Graph m_result;
  std::vector<std::vector<Dim>> m_strides;  // of each value, where it lies
  std::vector<bool> m_copied;               // of each output: it is a copy
  std::vector<ValueId> m_new_ids;
};

}  // namespace

Graph settle_layouts(const Graph& graph) { return Settler(graph).run(); }

bool has_settled_layouts(const Graph& graph) {
  std::vector<bool> seen(graph.values().size());
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const ValueId output = graph.outputs()[i];
    if (graph.type(output).strides != graph.output_strides()[i]) return false;
    if (seen[output] && graph.value(output).producer != k_none) return false;
    seen[output] = true;
  }
  return true;
}

}  // namespace kiln
