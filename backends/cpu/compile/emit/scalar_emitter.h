#pragma once

#include "backends/cpu/compile/emit/emitter.h"
#include "backends/cpu/compile/emit/vector_math.h"
#include "base/status.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln::cpu {

/// ScalarOps as IR over vectors or scalars.
///
/// In registers a boolean is an i1, f16 and bf16 are f32 (rounded by cast and store alone), all else is
/// itself. In memory a boolean is a byte, f16 and bf16 are 16-bit patterns.
class ScalarEmitter {
 public:
  explicit ScalarEmitter(Emitter& emitter) : e(emitter), m_math(emitter) {}

  llvm::Type* register_type(DType dtype);
  llvm::Type* memory_type(DType dtype);

  llvm::Value* constant(const ScalarNode& node);
  llvm::Value* zero(DType dtype, int lanes) {
    return llvm::Constant::getNullValue(Emitter::vector(register_type(dtype), lanes));
  }
  llvm::Value* from_memory(DType dtype, llvm::Value* pattern);
  llvm::Value* to_memory(DType dtype, llvm::Value* value);
  /// The same for a value that the dtype holds, as loads and casts give: nothing is rounded again.
  llvm::Value* rounded_to_memory(DType dtype, llvm::Value* value);
  llvm::Value* cast(llvm::Value* value, DType from, DType to);

  /// `dtype` is the operands' (of select's second and third). All operands have equally many lanes.
  llvm::Value* apply(ScalarOp op, DType dtype, llvm::Value* a, llvm::Value* b, llvm::Value* c);
  /// Whether apply has a meaning for it.
  static bool supports(ScalarOp op, DType dtype);

  // Reductions: values are in accumulator_of their dtype, booleans for the logical ones.
  llvm::Value* identity(Combiner combiner, DType dtype, int lanes);
  llvm::Value* to_accumulator(Combiner combiner, DType dtype, llvm::Value* value);
  llvm::Value* combine(Combiner combiner, DType dtype, llvm::Value* total, llvm::Value* value);

 private:
  llvm::Value* apply_real(ScalarOp op, llvm::Value* a, llvm::Value* b);
  llvm::Value* apply_integer(ScalarOp op, DType dtype, llvm::Value* a, llvm::Value* b);
  llvm::Value* apply_boolean(ScalarOp op, llvm::Value* a, llvm::Value* b);
  llvm::Value* compare(ScalarOp op, DType dtype, llvm::Value* a, llvm::Value* b);
  llvm::Value* philox(llvm::Value* key, llvm::Value* counter);
  llvm::Value* divide(ScalarOp op, DType dtype, llvm::Value* a, llvm::Value* b);
  llvm::Value* is_rounded_up(llvm::Value* rest, llvm::Value* b);
  llvm::Value* half_to_float(llvm::Value* bits);
  llvm::Value* float_to_half(llvm::Value* value);
  llvm::Value* bfloat_to_float(llvm::Value* bits);
  llvm::Value* float_to_bfloat(llvm::Value* value);
  llvm::Value* narrow_to_float(llvm::Value* value);

  Emitter& e;
  VectorMath m_math;
};

}  // namespace kiln::cpu
