#include "frontend/decompose/decompose.h"

#include <algorithm>
#include <numeric>

#include "frontend/infer/builder.h"

namespace kiln {

namespace {

/// A copy of a graph that grows node by node: symbols, guards and inputs at once, the rest as asked.
class Rewriter {
 public:
  explicit Rewriter(const Graph& from) : m_from(from), m_values(from.values().size(), k_none) {
    for (const std::string& symbol : from.symbols()) m_graph.add_symbol(symbol);
    for (const Guard& guard : from.guards()) m_graph.add_guard(guard);
    for (const ValueId input : from.inputs()) {
      m_values[input] = m_graph.add_input(from.type(input), from.value(input).name);
    }
  }

  std::vector<ValueId> operands_of(const Node& node) const {
    std::vector<ValueId> operands;
    for (const ValueId operand : node.operands) operands.push_back(operand == k_none ? k_none : m_values[operand]);
    return operands;
  }

  void copy(const Node& node) {
    std::vector<TensorType> types;
    for (const ValueId result : node.results) types.push_back(m_from.type(result));
    const NodeId id = m_graph.add_node(node.op, operands_of(node), node.attributes, std::move(types));
    bind(node, std::vector<ValueId>(m_graph.node(id).results));
  }

  Status take_apart(const Node& node) {
    GraphBuilder builder(m_graph);
    const std::vector<ValueId> operands = operands_of(node);
    KILN_ASSIGN_OR_RETURN(const std::vector<ValueId> results, node.op->decompose(builder, node, operands));
    for (size_t r = 0; r < results.size(); ++r) {
      const TensorType &is = m_graph.type(results[r]), &was = m_from.type(node.results[r]);
      if (is.dtype == was.dtype && is.shape == was.shape) continue;
      return error(StatusCode::internal, "{}: the decomposition's result {} is {}, expected {}", node.op->name, r,
                   is.to_string(), was.to_string());
    }
    bind(node, results);
    return {};
  }

  Graph finish() {
    std::vector<ValueId> outputs;
    for (const ValueId output : m_from.outputs()) outputs.push_back(m_values[output]);
    m_graph.set_outputs(std::move(outputs));
    for (size_t i = 0; i < m_from.output_strides().size(); ++i) {
      m_graph.set_output_strides(i, m_from.output_strides()[i]);
    }
    return std::move(m_graph);
  }

  size_t node_count() const { return m_graph.nodes().size(); }

  /// `values` are of m_from, and become of the new graph.
  void carry(std::vector<ValueId>& values) const {
    for (ValueId& value : values) value = value == k_none ? k_none : m_values[value];
  }

 private:
  void bind(const Node& node, const std::vector<ValueId>& results) {
    for (size_t r = 0; r < results.size(); ++r) {
      m_values[node.results[r]] = results[r];
      const std::string& name = m_from.value(node.results[r]).name;
      // A decomposition may give back an operand, which has its own name.
      if (!name.empty() && m_graph.value(results[r]).name.empty()) m_graph.set_name(results[r], name);
    }
  }

  const Graph& m_from;
  Graph m_graph;
  std::vector<ValueId> m_values;  // of m_from, in m_graph
};

bool is_composite(const Graph& graph, const Node& node,
                  const std::function<bool(const Graph&, const Node&)>& keep_whole) {
  return node.op->decompose != nullptr && !keep_whole(graph, node);
}

/// One level: what decompositions are made of may be composite again. `origins` maps before and after.
Expected<Graph> decompose_once(const Graph& graph, const std::function<bool(const Graph&, const Node&)>& keep_whole,
                               std::vector<NodeId>& origins, std::vector<ValueId>& values) {
  Rewriter rewriter(graph);
  std::vector<NodeId> next_origins;
  for (NodeId id = 0; id < graph.nodes().size(); ++id) {
    const Node& node = graph.node(id);
    if (is_composite(graph, node, keep_whole)) {
      KILN_RETURN_IF_ERROR(rewriter.take_apart(node));
    } else {
      rewriter.copy(node);
    }
    next_origins.resize(rewriter.node_count(), origins[id]);
  }
  origins = std::move(next_origins);
  rewriter.carry(values);
  return rewriter.finish();
}

}  // namespace

Graph without_dead_nodes(const Graph& graph, std::vector<NodeId>* origins, std::vector<ValueId>* values) {
  std::vector<bool> needed(graph.values().size(), false), live(graph.nodes().size(), false);
  for (const ValueId output : graph.outputs()) needed[output] = true;
  for (size_t id = graph.nodes().size(); id-- > 0;) {
    const Node& node = graph.nodes()[id];
    live[id] = std::any_of(node.results.begin(), node.results.end(), [&](ValueId r) { return needed[r]; });
    if (!live[id]) continue;
    for (const ValueId operand : node.operands) {
      if (operand != k_none) needed[operand] = true;
    }
  }
  Rewriter rewriter(graph);
  std::vector<NodeId> kept;
  for (NodeId id = 0; id < graph.nodes().size(); ++id) {
    if (!live[id]) continue;
    rewriter.copy(graph.node(id));
    kept.push_back(origins == nullptr || origins->empty() ? id : (*origins)[id]);
  }
  if (origins != nullptr) *origins = std::move(kept);
  if (values != nullptr) rewriter.carry(*values);
  return rewriter.finish();
}

Expected<Graph> decompose(const Graph& graph, const std::function<bool(const Graph&, const Node&)>& keep_whole,
                          std::vector<NodeId>* origins, std::vector<ValueId>* values) {
  Graph current = graph;
  std::vector<NodeId> from(graph.nodes().size());
  std::iota(from.begin(), from.end(), 0);
  std::vector<ValueId> now(graph.values().size());
  std::iota(now.begin(), now.end(), 0);
  const auto composite = [&](const Node& node) { return is_composite(current, node, keep_whole); };
  while (std::any_of(current.nodes().begin(), current.nodes().end(), composite)) {
    KILN_ASSIGN_OR_RETURN(current, decompose_once(current, keep_whole, from, now));
  }
  current = without_dead_nodes(current, &from, &now);
  if (origins != nullptr) *origins = std::move(from);
  if (values != nullptr) *values = std::move(now);
  return current;
}

}  // namespace kiln
