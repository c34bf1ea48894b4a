#include "backends/cpu/compile/emit/scalar_emitter.h"

#include <cassert>
#include <limits>

#include "frontend/kernel/philox.h"

namespace kiln::cpu {

llvm::Type* ScalarEmitter::register_type(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return e.i1();
    case DType::u8:
    case DType::i8:
      return e.i8();
    case DType::i32:
      return e.i32();
    case DType::i64:
      return e.i64();
    case DType::f16:
    case DType::bf16:
    case DType::f32:
      return e.f32();
    case DType::f64:
      return e.f64();
  }
  assert(false && "unknown dtype");
  return nullptr;
}

llvm::Type* ScalarEmitter::memory_type(DType dtype) {
  if (dtype == DType::boolean) return e.i8();
  return is_half(dtype) ? e.i16() : register_type(dtype);
}

llvm::Value* ScalarEmitter::constant(const ScalarNode& node) {
  llvm::Type* type = register_type(node.dtype);
  if (node.dtype == DType::boolean) return Emitter::integer(type, node.immediate_int != 0 ? 1 : 0);
  return is_floating(node.dtype) ? Emitter::real(type, node.immediate) : Emitter::integer(type, node.immediate_int);
}

// Memory and registers.

llvm::Value* ScalarEmitter::from_memory(DType dtype, llvm::Value* pattern) {
  if (dtype == DType::boolean) return e.ir.CreateICmpNE(pattern, llvm::Constant::getNullValue(pattern->getType()));
  if (dtype == DType::f16) return half_to_float(pattern);
  return dtype == DType::bf16 ? bfloat_to_float(pattern) : pattern;
}

llvm::Value* ScalarEmitter::to_memory(DType dtype, llvm::Value* value) {
  if (dtype == DType::boolean) return e.ir.CreateZExt(value, Emitter::like(value, e.i8()));
  if (dtype == DType::f16) return float_to_half(value);
  return dtype == DType::bf16 ? float_to_bfloat(value) : value;
}

llvm::Value* ScalarEmitter::rounded_to_memory(DType dtype, llvm::Value* value) {
  if (dtype != DType::bf16) return to_memory(dtype, value);
  llvm::Type* wide = Emitter::like(value, e.i32());
  llvm::Value* bits = e.ir.CreateBitCast(value, wide);
  return e.ir.CreateTrunc(e.ir.CreateLShr(bits, Emitter::integer(wide, 16)), Emitter::like(value, e.i16()));
}

llvm::Value* ScalarEmitter::bfloat_to_float(llvm::Value* bits) {
  llvm::Type* wide = Emitter::like(bits, e.i32());
  llvm::Value* shifted = e.ir.CreateShl(e.ir.CreateZExt(bits, wide), Emitter::integer(wide, 16));
  return e.ir.CreateBitCast(shifted, Emitter::like(bits, e.f32()));
}

/// Half to even by adding 0x7fff plus the lowest bit that stays; NaN would carry into infinity, so it is set
/// apart. AVX512-BF16 has an instruction for it, which takes denormals for zeros.
llvm::Value* ScalarEmitter::float_to_bfloat(llvm::Value* value) {
  llvm::Type* wide = Emitter::like(value, e.i32());
  llvm::Value* bits = e.ir.CreateBitCast(value, wide);
  llvm::Value* lowest = e.ir.CreateAnd(e.ir.CreateLShr(bits, Emitter::integer(wide, 16)), Emitter::integer(wide, 1));
  llvm::Value* rounded = e.ir.CreateAdd(bits, e.ir.CreateAdd(lowest, Emitter::integer(wide, 0x7fff)));
  llvm::Value* high = e.ir.CreateLShr(rounded, Emitter::integer(wide, 16));
  high = e.ir.CreateSelect(e.ir.CreateFCmpUNO(value, value), Emitter::integer(wide, 0x7fc0), high);
  return e.ir.CreateTrunc(high, Emitter::like(value, e.i16()));
}

