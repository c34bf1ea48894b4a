#include "jit/build/plan/missing_op.h"

#include <algorithm>

#include "frontend/fuse/plan.h"
#include "frontend/ops/op.h"
#include "jit/build/plan/model_choices.h"

namespace kiln {

namespace {

Graph alone(const Graph& graph, const Node& node) {
  Graph single;
  std::vector<ValueId> operands;
  for (const ValueId operand : node.operands) {
    if (operand == k_none) {
      operands.push_back(k_none);
    } else {
      operands.push_back(single.add_input({graph.type(operand).dtype, graph.type(operand).shape, {}}));
    }
  }
  std::vector<TensorType> types;
  for (const ValueId result : node.results) types.push_back({graph.type(result).dtype, graph.type(result).shape, {}});
  const NodeId added = single.add_node(node.op, std::move(operands), node.attributes, std::move(types));
  single.set_outputs(single.node(added).results);
  return single;
}

bool has_kernels(const Graph& graph, const CompileBackend& backend, const Target& target) {
  const Expected<Plan> plan = fuse(graph, model_choices(backend, target));
  return plan.ok() && std::ranges::all_of(plan->specs, [&](const KernelSpec& spec) {
           const Status claimed = backend.claims(spec, target);
           return claimed.ok() || claimed.code() != StatusCode::unimplemented;
         });
}

int rank_of_cost(OpKind kind) {
  switch (kind) {
    case OpKind::attention:
      return 3;
    case OpKind::contraction:
      return 2;
    case OpKind::view:
    case OpKind::creation:
      return 0;
    default:
      return 1;
  }
}

}  // namespace

std::string missing_op(const Graph& graph, const CompileBackend& backend, const Target& target) {
  for (const Node& node : graph.nodes()) {
    if (!has_kernels(alone(graph, node), backend, target)) return std::string(node.op->name);
  }
  const auto costliest =
      std::ranges::max_element(graph.nodes(), {}, [](const Node& node) { return rank_of_cost(node.op->kind); });
  return costliest == graph.nodes().end() ? "" : std::string(costliest->op->name);
}

}  // namespace kiln
