/// A reduction of a large tensor to a few elements would be a few parallel points: one thread's work. Reducing all but
/// the outermost reduced dim first gives one partial result per outer index, and a second kernel that is small.
#include "frontend/fuse/split_reductions.h"

#include <algorithm>
#include <optional>

#include "frontend/ir/graph_copy.h"
#include "frontend/ops/attributes.h"

namespace kiln {

namespace {

// Below this a second kernel costs more than threads gain (a launch is some microseconds).
constexpr int64_t k_large_row = 1 << 16;
constexpr int64_t k_few_results = 8;

// The dim to leave for the second kernel.
std::optional<int64_t> outer_dim(const GraphFacts& facts, const Node& node) {
  if (node.op->kind != OpKind::reduction || size_of(facts.dtype(node.results[0])) == 2) return std::nullopt;
  std::vector<int64_t> dims = integers_of(node.attributes, "dims");
  const int64_t results = facts.elements[node.results[0]];
  if (dims.size() < 2 || results >= k_few_results || results == 0) return std::nullopt;
  if (facts.elements[node.operands[0]] / results < k_large_row) return std::nullopt;
  std::sort(dims.begin(), dims.end());
  for (const int64_t dim : dims) {
    if (facts.extents[node.operands[0]][static_cast<size_t>(dim)] >= k_few_results) return dim;
  }
  return std::nullopt;
}

Attributes with_dims(Attributes attributes, std::vector<int64_t> dims, bool keep_dims) {
  for (auto& [name, value] : attributes) {
    if (name == "dims") value = dims;
    if (name == "keep_dims") value = keep_dims;
  }
  return attributes;
}

}  // namespace

Graph split_reductions(const Graph& graph, const GraphFacts& facts, std::vector<ValueId>& values) {
  GraphCopy copy(graph);
  for (const Node& node : graph.nodes()) {
    const std::optional<int64_t> outer = outer_dim(facts, node);
    if (!outer) {
      copy.add(node);
      continue;
    }
    std::vector<int64_t> inner = integers_of(node.attributes, "dims");
    std::erase(inner, *outer);
    TensorType partial{graph.type(node.results[0]).dtype, graph.type(node.operands[0]).shape, {}};
    for (const int64_t dim : inner) partial.shape[static_cast<size_t>(dim)] = 1;
    const NodeId first =
        copy.graph().add_node(node.op, copy.operands_of(node), with_dims(node.attributes, inner, true), {partial});
    // The inner dims have extent 1 now; reducing them again costs nothing and keeps or drops them as asked.
    copy.add(node, copy.graph().node(first).results, node.attributes);
  }
  copy.carry(values);
  return copy.finish();
}

}  // namespace kiln
