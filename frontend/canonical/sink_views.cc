#include <algorithm>

#include "frontend/canonical/canonical.h"
#include "frontend/ops/op.h"

// The graph is rebuilt node by node. Views and constants are not written when they are met but when a
// consumer reads them, once for that consumer, together with the views they read through. A consumer that
// reads one view twice shares its copy.

namespace kiln {
namespace {

/// transpose, reshape, expand, slice in a row: what one matmul reads a weight through. Longer runs are no
/// idiom, and copying them per consumer could square the graph.
constexpr size_t k_longest_view_run = 12;

bool is_free_to_copy(const Node& node) {
  if (node.results.size() != 1) return false;
  const bool view = node.op->kind == OpKind::view && node.operands.size() == 1 && node.operands[0] != k_none;
  return view || (node.op->kind == OpKind::creation && node.operands.empty());
}

class Sinker {
 public:
  explicit Sinker(const Graph& graph)
      : m_graph(graph), m_new_ids(graph.values().size(), k_none), m_copies(graph.values().size()) {}

  Graph run() {
    for (const std::string& symbol : m_graph.symbols()) m_result.add_symbol(symbol);
    for (const Guard& guard : m_graph.guards()) m_result.add_guard(guard);
    for (ValueId input : m_graph.inputs()) {
      m_new_ids[input] = m_result.add_input(m_graph.type(input), m_graph.value(input).name);
    }
    for (NodeId id = 0; id < m_graph.nodes().size(); ++id) {
      if (!is_free_to_copy(m_graph.node(id))) copy_node(id);
    }
    std::vector<ValueId> outputs;
    ++m_consumer;
    for (ValueId output : m_graph.outputs()) outputs.push_back(copy_for_consumer(output));
    m_result.set_outputs(std::move(outputs));
    for (size_t i = 0; i < m_graph.outputs().size(); ++i) {
      m_result.set_output_strides(i, m_graph.output_strides()[i]);
    }
    return std::move(m_result);
  }

 private:
  void copy_node(NodeId id) {
    ++m_consumer;
    std::vector<ValueId> operands = m_graph.node(id).operands;
    for (ValueId& operand : operands) {
      if (operand != k_none) operand = copy_for_consumer(operand);
    }
    write(id, std::move(operands));
  }

  /// The value in the new graph. The views it comes through are written anew, first one first.
  ValueId copy_for_consumer(ValueId value) {
    std::vector<NodeId> run;
    ValueId source = value;
    while (!is_copied(source)) {
      const NodeId producer = m_graph.value(source).producer;
      run.push_back(producer);
      const std::vector<ValueId>& operands = m_graph.node(producer).operands;
      if (operands.empty()) break;  // a constant
      source = operands[0];
    }
    for (auto view = run.rbegin(); view != run.rend(); ++view) {
      std::vector<ValueId> operands = m_graph.node(*view).operands;
      for (ValueId& operand : operands) operand = operand == k_none ? k_none : m_new_ids[operand];
      write(*view, std::move(operands));
      const ValueId result = m_graph.node(*view).results[0];
      m_copies[result] = {m_consumer, view == run.rbegin() ? 1 : run_length(*view)};
    }
    return m_new_ids[value];
  }

  /// Whether the value's newest copy serves this consumer: nodes that are not copied, the consumer's own
  /// views, and what is shared because of the bounds.
  bool is_copied(ValueId value) const {
    const NodeId producer = m_graph.value(value).producer;
    if (producer == k_none || !is_free_to_copy(m_graph.node(producer))) return true;
    if (m_new_ids[value] == k_none) return false;
    const bool grown = m_result.nodes().size() > 2 * m_graph.nodes().size();
    return m_copies[value].consumer == m_consumer || m_copies[value].run_length >= k_longest_view_run || grown;
  }

  size_t run_length(NodeId view) const { return m_copies[m_graph.node(view).operands[0]].run_length + 1; }

  void write(NodeId id, std::vector<ValueId> operands) {
    const Node& node = m_graph.node(id);
    std::vector<TensorType> types;
    for (ValueId result : node.results) types.push_back(m_graph.type(result));
    const NodeId added = m_result.add_node(node.op, std::move(operands), node.attributes, std::move(types));
    for (size_t i = 0; i < node.results.size(); ++i) {
      m_new_ids[node.results[i]] = m_result.node(added).results[i];
      m_result.set_name(m_new_ids[node.results[i]], m_graph.value(node.results[i]).name);
    }
  }

  struct Copy {
    size_t consumer = 0;    // for whom it was written last
    size_t run_length = 0;  // views in a row up to this one
  };

  const Graph& m_graph;
  Graph m_result;
  std::vector<ValueId> m_new_ids;  // the newest copy of each value
  std::vector<Copy> m_copies;
  size_t m_consumer = 0;
};

}  // namespace

Graph sink_views(const Graph& graph) { return Sinker(graph).run(); }

}  // namespace kiln
