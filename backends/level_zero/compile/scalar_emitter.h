#pragma once

#include "backends/level_zero/compile/emitter.h"
#include "frontend/kernel/scalar.h"

namespace kiln::level_zero {

/// ScalarOp's meaning in instructions. In registers booleans are truth values, f16 and bf16 are f32, u8 and i8 are 8 bits
/// without a sign of their own; in memory a boolean is a byte and the half precisions are their 16 bits.
class ScalarEmitter {
 public:
  explicit ScalarEmitter(Emitter& emitter) : e(emitter) {}

  Id register_type(DType dtype);
  Id memory_type(DType dtype);
  Id from_memory(DType dtype, Id pattern);
  Id to_memory(DType dtype, Id value);

  Id constant(const ScalarNode& node);
  Id zero(DType dtype) { return e.null(register_type(dtype)); }
  Id cast(Id value, DType from, DType to);
  /// `dtype` is the operands' (of operands 1 and 2 for select).
  Id apply(ScalarOp op, DType dtype, Id a, Id b, Id c);

  // Reductions: `dtype` is the combined values'; totals are of reduced_dtype().
  Id identity(Combiner combiner, DType dtype);
  Id to_accumulator(Combiner combiner, DType dtype, Id value);
  Id combine(Combiner combiner, DType dtype, Id total, Id value);

 private:
  Id compare(ScalarOp op, DType dtype, Id a, Id b);
  Id apply_boolean(ScalarOp op, Id a, Id b);
  Id apply_integer(ScalarOp op, DType dtype, Id a, Id b);
  Id philox(Id key, Id counter);
  Id divide(ScalarOp op, DType dtype, Id a, Id b);
  Id apply_real(ScalarOp op, Id a, Id b);
  Id is_rounded_up(Id rest, Id b);
  Id real_remainder(Id a, Id b);
  Id floor_div(Id a, Id b);
  Id binary(spv::Op code, Id a, Id b) { return e.op(code, e.type_of(a), {a, b}); }
  Id unary(spv::Op code, Id a) { return e.op(code, e.type_of(a), {a}); }
  Id real(Id like, double value) { return e.constant_real(e.type_of(like), value); }
  Id whole(Id like, int64_t value) { return e.constant(e.type_of(like), value); }

  Emitter& e;
};

}  // namespace kiln::level_zero
