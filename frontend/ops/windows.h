#pragma once

#include "frontend/ops/rules.h"

namespace kiln {

/// How many positions a window of `kernel` elements, `dilation` apart, has over `extent` elements, `stride` apart: at least
/// one, now or by a guard. `said`, if not null, is what the caller says it is, where the extent's symbols leave that open: they
/// are guarded then. Internal to frontend/ops.
/// Errors: invalid_argument where it does not fit, naming `operand`.
Expected<Dim> window_positions(const OpContext& context, size_t operand, const Dim& extent, int64_t kernel,
                               int64_t stride, int64_t dilation, const Dim* said = nullptr);

/// The attribute 'positions' for one of the dims that windows slide over; null where it is left out.
Expected<const Dim*> said_positions(const OpContext& context, size_t rank, size_t dim);

/// The attribute is a number in [least, 2^31) for each of `rank` dims, or why not.
Status check_per_dim(const OpContext& context, std::string_view name, size_t rank, int64_t least);

}  // namespace kiln
