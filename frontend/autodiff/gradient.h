#pragma once

#include <span>
#include <vector>

#include "base/expected.h"
#include "frontend/infer/builder.h"

namespace kiln {

/// Reverse-mode derivatives: adds nodes that compute d loss / d wrt[i] and gives their values, in order, each of the
/// type of wrt[i]; zeros where the loss does not depend on it.
///
/// `loss` must be a floating scalar, `wrt` floating values. Each node's derivative is its row's; a composite without
/// one is taken apart first, which leaves its pieces in the graph. Integers and booleans have no derivative.
/// Errors: unimplemented, naming the op, where a floating value on the path has none.
Expected<std::vector<ValueId>> gradients(GraphBuilder& builder, ValueId loss, std::span<const ValueId> wrt);

/// The same from given gradients of several values (`seeds[i]` belongs to `outputs[i]` and has its type).
Expected<std::vector<ValueId>> gradients(GraphBuilder& builder, std::span<const ValueId> outputs,
                                         std::span<const ValueId> seeds, std::span<const ValueId> wrt);

}  // namespace kiln
