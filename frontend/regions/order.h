#pragma once

#include "frontend/regions/copies.h"
#include "frontend/regions/regions.h"

namespace kiln {

/// Completes repeated parts to a partition that can be executed: parts that would wait for each other are
/// given up, the smallest first, and the nodes in no part are gathered, each gathering as single copy.
std::vector<Copies> order_parts(const Wiring& wiring, std::vector<Copies> repeated);

/// Indices of the regions such that each comes behind those it reads from; among those that could run, the
/// one with the smallest node first.
std::vector<size_t> executable_order(const Graph& graph, const std::vector<Region>& regions);

}  // namespace kiln
