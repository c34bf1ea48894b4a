#pragma once

#include <cstdint>
#include <span>

#include "frontend/ir/dtype.h"

namespace kiln {

/// In place of a number that is too large, and of one that no task made.
inline constexpr double k_tame = 0.5;

/// Makes k_tame of what is not finite, or beyond 2^40: products of such numbers are not finite. In f16, whose numbers are
/// smaller, of what is not finite. True when there was any.
bool tame(DType dtype, std::span<uint8_t> bytes);

}  // namespace kiln
