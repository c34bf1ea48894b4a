#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/backend.h"
#include "frontend/kernel/kernel_spec.h"
#include "verdict/demanded_blocks.h"

namespace kiln {

/// Schedule::tile of all candidates together: what is smaller in each dim. A small one where a schedule says nothing.
std::vector<int64_t> smallest_tile(const KernelSpec& spec, std::span<const Schedule> schedules);

/// What chooses the elements of one output. `dims` and `strides`: the output's, in elements of its buffer; `tile`:
/// smallest_tile(); `nodes`: how many the reference has. Neighbouring dims that walk along one dim of the kernel are one
/// in the demand: its flat indices are the output's.
Demand demand_of(const KernelSpec& spec, uint32_t buffer, std::span<const int64_t> dims,
                 std::span<const int64_t> strides, std::span<const int64_t> tile, size_t nodes);

}  // namespace kiln
