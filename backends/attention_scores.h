#pragma once

#include "frontend/kernel/scalar.h"

namespace kiln {

/// Whether a score of -inf at a product of zero means -inf at every finite product, and the expression may have a -inf of
/// its own: then a block of scores that are all -inf at zero needs no products. `value`: the score, k_no_expr for none.
bool leaves_out_scores(const Body& body, ExprId value);

}  // namespace kiln