/// Shifted into place, a half is a float whose exponent is 112 too small: multiplying by 2^112 mends it,
/// denormals included. Infinity and NaN have the largest exponent, which is set apart.
llvm::Value* ScalarEmitter::half_to_float(llvm::Value* bits) {
  llvm::Type* type = Emitter::like(bits, e.f32());
  if (e.target().has(Feature::f16c)) {
    return e.ir.CreateFPExt(e.ir.CreateBitCast(bits, Emitter::like(bits, e.ir.getHalfTy())), type);
  }
  llvm::Type* wide = Emitter::like(bits, e.i32());
  llvm::Value* word = e.ir.CreateZExt(bits, wide);
  llvm::Value* magnitude =
      e.ir.CreateShl(e.ir.CreateAnd(word, Emitter::integer(wide, 0x7fff)), Emitter::integer(wide, 13));
  llvm::Value* scaled =
      e.ir.CreateBitCast(e.ir.CreateFMul(e.ir.CreateBitCast(magnitude, type), Emitter::real(type, 0x1p112)), wide);
  llvm::Value* special = e.ir.CreateICmpUGE(magnitude, Emitter::integer(wide, 0x7c00 << 13));
  scaled = e.ir.CreateSelect(special, e.ir.CreateOr(magnitude, Emitter::integer(wide, 0x7f800000)), scaled);
  llvm::Value* sign = e.ir.CreateShl(e.ir.CreateAnd(word, Emitter::integer(wide, 0x8000)), Emitter::integer(wide, 16));
  return e.ir.CreateBitCast(e.ir.CreateOr(scaled, sign), type);
}

llvm::Value* ScalarEmitter::float_to_half(llvm::Value* value) {
  llvm::Type* narrow = Emitter::like(value, e.i16());
  if (e.target().has(Feature::f16c)) {
    return e.ir.CreateBitCast(e.ir.CreateFPTrunc(value, Emitter::like(value, e.ir.getHalfTy())), narrow);
  }
  llvm::Type* wide = Emitter::like(value, e.i32());
  llvm::Value* bits = e.ir.CreateBitCast(value, wide);
  llvm::Value* magnitude = e.ir.CreateAnd(bits, Emitter::integer(wide, 0x7fffffff));
  // Normal halves: drop 13 bits, half to even, and take 112 from the exponent.
  llvm::Value* lowest =
      e.ir.CreateAnd(e.ir.CreateLShr(magnitude, Emitter::integer(wide, 13)), Emitter::integer(wide, 1));
  llvm::Value* normal = e.ir.CreateAdd(e.ir.CreateAdd(magnitude, Emitter::integer(wide, 0xfff)), lowest);
  normal = e.ir.CreateSub(e.ir.CreateLShr(normal, Emitter::integer(wide, 13)), Emitter::integer(wide, 112 << 10));
  // Denormal halves: adding 0.5 leaves a mantissa in units of 2^-24, rounded by the addition.
  llvm::Type* type = value->getType();
  llvm::Value* half = Emitter::real(type, 0.5);
  llvm::Value* denormal =
      e.ir.CreateSub(e.ir.CreateBitCast(e.ir.CreateFAdd(e.ir.CreateBitCast(magnitude, type), half), wide),
                     e.ir.CreateBitCast(half, wide));
  llvm::Value* result =
      e.ir.CreateSelect(e.ir.CreateICmpULT(magnitude, Emitter::integer(wide, 113 << 23)), denormal, normal);
  // 65520 and above round to infinity.
  result = e.ir.CreateSelect(e.ir.CreateICmpUGE(magnitude, Emitter::integer(wide, 0x477ff000)),
                             Emitter::integer(wide, 0x7c00), result);
  result = e.ir.CreateSelect(e.ir.CreateFCmpUNO(value, value), Emitter::integer(wide, 0x7e00), result);
  llvm::Value* sign = e.ir.CreateAnd(e.ir.CreateLShr(bits, Emitter::integer(wide, 16)), Emitter::integer(wide, 0x8000));
  return e.ir.CreateTrunc(e.ir.CreateOr(result, sign), narrow);
}

