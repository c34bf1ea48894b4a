#pragma once

#include <optional>
#include <string>
#include <vector>

#include "frontend/ir/graph.h"
#include "frontend/ops/op.h"
#include "frontend/ops/tensor.h"

namespace kiln {

/// One use of a row: floating operands are f64, far enough from kinks and poles for finite differences of 1e-5.
struct Sample {
  std::string op;
  std::vector<std::optional<Tensor>> operands;  // nothing: an optional operand left out
  Attributes attributes;
};

/// At least one for every row of the table; the same in every run. Odd extents, broadcasting, empty tensors.
std::vector<Sample> op_samples();

/// NaN, infinities and signed zeros through the rows they matter to; not for finite differences.
std::vector<Sample> special_samples();

/// The sample as a graph with its operands as inputs and all results as outputs. Throws, saying why, when it is not accepted.
Graph graph_of(const Sample& sample);
/// The same between other ops: operands are computed, results computed with, their dims in reverse, and flattened.
Graph graph_around(const Sample& sample);
/// The sample with operands that are casts: of f32 to whole numbers and truths, of f64 to f32 and back.
Graph graph_behind_casts(const Sample& sample);
/// What its inputs are: the operands that are given, with fractions that casts to whole numbers leave out.
std::vector<Tensor> inputs_behind_casts(const Sample& sample);
/// The operands that are given, in order: the graph's inputs.
std::vector<Tensor> inputs_of(const Sample& sample);

}  // namespace kiln
