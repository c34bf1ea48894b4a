#include <algorithm>
#include <string>
#include <tuple>
#include <unordered_map>

#include "frontend/canonical/canonical.h"
#include "frontend/ops/op.h"

// Two passes.
//
// Merging: nodes are visited in order; a node whose op, attributes and (already merged) operands were seen
// before is the earlier node. Ops are functions, random ones take their seed as an operand, so this is always
// right.
//
// Ordering: a depth-first walk from the outputs over the operands, in their order, writes each node behind
// its operands. After merging no two nodes are alike, so the walk depends on structure alone, and what it
// does not reach is dead. No hash decides anything.

namespace kiln {
namespace {

/// The value that stands for each value after merging.
std::vector<ValueId> merge_equal_nodes(const Graph& graph) {
  std::vector<ValueId> merged(graph.values().size());
  for (ValueId id = 0; id < merged.size(); ++id) merged[id] = id;
  std::unordered_map<std::string, NodeId> seen;
  seen.reserve(graph.nodes().size());
  for (NodeId id = 0; id < graph.nodes().size(); ++id) {
    const Node& node = graph.node(id);
    ByteWriter content;
    content.write(node.op->name);
    content.write(static_cast<uint32_t>(node.operands.size()));
    for (ValueId operand : node.operands) content.write(operand == k_none ? k_none : merged[operand]);
    append_attributes(content, node.attributes);
    const std::vector<uint8_t>& bytes = content.bytes();
    const auto [first, is_new] = seen.try_emplace(std::string(bytes.begin(), bytes.end()), id);
    if (is_new) continue;
    const Node& equal = graph.node(first->second);
    for (size_t i = 0; i < node.results.size(); ++i) merged[node.results[i]] = equal.results[i];
  }
  return merged;
}

/// The nodes that outputs need, operands before users, by a depth-first walk without recursion.
std::vector<NodeId> structural_order(const Graph& graph, const std::vector<ValueId>& merged) {
  struct Visit {
    NodeId node;
    size_t next_operand;
  };
  std::vector<NodeId> order;
  std::vector<bool> entered(graph.nodes().size());
  std::vector<Visit> stack;
  auto enter = [&](ValueId value) {
    const NodeId producer = value == k_none ? k_none : graph.value(merged[value]).producer;
    if (producer == k_none || entered[producer]) return;
    entered[producer] = true;
    stack.push_back({producer, 0});
  };
  for (ValueId output : graph.outputs()) {
    enter(output);
    while (!stack.empty()) {
      Visit& visit = stack.back();
      const std::vector<ValueId>& operands = graph.node(visit.node).operands;
      if (visit.next_operand < operands.size()) {
        enter(operands[visit.next_operand++]);  // may move `visit`
      } else {
        order.push_back(visit.node);
        stack.pop_back();
      }
    }
  }
  return order;
}

/// The strides that say the same: an extent of 1 is never stepped over, and dense row-major is left out.
std::vector<Dim> canonical_strides(const Shape& shape, std::vector<Dim> strides) {
  if (strides.empty()) return strides;
  const bool empty = std::ranges::find(shape, Dim(0)) != shape.end();
  bool dense = true;
  Dim expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] == Dim(1)) strides[i] = expected;
    dense = dense && strides[i] == expected;
    expected = expected * shape[i];
  }
  if (empty || dense) strides.clear();
  return strides;
}

void add_guards(Graph& to, const Graph& from) {
  std::vector<Guard> guards = from.guards();
  auto content = [](const Guard& guard) { return std::tie(guard.dim, guard.relation, guard.modulus); };
  std::ranges::sort(guards, {}, content);
  guards.erase(std::ranges::unique(guards).begin(), guards.end());
  for (Guard& guard : guards) to.add_guard(std::move(guard));
}

}  // namespace

Canonical canonicalise(const Graph& graph) {
  const std::vector<ValueId> merged = merge_equal_nodes(graph);
  const std::vector<NodeId> order = structural_order(graph, merged);

  Graph canonical;
  for (size_t i = 0; i < graph.symbols().size(); ++i) canonical.add_symbol({});
  add_guards(canonical, graph);
  std::vector<ValueId> new_ids(graph.values().size(), k_none);
  for (ValueId input : graph.inputs()) {
    TensorType type = graph.type(input);
    type.strides = canonical_strides(type.shape, std::move(type.strides));
    new_ids[input] = canonical.add_input(std::move(type));
  }
  for (NodeId id : order) {
    const Node& node = graph.node(id);
    std::vector<ValueId> operands = node.operands;
    for (ValueId& operand : operands) {
      if (operand != k_none) operand = new_ids[merged[operand]];
    }
    std::vector<TensorType> types;
    for (ValueId result : node.results) types.push_back(graph.type(result));
    const NodeId added = canonical.add_node(node.op, std::move(operands), node.attributes, std::move(types));
    for (size_t i = 0; i < node.results.size(); ++i) new_ids[node.results[i]] = canonical.node(added).results[i];
  }

  std::vector<ValueId> outputs;
  for (ValueId output : graph.outputs()) outputs.push_back(new_ids[merged[output]]);
  canonical.set_outputs(std::move(outputs));
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const Shape& shape = graph.type(graph.outputs()[i]).shape;
    canonical.set_output_strides(i, canonical_strides(shape, graph.output_strides()[i]));
  }
  std::vector<uint8_t> bytes = canonical_bytes(canonical);
  const Digest digest = digest_of(bytes);
  return {std::move(canonical), std::move(bytes), digest};
}

}  // namespace kiln
