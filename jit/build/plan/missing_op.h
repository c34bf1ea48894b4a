#pragma once

#include <string>

#include "backends/backend.h"
#include "frontend/ir/graph.h"

namespace kiln {

/// Which op of a graph that could not be built it was, for whoever goes on without it (Status::op): the first that has
/// no kernel on the target even alone; where each alone has one, the op that costs most. Empty for a graph without
/// nodes. Cost: fusion of each distinct node; for failures only.
std::string missing_op(const Graph& graph, const CompileBackend& backend, const Target& target);

}  // namespace kiln
