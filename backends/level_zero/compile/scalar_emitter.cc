#include "backends/level_zero/compile/scalar_emitter.h"

#include <cassert>
#include <limits>

#include "frontend/kernel/philox.h"

namespace kiln::level_zero {
namespace {

using spv::Op;

bool is_unsigned(DType dtype) { return dtype == DType::u8 || dtype == DType::boolean; }

}  // namespace

Id ScalarEmitter::register_type(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return e.boolean();
    case DType::u8:
    case DType::i8:
      return e.integer(8);
    case DType::i32:
      return e.integer(32);
    case DType::i64:
      return e.integer(64);
    case DType::f16:
    case DType::bf16:
    case DType::f32:
      return e.real(32);
    case DType::f64:
      return e.real(64);
  }
  assert(false && "unknown dtype");
  return 0;
}

Id ScalarEmitter::memory_type(DType dtype) {
  if (dtype == DType::boolean) return e.integer(8);
  return is_half(dtype) ? e.integer(16) : register_type(dtype);
}

Id ScalarEmitter::constant(const ScalarNode& node) {
  if (node.dtype == DType::boolean) return e.truth(node.immediate_int != 0);
  const Id type = register_type(node.dtype);
  return is_floating(node.dtype) ? e.constant_real(type, node.immediate) : e.constant(type, node.immediate_int);
}

// Memory and registers.

Id ScalarEmitter::from_memory(DType dtype, Id pattern) {
  if (dtype == DType::boolean) return e.compare(Op::OpINotEqual, pattern, whole(pattern, 0));
  if (dtype == DType::f16) return e.op(Op::OpFConvert, e.real(32), {e.bits_as(e.real(16), pattern)});
  if (dtype != DType::bf16) return pattern;
  const Id wide = e.op(Op::OpUConvert, e.integer(32), {pattern});
  return e.bits_as(e.real(32), binary(Op::OpShiftLeftLogical, wide, whole(wide, 16)));
}

Id ScalarEmitter::to_memory(DType dtype, Id value) {
  if (dtype == DType::boolean) return cast(value, DType::boolean, DType::u8);
  if (dtype == DType::f16) return e.bits_as(e.integer(16), e.op(Op::OpFConvert, e.real(16), {value}));
  if (dtype != DType::bf16) return value;
  // Half to even by adding 0x7fff plus the lowest bit that stays; NaN would carry into infinity, so it is set apart.
  const Id bits = e.bits_as(e.integer(32), value);
  const Id lowest = binary(Op::OpBitwiseAnd, binary(Op::OpShiftRightLogical, bits, whole(bits, 16)), whole(bits, 1));
  const Id rounded = e.add(bits, e.add(lowest, whole(bits, 0x7fff)));
  const Id high = binary(Op::OpShiftRightLogical, rounded, whole(bits, 16));
  const Id is_nan = e.op(Op::OpIsNan, e.boolean(), {value});
  return e.op(Op::OpUConvert, e.integer(16), {e.select(is_nan, whole(bits, 0x7fc0), high)});
}

Id ScalarEmitter::cast(Id value, DType from, DType to) {
  if (from == to) return value;
  const Id type = register_type(to);
  if (to == DType::boolean) {
    return is_floating(from) ? e.compare(Op::OpFUnordNotEqual, value, real(value, 0))
                             : e.compare(Op::OpINotEqual, value, whole(value, 0));
  }
  if (from == DType::boolean) {
    return is_floating(to) ? e.select(value, e.constant_real(type, 1), e.constant_real(type, 0))
                           : e.select(value, e.constant(type, 1), e.constant(type, 0));
  }
  if (is_floating(from) && is_floating(to)) {
    const Id sized = e.type_of(value) == type ? value : e.op(Op::OpFConvert, type, {value});
    return is_half(to) ? from_memory(to, to_memory(to, sized)) : sized;
  }
  if (is_floating(to)) {
    const Id converted = e.op(is_unsigned(from) ? Op::OpConvertUToF : Op::OpConvertSToF, type, {value});
    return is_half(to) ? from_memory(to, to_memory(to, converted)) : converted;
  }
  if (is_floating(from)) {
    // Narrow integers by way of a wide one, so that they wrap; NaN, and what that does not hold, gives its least.
    const double limit = to == DType::i64 ? 0x1p63 : 0x1p31;
    const Id fits = e.both(e.compare(Op::OpFOrdLessThan, real(value, -limit), value),
                           e.compare(Op::OpFOrdLessThan, value, real(value, limit)));
    const Id middle =
        e.op(Op::OpConvertFToS, to == DType::i64 ? type : e.integer(32), {e.select(fits, value, real(value, -limit))});
    return e.type_of(middle) == type ? middle : e.op(Op::OpSConvert, type, {middle});
  }
  if (e.type_of(value) == type) return value;
  return e.op(is_unsigned(from) ? Op::OpUConvert : Op::OpSConvert, type, {value});
}

