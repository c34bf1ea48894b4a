#pragma once

#include "frontend/regions/copies.h"
#include "frontend/regions/regions.h"

namespace kiln {

/// The copies as regions, with inputs and outputs in an order that corresponds and that follows from the
/// structure of one copy alone: the same part in another graph gets the same order. `places` is scratch,
/// empty before and after.
std::vector<Region> make_regions(const Wiring& wiring, const Copies& copies, Places& places);

}  // namespace kiln
