#pragma once

#include "frontend/regions/regions.h"

namespace kiln {

/// The graph's symbols that the region's types and attributes name, by first appearance: what Region::symbols holds.
std::vector<SymbolId> symbols_of(const Graph& graph, const Region& region);

}  // namespace kiln