// Operations.

Id ScalarEmitter::apply(ScalarOp op, DType dtype, Id a, Id b, Id c) {
  if (op == ScalarOp::select) return e.select(a, b, c);
  if (op >= ScalarOp::eq && op <= ScalarOp::ge) return compare(op, dtype, a, b);
  if (op == ScalarOp::is_nan) return is_floating(dtype) ? e.op(Op::OpIsNan, e.boolean(), {a}) : e.truth(false);
  if (op == ScalarOp::is_inf) return is_floating(dtype) ? e.op(Op::OpIsInf, e.boolean(), {a}) : e.truth(false);
  if (op == ScalarOp::logical_not) return e.opposite(cast(a, dtype, DType::boolean));
  if (dtype == DType::boolean) return apply_boolean(op, a, b);
  return is_floating(dtype) ? apply_real(op, a, b) : apply_integer(op, dtype, a, b);
}

Id ScalarEmitter::compare(ScalarOp op, DType dtype, Id a, Id b) {
  struct Row {
    Op real, with_sign, without_sign;
  };
  constexpr Row k_rows[] = {
      {Op::OpFOrdEqual, Op::OpIEqual, Op::OpIEqual},
      {Op::OpFUnordNotEqual, Op::OpINotEqual, Op::OpINotEqual},
      {Op::OpFOrdLessThan, Op::OpSLessThan, Op::OpULessThan},
      {Op::OpFOrdLessThanEqual, Op::OpSLessThanEqual, Op::OpULessThanEqual},
      {Op::OpFOrdGreaterThan, Op::OpSGreaterThan, Op::OpUGreaterThan},
      {Op::OpFOrdGreaterThanEqual, Op::OpSGreaterThanEqual, Op::OpUGreaterThanEqual},
  };
  const Row& row = k_rows[static_cast<int>(op) - static_cast<int>(ScalarOp::eq)];
  if (dtype == DType::boolean) {
    a = cast(a, DType::boolean, DType::u8);
    b = cast(b, DType::boolean, DType::u8);
  }
  return e.compare(is_floating(dtype) ? row.real : is_unsigned(dtype) ? row.without_sign : row.with_sign, a, b);
}

Id ScalarEmitter::apply_boolean(ScalarOp op, Id a, Id b) {
  switch (op) {
    case ScalarOp::bitwise_not:
      return e.opposite(a);
    case ScalarOp::add:
    case ScalarOp::maximum:
    case ScalarOp::bitwise_or:
      return binary(Op::OpLogicalOr, a, b);
    case ScalarOp::mul:
    case ScalarOp::minimum:
    case ScalarOp::bitwise_and:
      return binary(Op::OpLogicalAnd, a, b);
    case ScalarOp::bitwise_xor:
      return binary(Op::OpLogicalNotEqual, a, b);
    default:
      break;
  }
  assert(false && "not an operation on booleans");
  return 0;
}

Id ScalarEmitter::apply_integer(ScalarOp op, DType dtype, Id a, Id b) {
  switch (op) {
    case ScalarOp::neg:
      return unary(Op::OpSNegate, a);
    case ScalarOp::abs:
      return dtype == DType::u8 ? a
                                : e.select(compare(ScalarOp::lt, dtype, a, whole(a, 0)), unary(Op::OpSNegate, a), a);
    case ScalarOp::sign: {
      const Id below = e.select(compare(ScalarOp::lt, dtype, a, whole(a, 0)), whole(a, -1), whole(a, 0));
      return e.select(compare(ScalarOp::gt, dtype, a, whole(a, 0)), whole(a, 1), below);
    }
    case ScalarOp::bitwise_not:
      return unary(Op::OpNot, a);
    case ScalarOp::add:
      return e.add(a, b);
    case ScalarOp::sub:
      return binary(Op::OpISub, a, b);
    case ScalarOp::mul:
      return e.mul(a, b);
    case ScalarOp::floor_div:
    case ScalarOp::remainder:
    case ScalarOp::fmod:
      return divide(op, dtype, a, b);
    case ScalarOp::minimum:
      return e.select(compare(ScalarOp::lt, dtype, a, b), a, b);
    case ScalarOp::maximum:
      return e.select(compare(ScalarOp::gt, dtype, a, b), a, b);
    case ScalarOp::bitwise_and:
      return binary(Op::OpBitwiseAnd, a, b);
    case ScalarOp::bitwise_or:
      return binary(Op::OpBitwiseOr, a, b);
    case ScalarOp::bitwise_xor:
      return binary(Op::OpBitwiseXor, a, b);
    case ScalarOp::philox:
      return philox(a, b);
    default:
      break;
  }
  assert(false && "not an operation on integers");
  return 0;
}

