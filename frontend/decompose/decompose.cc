#include "frontend/decompose/decompose.h"

#include <algorithm>
#include <numeric>

#include "frontend/infer/builder.h"
#include "frontend/ir/graph_copy.h"

namespace kiln {

namespace {

/// A copy with names and guards, in which nodes may be taken apart.
class Rewriter {
 public:
  explicit Rewriter(const Graph& from) : m_from(from), m_copy(from) {
    for (const Guard& guard : from.guards()) m_copy.graph().add_guard(guard);
  }

  void copy(const Node& node) {
    m_copy.add(node);
    for (const ValueId result : node.results) name(result);
  }

  Status take_apart(const Node& node) {
    Graph& graph = m_copy.graph();
    GraphBuilder builder(graph);
    const std::vector<ValueId> operands = m_copy.operands_of(node);
    KILN_ASSIGN_OR_RETURN(const std::vector<ValueId> results, node.op->decompose(builder, node, operands));
    for (size_t r = 0; r < results.size(); ++r) {
      const TensorType &is = graph.type(results[r]), &was = m_from.type(node.results[r]);
      if (is.dtype == was.dtype && is.shape == was.shape) continue;
      return error(StatusCode::internal, "{}: the decomposition's result {} is {}, expected {}", node.op->name, r,
                   is.to_string(), was.to_string());
    }
    for (size_t r = 0; r < results.size(); ++r) {
      m_copy.bind(node.results[r], results[r]);
      name(node.results[r]);
    }
    return {};
  }

  Graph finish() { return m_copy.finish(); }
  size_t node_count() const { return m_copy.graph().nodes().size(); }
  /// `values` are of m_from, and become of the new graph.
  void carry(std::vector<ValueId>& values) const { m_copy.carry(values); }

 private:
  void name(ValueId value) {
    const std::string& name = m_from.value(value).name;
    // A decomposition may give back an operand, which has its own name.
    if (!name.empty() && m_copy.graph().value(m_copy[value]).name.empty()) m_copy.graph().set_name(m_copy[value], name);
  }

  const Graph& m_from;
  GraphCopy m_copy;
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