/// f64 to f32; other values stay. Rounding on to f16 or bf16 happens in a second step.
llvm::Value* ScalarEmitter::narrow_to_float(llvm::Value* value) {
  if (!value->getType()->getScalarType()->isDoubleTy()) return value;
  return e.ir.CreateFPTrunc(value, Emitter::like(value, e.f32()));
}

llvm::Value* ScalarEmitter::cast(llvm::Value* value, DType from, DType to) {
  if (from == to) return value;
  llvm::Type* type = Emitter::like(value, register_type(to));
  if (to == DType::boolean) {
    llvm::Value* nothing = llvm::Constant::getNullValue(value->getType());
    return is_floating(from) ? e.ir.CreateFCmpUNE(value, nothing) : e.ir.CreateICmpNE(value, nothing);
  }
  if (is_floating(from) && is_floating(to)) {
    if (to == DType::f64) return e.ir.CreateFPExt(value, type);
    llvm::Value* single = narrow_to_float(value);
    return is_half(to) ? from_memory(to, to_memory(to, single)) : single;
  }
  const bool is_unsigned = from == DType::boolean || from == DType::u8;
  if (is_floating(to)) {
    llvm::Value* real = is_unsigned ? e.ir.CreateUIToFP(value, type) : e.ir.CreateSIToFP(value, type);
    return is_half(to) && size_of(from) > 1 ? from_memory(to, to_memory(to, real)) : real;  // halves hold all bytes
  }
  if (is_floating(from)) {
    // Narrow integers by way of i32, which every target converts in vectors.
    llvm::Type* middle = to == DType::i64 ? type : Emitter::like(value, e.i32());
    // NaN, and what the integer does not hold, give its least, as in torch: LLVM's conversion says nothing of them.
    const double limit = to == DType::i64 ? 0x1p63 : 0x1p31;
    llvm::Value* fits =
        e.ir.CreateFCmpOLT(e.unary(llvm::Intrinsic::fabs, value), Emitter::real(value->getType(), limit));
    value = e.ir.CreateSelect(fits, value, Emitter::real(value->getType(), -limit));
    return e.ir.CreateTrunc(e.ir.CreateFPToSI(value, middle), type);
  }
  return is_unsigned ? e.ir.CreateZExtOrTrunc(value, type) : e.ir.CreateSExtOrTrunc(value, type);
}

// Operations.

bool ScalarEmitter::supports(ScalarOp op, DType dtype) {
  const bool real = is_floating(dtype);
  switch (op) {
    case ScalarOp::exp:
    case ScalarOp::expm1:
    case ScalarOp::log:
    case ScalarOp::log1p:
    case ScalarOp::sqrt:
    case ScalarOp::rsqrt:
    case ScalarOp::reciprocal:
    case ScalarOp::sin:
    case ScalarOp::cos:
    case ScalarOp::tanh:
    case ScalarOp::erf:
    case ScalarOp::sigmoid:
    case ScalarOp::floor:
    case ScalarOp::ceil:
    case ScalarOp::round:
    case ScalarOp::trunc:
    case ScalarOp::div:
    case ScalarOp::pow:
    case ScalarOp::atan2:
      return real;
    case ScalarOp::bitwise_not:
    case ScalarOp::bitwise_and:
    case ScalarOp::bitwise_or:
    case ScalarOp::bitwise_xor:
      return !real;
    case ScalarOp::philox:
      return dtype == DType::i64;
    case ScalarOp::neg:
    case ScalarOp::abs:
    case ScalarOp::sign:
    case ScalarOp::sub:
    case ScalarOp::floor_div:
    case ScalarOp::remainder:
    case ScalarOp::fmod:
      return dtype != DType::boolean;
    default:
      return true;
  }
}