Id ScalarEmitter::philox(Id key, Id counter) {
  const auto low = [&](Id value) { return binary(Op::OpBitwiseAnd, value, whole(value, 0xFFFFFFFF)); };
  const auto high = [&](Id value) { return binary(Op::OpShiftRightLogical, value, whole(value, 32)); };
  const auto either = [&](Id a, Id b) { return binary(Op::OpBitwiseXor, a, b); };
  Id x = low(counter), y = either(high(counter), high(key)), round_key = low(key);
  for (int round = 0; round < k_philox_rounds; ++round) {
    const Id product = e.mul(x, whole(x, k_philox_multiplier));
    x = either(high(product), either(round_key, y));
    y = low(product);
    round_key = low(e.add(round_key, whole(round_key, k_philox_weyl)));
  }
  return x;
}

/// Division by 0 and of the least number by -1 is undefined; both divide by 1 instead and are mended.
Id ScalarEmitter::divide(ScalarOp op, DType dtype, Id a, Id b) {
  const Id nothing = whole(a, 0), one = whole(a, 1);
  const Id by_zero = e.compare(Op::OpIEqual, b, nothing);
  if (dtype == DType::u8) {
    const Id safe = e.select(by_zero, one, b);
    const Id result = binary(op == ScalarOp::floor_div ? Op::OpUDiv : Op::OpUMod, a, safe);
    return e.select(by_zero, nothing, result);
  }
  const Id by_minus_one = e.compare(Op::OpIEqual, b, whole(a, -1));
  const Id safe = e.select(binary(Op::OpLogicalOr, by_zero, by_minus_one), one, b);
  Id quotient = binary(Op::OpSDiv, a, safe);
  const Id rest = binary(Op::OpISub, a, e.mul(quotient, safe));
  quotient = e.select(by_minus_one, unary(Op::OpSNegate, a), quotient);
  quotient = e.select(by_zero, nothing, quotient);
  if (op == ScalarOp::fmod) return rest;
  const Id signs_differ = e.compare(Op::OpSLessThan, binary(Op::OpBitwiseXor, rest, b), nothing);
  const Id below = e.both(e.compare(Op::OpINotEqual, rest, nothing), signs_differ);
  if (op == ScalarOp::remainder) return e.select(below, e.add(rest, b), rest);
  return e.select(below, binary(Op::OpISub, quotient, one), quotient);
}

/// Whether the quotient that leaves `rest` was rounded up by rounding to zero.
Id ScalarEmitter::is_rounded_up(Id rest, Id b) {
  const Id nothing = real(b, 0);
  const Id signs_differ = binary(Op::OpLogicalNotEqual, e.compare(Op::OpFOrdLessThan, rest, nothing),
                                 e.compare(Op::OpFOrdLessThan, b, nothing));
  return e.both(e.compare(Op::OpFOrdNotEqual, rest, nothing), signs_differ);
}

Id ScalarEmitter::real_remainder(Id a, Id b) {
  const Id rest = e.math(OpenCLLIB::Fmod, e.type_of(a), {a, b});
  return e.select(is_rounded_up(rest, b), binary(Op::OpFAdd, rest, b), rest);
}

/// As torch: the quotient of what is left after the remainder, so that it agrees with it.
Id ScalarEmitter::floor_div(Id a, Id b) {
  const Id type = e.type_of(a), nothing = real(a, 0);
  const Id exact = binary(Op::OpFDiv, a, b), rest = e.math(OpenCLLIB::Fmod, type, {a, b});
  Id quotient = binary(Op::OpFDiv, binary(Op::OpFSub, a, rest), b);
  quotient = e.select(is_rounded_up(rest, b), binary(Op::OpFSub, quotient, real(a, 1)), quotient);
  quotient = e.math(OpenCLLIB::Rint, type, {quotient});  // it is whole but for its last bits
  const Id signed_zero = e.math(OpenCLLIB::Copysign, type, {nothing, exact});
  quotient = e.select(e.compare(Op::OpFOrdEqual, quotient, nothing), signed_zero, quotient);
  return e.select(e.compare(Op::OpFOrdEqual, b, nothing), exact, quotient);
}

