#pragma once

#include <vector>

#include "base/expected.h"
#include "frontend/fuse/plan.h"
#include "frontend/ops/tensor.h"

namespace kiln {

/// Executes a plan with the reference backend: outputs and temporaries poisoned first, outputs gathered by their
/// strides. Each launch is compared with its reference graph, evaluated on what it read. `inputs` hold memory in the strides of the graph's inputs, from the first element to the last.
Expected<std::vector<Tensor>> run_plan(const Plan& plan, const Graph& region, const std::vector<Tensor>& inputs);

/// Fuses, runs, and compares every output with the f64 reference of the region: |got - wanted| ≤ tolerance *
/// (1 + |wanted|), NaN equal to NaN; with all choices that may make a difference,
/// where there are no halves.
/// Gives the plan of the default ones; fails the running test otherwise.
Plan expect_fused(const Graph& region, const std::vector<Tensor>& inputs, double tolerance = 2e-5);

/// Random memory for the inputs of a graph: normal floats, booleans, integers in [0, bound).
std::vector<Tensor> random_inputs(const Graph& region, uint64_t seed, int64_t bound = 1);

/// "loops_f32_6x4 gemm_…": for messages.
std::string kernels_of(const Plan& plan);

}  // namespace kiln
