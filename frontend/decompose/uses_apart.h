#pragma once

#include "frontend/ir/graph.h"

namespace kiln {

/// The graph with each use of a floating value a value of its own that equals it; inputs and outputs stay in order. One
/// kernel may read a value as another stored it, a third compute it once more: what may become of such a graph in its
/// dtypes' arithmetic is seen when each use is rounded for itself.
Graph with_uses_apart(const Graph& graph);

}  // namespace kiln
