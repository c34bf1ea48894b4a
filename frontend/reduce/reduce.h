#pragma once

#include <functional>

#include "frontend/ir/graph.h"

namespace kiln {

/// A smaller graph for which `is_wrong` still holds, by trying: fewer outputs, outputs without strides, earlier values
/// as outputs, nodes replaced by inputs or by an operand of their type, inputs without strides. `is_wrong` must hold for
/// `graph`, is asked a few times for each node and decides when to end: it may say false from then on. What is given
/// back is well formed and has no dead nodes and no inputs that nothing reads.
Graph reduce(const Graph& graph, const std::function<bool(const Graph&)>& is_wrong);

}  // namespace kiln
