#include "frontend/fuse/copy_points.h"

#include <algorithm>
#include <numeric>

#include "frontend/ir/graph_copy.h"
#include "frontend/ops/attributes.h"
#include "frontend/ops/op.h"

namespace kiln {

namespace {

ValueId add_copy_point(Graph& graph, ValueId value) {
  static const OpDef* const permute = find_op("permute");
  const TensorType& type = graph.type(value);
  std::vector<int64_t> dims(type.rank());
  std::iota(dims.begin(), dims.end(), 0);
  const NodeId added = graph.add_node(permute, {value}, {{"dims", std::move(dims)}}, {{type.dtype, type.shape, {}}});
  return graph.node(added).results[0];
}

/// A scatter begins with its first operand and reads its source: where both come from one value, the kernel has that
/// value in two buffers, one of which it changes.
bool changes_what_others_read(const std::vector<std::vector<NodeId>>& users, const Node& node) {
  if (node.op->kind != OpKind::indexing || node.operands.size() < 2) return false;
  const bool is_operand_again = std::count(node.operands.begin(), node.operands.end(), node.operands[0]) > 1;
  return is_operand_again || users[node.operands[0]].size() > 1;
}

}  // namespace

bool is_copy_point(const Node& node) {
  if (node.op->name != "permute") return false;
  const std::vector<int64_t>& dims = integers_of(node.attributes, "dims");
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] != static_cast<int64_t>(d)) return false;
  }
  return true;
}

Graph place_copy_points(const Graph& graph, std::vector<ValueId>& values) {
  GraphCopy copy(graph);
  const std::vector<std::vector<NodeId>> users = graph.users();
  for (const Node& node : graph.nodes()) {
    std::vector<ValueId> operands = copy.operands_of(node);
    if (node.op->name == "reshape" || changes_what_others_read(users, node)) {
      operands[0] = add_copy_point(copy.graph(), operands[0]);
    }
    copy.add(node, std::move(operands), node.attributes);
  }
  copy.carry(values);
  return copy.finish();
}

}  // namespace kiln