llvm::Value* ScalarEmitter::apply(ScalarOp op, DType dtype, llvm::Value* a, llvm::Value* b, llvm::Value* c) {
  if (op == ScalarOp::select) return e.ir.CreateSelect(a, b, c);
  if (op >= ScalarOp::eq && op <= ScalarOp::ge) return compare(op, dtype, a, b);
  llvm::Type* truth = Emitter::like(a, e.i1());
  if (op == ScalarOp::is_nan) return is_floating(dtype) ? e.ir.CreateFCmpUNO(a, a) : Emitter::integer(truth, 0);
  if (op == ScalarOp::is_inf) {
    if (!is_floating(dtype)) return Emitter::integer(truth, 0);
    return e.ir.CreateFCmpOEQ(e.unary(llvm::Intrinsic::fabs, a),
                              Emitter::real(a->getType(), std::numeric_limits<double>::infinity()));
  }
  if (op == ScalarOp::logical_not) return e.ir.CreateNot(cast(a, dtype, DType::boolean));
  if (dtype == DType::boolean) return apply_boolean(op, a, b);
  return is_floating(dtype) ? apply_real(op, a, b) : apply_integer(op, dtype, a, b);
}

llvm::Value* ScalarEmitter::compare(ScalarOp op, DType dtype, llvm::Value* a, llvm::Value* b) {
  using Predicate = llvm::CmpInst::Predicate;
  struct Row {
    Predicate real, with_sign, without_sign;
  };
  constexpr Row k_rows[] = {
      {Predicate::FCMP_OEQ, Predicate::ICMP_EQ, Predicate::ICMP_EQ},
      {Predicate::FCMP_UNE, Predicate::ICMP_NE, Predicate::ICMP_NE},
      {Predicate::FCMP_OLT, Predicate::ICMP_SLT, Predicate::ICMP_ULT},
      {Predicate::FCMP_OLE, Predicate::ICMP_SLE, Predicate::ICMP_ULE},
      {Predicate::FCMP_OGT, Predicate::ICMP_SGT, Predicate::ICMP_UGT},
      {Predicate::FCMP_OGE, Predicate::ICMP_SGE, Predicate::ICMP_UGE},
  };
  const Row& row = k_rows[static_cast<int>(op) - static_cast<int>(ScalarOp::eq)];
  if (is_floating(dtype)) return e.ir.CreateFCmp(row.real, a, b);
  const bool is_unsigned = dtype == DType::u8 || dtype == DType::boolean;
  return e.ir.CreateICmp(is_unsigned ? row.without_sign : row.with_sign, a, b);
}

llvm::Value* ScalarEmitter::apply_boolean(ScalarOp op, llvm::Value* a, llvm::Value* b) {
  switch (op) {
    case ScalarOp::bitwise_not:
      return e.ir.CreateNot(a);
    case ScalarOp::add:
    case ScalarOp::maximum:
    case ScalarOp::bitwise_or:
      return e.ir.CreateOr(a, b);
    case ScalarOp::mul:
    case ScalarOp::minimum:
    case ScalarOp::bitwise_and:
      return e.ir.CreateAnd(a, b);
    case ScalarOp::bitwise_xor:
      return e.ir.CreateXor(a, b);
    default:
      break;
  }
  assert(false && "not an operation on booleans");
  return nullptr;
}

