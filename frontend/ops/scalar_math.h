#pragma once

#include <limits>

#include "frontend/kernel/scalar.h"

namespace kiln {

inline constexpr double k_nan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double k_infinity = std::numeric_limits<double>::infinity();

/// What a scalar operation means, in f64. `operand` is the operands' dtype (of select's branches), `result` the
/// result's: integers are computed as integers and wrap to the result's width. NaN for an integer or a condition says that it
/// is not known (ElementEvaluator::round_at_random): nothing is known of what is made of it either.
double apply_scalar(ScalarOp op, DType operand, DType result, double a, double b, double c);

/// The combiner's neutral element for a dtype: what a reduction of nothing gives.
double neutral_of(Combiner combiner, DType dtype);
double combine(Combiner combiner, double a, double b);

}  // namespace kiln
