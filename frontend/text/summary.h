#pragma once

#include <string>

#include "frontend/ir/graph.h"

namespace kiln {

/// The graph in a few words, for people: "2 matmul, gelu, layer_norm, 4 others -> f32[8, 64], f32[64]". Ops that compute most
/// of it come first, then the most frequent ones.
std::string summary(const Graph& graph);

}  // namespace kiln
