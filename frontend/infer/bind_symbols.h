#pragma once

#include <span>

#include "base/expected.h"
#include "frontend/ir/graph.h"

namespace kiln {

/// The graph for one set of extents: `extents[id]` replaces symbol `id` everywhere, `extent` nodes become constants,
/// guards are checked and gone. Nodes keep their ids; values too when all inputs were added first.
/// Errors: failed_precondition for a guard that does not hold, naming it; invalid_argument for missing extents and
/// dims that become negative or overflow.
Expected<Graph> bind_symbols(const Graph& graph, std::span<const int64_t> extents);

/// What bind_symbols() says of the guards.
Status check_guards(const Graph& graph, std::span<const int64_t> extents);

}  // namespace kiln
