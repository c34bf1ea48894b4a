#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/digest.h"

namespace kiln {

/// The plans that a program's bytes name, and the code that a plan's do: what must be kept for it to run. Empty for bytes
/// that are no such record.
std::vector<Digest> plans_named_by(std::span<const uint8_t> program);
std::vector<Digest> codes_named_by(std::span<const uint8_t> plan);

/// Whether the plan's choices have won a race. False for bytes that are no plan.
bool is_raced_plan(std::span<const uint8_t> plan);

/// Whether each kernel of the program that may race has (docs/tuning.md). True for bytes that are no program.
bool is_tuned_program(std::span<const uint8_t> program);

}  // namespace kiln
