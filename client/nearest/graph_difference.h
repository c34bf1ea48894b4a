#pragma once

#include <string>
#include <vector>

#include "frontend/ir/graph.h"

namespace kiln {

/// What one graph has otherwise than another, in words: "input 0: f32[65, 256] was f32[64, 256]", "node 7, layer_norm: eps
/// 1e-05 was 1e-06". Types inside the graph follow from those, and are not told. Empty: none.
std::vector<std::string> graph_differences(const Graph& ours, const Graph& theirs);

}  // namespace kiln
