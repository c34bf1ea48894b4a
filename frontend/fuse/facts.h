#pragma once

#include <vector>

#include "base/expected.h"
#include "frontend/ir/graph.h"

namespace kiln {

/// A place a value is stored at: a buffer of the plan and the value's strides in it.
struct Home {
  uint32_t buffer = 0;
  std::vector<int64_t> strides;
};

/// What fusion looks up about a graph of primitives whose symbols are bound, computed once.
struct GraphFacts {
  const Graph* graph = nullptr;
  std::vector<std::vector<int64_t>> extents;  // of each value
  std::vector<int64_t> elements;
  std::vector<std::vector<NodeId>> users;  // of each value; live nodes only
  std::vector<bool> is_live;               // of each node: some output depends on it
  std::vector<bool> is_stored;             // of each value: a graph output is this value, or all of it renamed

  const Node& producer(ValueId value) const { return graph->node(graph->value(value).producer); }
  bool is_input(ValueId value) const { return graph->value(value).producer == k_none; }
  DType dtype(ValueId value) const { return graph->type(value).dtype; }
};

/// Errors: failed_precondition when a dim is not constant.
Expected<GraphFacts> gather_facts(const Graph& graph);

/// The dims as numbers; asserts that they are constant.
std::vector<int64_t> constants_of(const std::vector<Dim>& dims);

}  // namespace kiln