llvm::Value* ScalarEmitter::apply_integer(ScalarOp op, DType dtype, llvm::Value* a, llvm::Value* b) {
  llvm::Value* nothing = llvm::Constant::getNullValue(a->getType());
  const bool is_unsigned = dtype == DType::u8;
  switch (op) {
    case ScalarOp::neg:
      return e.ir.CreateNeg(a);
    case ScalarOp::abs:
      return is_unsigned ? a : e.ir.CreateSelect(e.ir.CreateICmpSLT(a, nothing), e.ir.CreateNeg(a), a);
    case ScalarOp::sign: {
      llvm::Value* positive = e.ir.CreateZExt(compare(ScalarOp::gt, dtype, a, nothing), a->getType());
      return e.ir.CreateSub(positive, e.ir.CreateZExt(compare(ScalarOp::lt, dtype, a, nothing), a->getType()));
    }
    case ScalarOp::bitwise_not:
      return e.ir.CreateNot(a);
    case ScalarOp::add:
      return e.ir.CreateAdd(a, b);
    case ScalarOp::sub:
      return e.ir.CreateSub(a, b);
    case ScalarOp::mul:
      return e.ir.CreateMul(a, b);
    case ScalarOp::floor_div:
    case ScalarOp::remainder:
    case ScalarOp::fmod:
      return divide(op, dtype, a, b);
    case ScalarOp::minimum:
      return e.ir.CreateSelect(compare(ScalarOp::lt, dtype, a, b), a, b);
    case ScalarOp::maximum:
      return e.ir.CreateSelect(compare(ScalarOp::gt, dtype, a, b), a, b);
    case ScalarOp::bitwise_and:
      return e.ir.CreateAnd(a, b);
    case ScalarOp::bitwise_or:
      return e.ir.CreateOr(a, b);
    case ScalarOp::bitwise_xor:
      return e.ir.CreateXor(a, b);
    case ScalarOp::philox:
      return philox(a, b);
    default:
      break;
  }
  assert(false && "not an operation on integers");
  return nullptr;
}

/// Words wait in i64 whose upper halves are known to be zero, so that a product is one instruction for 32 bits by 32.
llvm::Value* ScalarEmitter::philox(llvm::Value* key, llvm::Value* counter) {
  const auto constant = [&](int64_t value) { return Emitter::integer(key->getType(), value); };
  const auto low = [&](llvm::Value* value) { return e.ir.CreateAnd(value, constant(0xFFFFFFFF)); };
  const auto high = [&](llvm::Value* value) { return e.ir.CreateLShr(value, constant(32)); };
  llvm::Value* x = low(counter);
  llvm::Value* y = e.ir.CreateXor(high(counter), high(key));
  llvm::Value* round_key = low(key);
  for (int round = 0; round < k_philox_rounds; ++round) {
    llvm::Value* product = e.ir.CreateMul(x, constant(k_philox_multiplier));
    x = e.ir.CreateXor(high(product), e.ir.CreateXor(round_key, y));
    y = low(product);
    round_key = low(e.ir.CreateAdd(round_key, constant(k_philox_weyl)));
  }
  return x;
}

/// The processor traps on division by 0 and on the least number by -1; both divide by 1 instead and are
/// mended.
llvm::Value* ScalarEmitter::divide(ScalarOp op, DType dtype, llvm::Value* a, llvm::Value* b) {
  llvm::Type* type = a->getType();
  llvm::Value* nothing = Emitter::integer(type, 0);
  llvm::Value* one = Emitter::integer(type, 1);
  llvm::Value* by_zero = e.ir.CreateICmpEQ(b, nothing);
  if (dtype == DType::u8) {
    llvm::Value* safe = e.ir.CreateSelect(by_zero, one, b);
    llvm::Value* result = op == ScalarOp::floor_div ? e.ir.CreateUDiv(a, safe) : e.ir.CreateURem(a, safe);
    return e.ir.CreateSelect(by_zero, nothing, result);
  }
  llvm::Value* by_minus_one = e.ir.CreateICmpEQ(b, Emitter::integer(type, -1));
  llvm::Value* safe = e.ir.CreateSelect(e.ir.CreateOr(by_zero, by_minus_one), one, b);
  llvm::Value* quotient = e.ir.CreateSDiv(a, safe);
  llvm::Value* rest = e.ir.CreateSub(a, e.ir.CreateMul(quotient, safe));
  quotient = e.ir.CreateSelect(by_minus_one, e.ir.CreateNeg(a), quotient);
  quotient = e.ir.CreateSelect(by_zero, nothing, quotient);
  if (op == ScalarOp::fmod) return rest;
  llvm::Value* signs_differ = e.ir.CreateICmpSLT(e.ir.CreateXor(rest, b), nothing);
  llvm::Value* below = e.ir.CreateAnd(e.ir.CreateICmpNE(rest, nothing), signs_differ);
  if (op == ScalarOp::remainder) return e.ir.CreateSelect(below, e.ir.CreateAdd(rest, b), rest);
  return e.ir.CreateSelect(below, e.ir.CreateSub(quotient, one), quotient);
}

