#pragma once

#include "base/status.h"
#include "frontend/ir/graph.h"

namespace kiln {

/// Whether a dim from outside may be used: it has not overflowed and its symbols exist.
Status validate(const Dim& dim, size_t symbol_count);

/// Whether a tensor type from outside may be used: rank, extents and strides are within base/limits.h,
/// constants are not negative, symbols exist, and there is one stride per dimension or none.
/// resource_exhausted or invalid_argument.
Status validate(const TensorType& type, size_t symbol_count);

/// Strides for a graph output of this type, under the same rules.
Status validate_strides(const std::vector<Dim>& strides, const TensorType& type, size_t symbol_count);

}  // namespace kiln
