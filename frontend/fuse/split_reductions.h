#pragma once

#include "frontend/fuse/facts.h"

namespace kiln {

/// The graph with reductions of much to little made in two steps. Not for f16 and bf16, whose
/// partial results would be rounded.
/// `values`, of `graph`, become those of the result.
Graph split_reductions(const Graph& graph, const GraphFacts& facts, std::vector<ValueId>& values);

}  // namespace kiln
