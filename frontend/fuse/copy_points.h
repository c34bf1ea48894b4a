#pragma once

#include "frontend/ir/graph.h"

namespace kiln {

/// The graph with a renaming of nothing (permute by the identity) before every reshape, and between a scatter and a first
/// operand that others read too. It costs nothing while it is
/// virtual, and is what gets a dense buffer where the reshape cuts across the layout of what lies before it: an input
/// or an output in the caller's strides cannot be laid out anew itself.
/// `values`, of `graph`, become those of the result.
Graph place_copy_points(const Graph& graph, std::vector<ValueId>& values);

/// Whether the node is such a renaming.
bool is_copy_point(const Node& node);

}  // namespace kiln
