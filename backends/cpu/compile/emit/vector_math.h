#pragma once

#include <initializer_list>

#include "backends/cpu/compile/emit/emitter.h"

namespace kiln::cpu {

/// Elementary functions as inline polynomials over vectors (or scalars) of f32 or f64. No calls, no tables.
///
/// Right for NaN (NaN out), infinities, zeros and denormals, as C's <math.h>. Largest error over the whole
/// range, in units of the last place (tests/backends/cpu/vector_math_test.cc measures it on every target):
///
///            exp  expm1  log  log1p  tanh  erf  sigmoid  rsqrt  sin, cos       pow             atan2
///     f32     2     3     2     3      4    3      4       2      1 (1)          1               1
///     f64     2     3     2     4      4    4      4       2      3 (1)    2 + 2 |y log x|       3
///
/// (1) up to |x| = 1e6, then the error grows with |x|; results stay within [-1, 1].
class VectorMath {
 public:
  explicit VectorMath(Emitter& emitter) : e(emitter) {}

  llvm::Value* exp(llvm::Value* x);
  llvm::Value* exp2(llvm::Value* x);
  llvm::Value* expm1(llvm::Value* x);
  llvm::Value* log(llvm::Value* x);
  llvm::Value* log1p(llvm::Value* x);
  llvm::Value* tanh(llvm::Value* x);
  llvm::Value* sigmoid(llvm::Value* x);
  llvm::Value* erf(llvm::Value* x);
  llvm::Value* rsqrt(llvm::Value* x);
  llvm::Value* sin(llvm::Value* x) { return sin_or_cos(x, 0); }
  llvm::Value* cos(llvm::Value* x) { return sin_or_cos(x, 1); }
  llvm::Value* pow(llvm::Value* x, llvm::Value* y);
  llvm::Value* atan2(llvm::Value* y, llvm::Value* x);
  /// x - trunc(x / y) * y, exactly; the sign of x. Takes as many rounds as the exponents of x and y differ.
  llvm::Value* fmod(llvm::Value* x, llvm::Value* y);

 private:
  /// exp(x) = 2^whole * (1 + tail); whole is a floating value.
  struct Split {
    llvm::Value* whole;
    llvm::Value* tail;
  };
  Split split_exponential(llvm::Value* x);
  llvm::Value* exp_tail(llvm::Value* r);
  llvm::Value* scale(llvm::Value* mantissa, llvm::Value* whole);
  llvm::Value* sin_or_cos(llvm::Value* x, int quarter);
  llvm::Value* atan_of_unit(llvm::Value* z);
  llvm::Value* pow_magnitude(llvm::Value* x, llvm::Value* y);

  bool is_f64(const llvm::Value* x) const { return x->getType()->getScalarType()->isDoubleTy(); }
  llvm::Value* constant(const llvm::Value* like, double value) { return Emitter::real(like->getType(), value); }
  llvm::Type* bits_type(const llvm::Value* x);
  llvm::Value* polynomial(llvm::Value* x, std::initializer_list<double> ascending);
  llvm::Value* clamp(llvm::Value* x, double low, double high);
  llvm::Value* absolute(llvm::Value* x) { return e.unary(llvm::Intrinsic::fabs, x); }
  llvm::Value* copy_sign(llvm::Value* magnitude, llvm::Value* sign);
  llvm::Value* widen(llvm::Value* x) { return e.ir.CreateFPExt(x, Emitter::like(x, e.f64())); }
  llvm::Value* narrow(llvm::Value* x) { return e.ir.CreateFPTrunc(x, Emitter::like(x, e.f32())); }

  Emitter& e;
};

}  // namespace kiln::cpu
