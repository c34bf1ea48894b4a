#pragma once

#include <functional>
#include <vector>

#include "base/expected.h"
#include "frontend/ir/graph.h"

namespace kiln {

/// The graph with every composite taken apart, down to primitives, except those that `keep_whole` names (nodes of `graph`, or of what it is taken apart into). Nodes that
/// no output needs are gone. Inputs, outputs, their types, symbols and guards stay as they are.
///
/// `origins`, when given, receives for each new node the node of `graph` it comes from; `values` for each value of
/// `graph` the new value that it is, k_none for those that are gone: so a kernel of decomposed nodes can be checked
/// against the ops the caller wrote.
/// Errors: those of the rows; a graph that GraphBuilder made has none.
Expected<Graph> decompose(const Graph& graph, const std::function<bool(const Graph&, const Node&)>& keep_whole,
                          std::vector<NodeId>* origins = nullptr, std::vector<ValueId>* values = nullptr);

/// The graph without nodes that no output needs; `origins` and `values` as above, both carried on when not empty.
Graph without_dead_nodes(const Graph& graph, std::vector<NodeId>* origins = nullptr,
                         std::vector<ValueId>* values = nullptr);

}  // namespace kiln
