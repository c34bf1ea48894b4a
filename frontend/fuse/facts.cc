#include "frontend/fuse/facts.h"

#include <algorithm>

#include "frontend/kernel/affine.h"

namespace kiln {

std::vector<int64_t> constants_of(const std::vector<Dim>& dims) {
  std::vector<int64_t> result;
  for (const Dim& dim : dims) result.push_back(dim.constant());
  return result;
}

Expected<GraphFacts> gather_facts(const Graph& graph) {
  GraphFacts facts;
  facts.graph = &graph;
  for (const Value& value : graph.values()) {
    for (const std::vector<Dim>* dims : {&value.type.shape, &value.type.strides}) {
      for (const Dim& dim : *dims) {
        if (dim.is_constant()) continue;
        return error(StatusCode::failed_precondition, "fuse: a value is {}, expected bound symbols",
                     value.type.to_string());
      }
    }
    facts.extents.push_back(constants_of(value.type.shape));
    facts.elements.push_back(product(facts.extents.back()));
  }
  facts.is_live.assign(graph.nodes().size(), false);
  facts.is_stored.assign(graph.values().size(), false);
  facts.users.resize(graph.values().size());
  const auto keep = [&](ValueId value) {
    if (!facts.is_input(value)) facts.is_live[graph.value(value).producer] = true;
  };
  for (const ValueId output : graph.outputs()) keep(output);
  for (NodeId id = static_cast<NodeId>(graph.nodes().size()); id-- > 0;) {
    if (!facts.is_live[id]) continue;
    for (const ValueId operand : graph.node(id).operands) {
      if (operand != k_none) keep(operand);
    }
  }
  for (NodeId id = 0; id < graph.nodes().size(); ++id) {
    if (!facts.is_live[id]) continue;
    for (const ValueId operand : graph.node(id).operands) {
      if (operand == k_none) continue;
      std::vector<NodeId>& users = facts.users[operand];
      if (users.empty() || users.back() != id) users.push_back(id);
    }
  }
  return facts;
}

}  // namespace kiln
