#include "frontend/fuse/score_path.h"

#include <algorithm>
#include <set>

#include "frontend/ops/op.h"

namespace kiln {

namespace {

/// The path from `scores` on; empty where its elements go elsewhere than to one attention_of_scores.
std::vector<NodeId> path_from(const Graph& graph, NodeId scores) {
  const ValueId products = graph.node(scores).results[0];
  std::set<ValueId> inside{products};
  std::vector<NodeId> path{scores};
  const auto is_inside = [&](ValueId value) { return inside.contains(value); };
  for (NodeId id = scores + 1; id < graph.nodes().size(); ++id) {
    const Node& node = graph.node(id);
    if (std::ranges::none_of(node.operands, is_inside)) continue;
    path.push_back(id);
    if (node.op->name == "attention_of_scores" && is_inside(node.operands[0]) && !is_inside(node.operands[1])) break;
    const bool is_elementwise = node.op->kind == OpKind::pointwise || node.op->kind == OpKind::composite;
    if (!is_elementwise || node.results.size() != 1) return {};
    if (graph.type(node.results[0]).shape != graph.type(products).shape) return {};
    inside.insert(node.results[0]);
  }
  const NodeId last = path.back();
  const auto is_read_later = [&](const Node& node) { return std::ranges::any_of(node.operands, is_inside); };
  const bool ends = graph.node(last).op->name == "attention_of_scores" &&
                    std::none_of(graph.nodes().begin() + last + 1, graph.nodes().end(), is_read_later) &&
                    std::ranges::none_of(graph.outputs(), is_inside);
  return ends ? path : std::vector<NodeId>{};
}

}  // namespace

std::vector<NodeId> score_path(const Graph& graph, NodeId end) {
  for (NodeId id = end + 1; id-- > 0;) {
    if (graph.node(id).op->name != "attention_scores") continue;
    std::vector<NodeId> path = path_from(graph, id);
    if (id == end || (!path.empty() && path.back() == end)) return path;
  }
  return {};
}

}  // namespace kiln
