#pragma once

#include <span>
#include <vector>

#include "base/expected.h"
#include "frontend/ir/graph.h"

namespace kiln {

/// Two values that are said to be the same, one of each graph.
struct SameValue {
  ValueId here = k_none, there = k_none;
};

/// For each value of `here` that some of `ends` depends on, the value of `there` that is the same: both graphs are
/// walked from the ends towards their inputs, side by side. `here` input i must be met as `inputs[i]`; k_none: anything.
/// An identity permutation of `here` that is not one of `there` is passed over: settle_layouts adds such.
/// So a rewriting is followed without its own word for what became of what.
/// Errors: internal when ops, attributes or types on the way differ, with the place.
Expected<std::vector<ValueId>> walk_in_step(const Graph& here, const Graph& there, std::span<const SameValue> ends,
                                            std::span<const ValueId> inputs);

}  // namespace kiln
