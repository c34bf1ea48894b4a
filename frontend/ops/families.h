#pragma once

#include <span>

#include "frontend/ops/op.h"

namespace kiln {

/// The rows of each file of this folder; op_table.cc lists them. Internal to frontend/ops.
std::span<const OpDef> pointwise_ops();
std::span<const OpDef> activation_ops();
std::span<const OpDef> reduction_ops();
std::span<const OpDef> view_ops();
std::span<const OpDef> window_ops();
std::span<const OpDef> creation_ops();
std::span<const OpDef> indexing_ops();
std::span<const OpDef> arranging_ops();
std::span<const OpDef> contraction_ops();
std::span<const OpDef> convolution_ops();
std::span<const OpDef> attention_ops();
std::span<const OpDef> normalisation_ops();
std::span<const OpDef> softmax_ops();
std::span<const OpDef> loss_ops();

}  // namespace kiln