Id ScalarEmitter::apply_real(ScalarOp op, Id a, Id b) {
  const Id type = e.type_of(a);
  const auto math = [&](OpenCLLIB::Entrypoints function) { return e.math(function, type, {a}); };
  switch (op) {
    case ScalarOp::neg:
      return unary(Op::OpFNegate, a);
    case ScalarOp::abs:
      return math(OpenCLLIB::Fabs);
    case ScalarOp::sign: {
      const Id below = e.select(e.compare(Op::OpFOrdLessThan, a, real(a, 0)), real(a, -1), real(a, 0));
      return e.select(e.compare(Op::OpFOrdGreaterThan, a, real(a, 0)), real(a, 1), below);
    }
    case ScalarOp::exp:
      return math(OpenCLLIB::Exp);
    case ScalarOp::expm1:
      return math(OpenCLLIB::Expm1);
    case ScalarOp::log:
      return math(OpenCLLIB::Log);
    case ScalarOp::log1p:
      return math(OpenCLLIB::Log1p);
    case ScalarOp::sqrt:
      return math(OpenCLLIB::Sqrt);
    case ScalarOp::rsqrt:
      return math(OpenCLLIB::Rsqrt);
    case ScalarOp::reciprocal:
      return binary(Op::OpFDiv, real(a, 1), a);
    case ScalarOp::sin:
      return math(OpenCLLIB::Sin);
    case ScalarOp::cos:
      return math(OpenCLLIB::Cos);
    case ScalarOp::tanh:
      return math(OpenCLLIB::Tanh);
    case ScalarOp::erf:
      return math(OpenCLLIB::Erf);
    case ScalarOp::sigmoid: {
      const Id decay = e.math(OpenCLLIB::Exp, type, {unary(Op::OpFNegate, a)});
      return binary(Op::OpFDiv, real(a, 1), binary(Op::OpFAdd, real(a, 1), decay));
    }
    case ScalarOp::floor:
      return math(OpenCLLIB::Floor);
    case ScalarOp::ceil:
      return math(OpenCLLIB::Ceil);
    case ScalarOp::round:
      return math(OpenCLLIB::Rint);
    case ScalarOp::trunc:
      return math(OpenCLLIB::Trunc);
    case ScalarOp::add:
      return binary(Op::OpFAdd, a, b);
    case ScalarOp::sub:
      return binary(Op::OpFSub, a, b);
    case ScalarOp::mul:
      return binary(Op::OpFMul, a, b);
    case ScalarOp::div:
      return binary(Op::OpFDiv, a, b);
    case ScalarOp::floor_div:
      return floor_div(a, b);
    case ScalarOp::remainder:
      return real_remainder(a, b);
    case ScalarOp::fmod:
      return e.math(OpenCLLIB::Fmod, type, {a, b});
    case ScalarOp::pow:
      return e.math(OpenCLLIB::Pow, type, {a, b});
    case ScalarOp::atan2:
      return e.math(OpenCLLIB::Atan2, type, {a, b});
    case ScalarOp::minimum:
    case ScalarOp::maximum: {
      const Op better = op == ScalarOp::minimum ? Op::OpFOrdLessThan : Op::OpFOrdGreaterThan;
      const Id chosen = e.select(e.compare(better, b, a), b, a);
      return e.select(e.op(Op::OpIsNan, e.boolean(), {b}), b, chosen);
    }
    default:
      break;
  }
  assert(false && "not an operation on floating numbers");
  return 0;
}

// Reductions.

Id ScalarEmitter::identity(Combiner combiner, DType dtype) {
  if (combiner == Combiner::logical_and || combiner == Combiner::logical_or) {
    return e.truth(combiner == Combiner::logical_and);
  }
  const Id type = register_type(accumulator_of(dtype));
  const double infinity = std::numeric_limits<double>::infinity();
  const bool floating = is_floating(dtype);
  switch (combiner) {
    case Combiner::product:
      return floating ? e.constant_real(type, 1) : e.constant(type, 1);
    case Combiner::maximum:
      return floating ? e.constant_real(type, -infinity) : e.constant(type, INT64_MIN);
    case Combiner::minimum:
      return floating ? e.constant_real(type, infinity) : e.constant(type, INT64_MAX);
    default:
      return floating ? e.constant_real(type, 0) : e.constant(type, 0);
  }
}

Id ScalarEmitter::to_accumulator(Combiner combiner, DType dtype, Id value) {
  const bool logical = combiner == Combiner::logical_and || combiner == Combiner::logical_or;
  return cast(value, dtype, logical ? DType::boolean : accumulator_of(dtype));
}

Id ScalarEmitter::combine(Combiner combiner, DType dtype, Id total, Id value) {
  const DType accumulator = accumulator_of(dtype);
  switch (combiner) {
    case Combiner::sum:
      return apply(ScalarOp::add, accumulator, total, value, 0);
    case Combiner::product:
      return apply(ScalarOp::mul, accumulator, total, value, 0);
    case Combiner::maximum:
      return apply(ScalarOp::maximum, accumulator, total, value, 0);
    case Combiner::minimum:
      return apply(ScalarOp::minimum, accumulator, total, value, 0);
    case Combiner::logical_and:
      return binary(Op::OpLogicalAnd, total, value);
    case Combiner::logical_or:
      return binary(Op::OpLogicalOr, total, value);
  }
  assert(false && "unknown combiner");
  return 0;
}

}  // namespace kiln::level_zero
