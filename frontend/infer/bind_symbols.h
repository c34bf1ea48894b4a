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

/// The graph where symbols that are the same have one name: `into[id]` is the new number of symbol `id`. Numbers are given as
/// symbols come: 0 to the first, and the next to each that is not the same as one before. Nodes keep their ids.
Graph merge_symbols(const Graph& graph, std::span<const SymbolId> into);

}  // namespace kiln
