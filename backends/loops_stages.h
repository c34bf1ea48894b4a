#pragma once

#include <vector>

#include "frontend/kernel/kernel_spec.h"

/// What backends ask of a loops kernel's stages.
namespace kiln {

/// What the stage computes: the values it combines and stores, the indices it stores at.
std::vector<ExprId> roots_of(const LoopsSpec& loops, const Stage& stage);

/// Whether a stage must meet its reduced points in order: some store of it adds, or goes where data says.
bool is_ordered(const LoopsSpec& loops, const Stage& stage);

/// Whether a later stage uses memory that this one changes, or changes what this one reads: work-items that share a
/// parallel point must meet in between.
bool conflicts_later(const LoopsSpec& loops, size_t stage);

}  // namespace kiln