/// Whether the quotient that leaves `rest` was rounded up by rounding to zero.
llvm::Value* ScalarEmitter::is_rounded_up(llvm::Value* rest, llvm::Value* b) {
  llvm::Value* nothing = Emitter::real(b->getType(), 0);
  llvm::Value* signs_differ = e.ir.CreateXor(e.ir.CreateFCmpOLT(rest, nothing), e.ir.CreateFCmpOLT(b, nothing));
  return e.ir.CreateAnd(e.ir.CreateFCmpONE(rest, nothing), signs_differ);
}

llvm::Value* ScalarEmitter::apply_real(ScalarOp op, llvm::Value* a, llvm::Value* b) {
  llvm::Type* type = a->getType();
  const auto constant = [&](double value) { return Emitter::real(type, value); };
  switch (op) {
    case ScalarOp::neg:
      return e.ir.CreateFNeg(a);
    case ScalarOp::abs:
      return e.unary(llvm::Intrinsic::fabs, a);
    case ScalarOp::sign: {
      llvm::Value* positive = e.ir.CreateSelect(e.ir.CreateFCmpOGT(a, constant(0)), constant(1), constant(0));
      return e.ir.CreateSelect(e.ir.CreateFCmpOLT(a, constant(0)), constant(-1), positive);
    }
    case ScalarOp::exp:
      return m_math.exp(a);
    case ScalarOp::expm1:
      return m_math.expm1(a);
    case ScalarOp::log:
      return m_math.log(a);
    case ScalarOp::log1p:
      return m_math.log1p(a);
    case ScalarOp::sqrt:
      return e.unary(llvm::Intrinsic::sqrt, a);
    case ScalarOp::rsqrt:
      return m_math.rsqrt(a);
    case ScalarOp::reciprocal:
      return e.ir.CreateFDiv(constant(1), a);
    case ScalarOp::sin:
      return m_math.sin(a);
    case ScalarOp::cos:
      return m_math.cos(a);
    case ScalarOp::tanh:
      return m_math.tanh(a);
    case ScalarOp::erf:
      return m_math.erf(a);
    case ScalarOp::sigmoid:
      return m_math.sigmoid(a);
    case ScalarOp::floor:
      return e.unary(llvm::Intrinsic::floor, a);
    case ScalarOp::ceil:
      return e.unary(llvm::Intrinsic::ceil, a);
    case ScalarOp::round:
      return e.unary(llvm::Intrinsic::roundeven, a);
    case ScalarOp::trunc:
      return e.unary(llvm::Intrinsic::trunc, a);
    case ScalarOp::add:
      return e.ir.CreateFAdd(a, b);
    case ScalarOp::sub:
      return e.ir.CreateFSub(a, b);
    case ScalarOp::mul:
      return e.ir.CreateFMul(a, b);
    case ScalarOp::div:
      return e.ir.CreateFDiv(a, b);
    case ScalarOp::floor_div: {
      llvm::Value* exact = e.ir.CreateFDiv(a, b);
      llvm::Value* rest = m_math.fmod(a, b);
      llvm::Value* quotient = e.ir.CreateFDiv(e.ir.CreateFSub(a, rest), b);
      quotient = e.ir.CreateSelect(is_rounded_up(rest, b), e.ir.CreateFSub(quotient, constant(1)), quotient);
      quotient = e.unary(llvm::Intrinsic::roundeven, quotient);  // it is whole but for its last bit
      llvm::Value* nothing = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, constant(0), exact);
      quotient = e.ir.CreateSelect(e.ir.CreateFCmpOEQ(quotient, constant(0)), nothing, quotient);
      return e.ir.CreateSelect(e.ir.CreateFCmpOEQ(b, constant(0)), exact, quotient);
    }
    case ScalarOp::remainder: {
      llvm::Value* rest = m_math.fmod(a, b);
      return e.ir.CreateSelect(is_rounded_up(rest, b), e.ir.CreateFAdd(rest, b), rest);
    }
    case ScalarOp::fmod:
      return m_math.fmod(a, b);
    case ScalarOp::pow:
      return m_math.pow(a, b);
    case ScalarOp::atan2:
      return m_math.atan2(a, b);
    case ScalarOp::minimum:
    case ScalarOp::maximum: {
      // b when it is better, else a: one instruction, which drops a NaN in b; the second select brings it
      // back.
      llvm::Value* better = op == ScalarOp::minimum ? e.ir.CreateFCmpOLT(b, a) : e.ir.CreateFCmpOGT(b, a);
      return e.ir.CreateSelect(e.ir.CreateFCmpUNO(b, b), b, e.ir.CreateSelect(better, b, a));
    }
    default:
      break;
  }
  assert(false && "not an operation on floating numbers");
  return nullptr;
}

