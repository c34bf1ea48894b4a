#pragma once

#include "frontend/fuse/fusion_state.h"
#include "frontend/fuse/plan.h"

namespace kiln {

/// Decides where inputs, outputs and the values behind outputs lie, before kernels are made: fills `state.homes` and
/// `state.is_pinned`, marks facts.is_stored, and adds the plan's input and output buffers.
void settle_homes(const Graph& graph, GraphFacts& facts, FusionState& state, Plan& plan);

}  // namespace kiln
