#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "cli/buffer.h"
#include "client/client.h"
#include "frontend/ops/element_evaluator.h"

namespace kiln::cli {

/// Normal numbers; 0 and 1 for integers, which are indices into anything that has two elements.
void fill_random(Buffer& buffer, std::mt19937_64& random);

/// Compares elements of what a program left with the reference's value.
Comparison compare(ElementEvaluator& reference, ValueId value, const Buffer& got, std::mt19937_64& random);

/// Compares what a program left with the reference, output by output. An output that is an input was not written.
/// Errors: of the reference.
Expected<std::vector<Comparison>> compare_outputs(const Graph& graph, const Program& program,
                                                  const std::vector<Buffer>& inputs, const std::vector<Buffer>& outputs,
                                                  uint64_t seed);

}  // namespace kiln::cli
