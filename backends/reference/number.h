#pragma once

#include <cstdint>

#include "frontend/kernel/scalar.h"

namespace kiln {

/// One element in the interpreter: floating dtypes live in `real`, integers and booleans in `integer`. Which
/// one counts follows from the dtype at hand, as in a register.
struct Number {
  double real = 0;
  int64_t integer = 0;
};

Number load_number(DType dtype, const void* base, int64_t element);
/// Rounds to nearest even in floating dtypes, wraps in integer ones.
void store_number(DType dtype, void* base, int64_t element, Number value);

/// `value` of dtype `from` as dtype `to`, rounded to what `to` can hold.
Number cast_number(Number value, DType from, DType to);

/// ScalarOp's meaning for `dtype`, the dtype of the operands (of operands 1 and 2 for select). Floating
/// operations are computed in f64 whatever the dtype; integers wrap to their width. Not for leaves and cast.
Number apply(ScalarOp op, DType dtype, Number a, Number b, Number c);

/// What a reduction starts from.
Number identity_of(Combiner combiner);
/// `dtype` is the combined values'; sums of integers and booleans are made in i64.
Number combine(Combiner combiner, DType dtype, Number total, Number value);

}  // namespace kiln