// Reductions.

llvm::Value* ScalarEmitter::identity(Combiner combiner, DType dtype, int lanes) {
  const bool logical = combiner == Combiner::logical_and || combiner == Combiner::logical_or;
  if (logical) return Emitter::integer(Emitter::vector(e.i1(), lanes), combiner == Combiner::logical_and ? 1 : 0);
  llvm::Type* type = Emitter::vector(register_type(accumulator_of(dtype)), lanes);
  const double infinity = std::numeric_limits<double>::infinity();
  const bool real = is_floating(dtype);
  switch (combiner) {
    case Combiner::product:
      return real ? Emitter::real(type, 1) : Emitter::integer(type, 1);
    case Combiner::maximum:
      return real ? Emitter::real(type, -infinity) : Emitter::integer(type, INT64_MIN);
    case Combiner::minimum:
      return real ? Emitter::real(type, infinity) : Emitter::integer(type, INT64_MAX);
    default:
      return llvm::Constant::getNullValue(type);
  }
}

llvm::Value* ScalarEmitter::to_accumulator(Combiner combiner, DType dtype, llvm::Value* value) {
  const bool logical = combiner == Combiner::logical_and || combiner == Combiner::logical_or;
  return cast(value, dtype, logical ? DType::boolean : accumulator_of(dtype));
}

llvm::Value* ScalarEmitter::combine(Combiner combiner, DType dtype, llvm::Value* total, llvm::Value* value) {
  const DType accumulator = accumulator_of(dtype);
  switch (combiner) {
    case Combiner::sum:
      return apply(ScalarOp::add, accumulator, total, value, nullptr);
    case Combiner::product:
      return apply(ScalarOp::mul, accumulator, total, value, nullptr);
    case Combiner::maximum:
      return apply(ScalarOp::maximum, accumulator, total, value, nullptr);
    case Combiner::minimum:
      return apply(ScalarOp::minimum, accumulator, total, value, nullptr);
    case Combiner::logical_and:
      return e.ir.CreateAnd(total, value);
    case Combiner::logical_or:
      return e.ir.CreateOr(total, value);
  }
  assert(false && "unknown combiner");
  return nullptr;
}

}  // namespace kiln::cpu
