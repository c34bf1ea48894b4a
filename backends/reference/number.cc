#include "backends/reference/number.h"

#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "frontend/kernel/philox.h"
#include "frontend/ops/scalar_math.h"

namespace kiln {
namespace {

template <typename T>
T read_as(const void* base, int64_t element) {
  T value;
  std::memcpy(&value, static_cast<const char*>(base) + element * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void write_as(void* base, int64_t element, T value) {
  std::memcpy(static_cast<char*>(base) + element * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

double half_to_double(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

double bfloat_to_double(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// To `mantissa_bits` explicit bits, nothing finer than 2^lowest, infinity from 2^(overflow) on.
double round_floating(double x, int mantissa_bits, int lowest, int overflow) {
  if (x == 0 || !std::isfinite(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const int quantum = std::max(exponent - 1 - mantissa_bits, lowest);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -quantum)), quantum);
  if (std::fabs(rounded) >= std::ldexp(1, overflow)) return std::copysign(INFINITY, x);
  return rounded;
}

double round_to(DType dtype, double x) {
  switch (dtype) {
    case DType::f16:
      return round_floating(x, 10, -24, 16);
    case DType::bf16:
      return round_floating(x, 7, -133, 128);
    case DType::f32:
      return static_cast<double>(static_cast<float>(x));
    default:
      return x;
  }
}

// `x` is representable.
uint16_t half_bits(double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return 0x7e00;
  if (std::isinf(x)) return sign | 0x7c00;
  const double magnitude = std::fabs(x);
  if (magnitude < std::ldexp(1, -14)) return sign | static_cast<uint16_t>(std::ldexp(magnitude, 24));
  int exponent = 0;
  const double fraction = std::frexp(magnitude, &exponent);
  const auto mantissa = static_cast<uint16_t>(std::ldexp(fraction, 11) - 1024);
  return sign | static_cast<uint16_t>((exponent + 14) << 10) | mantissa;
}

uint16_t bfloat_bits(double x) {
  if (std::isnan(x)) return 0x7fc0;
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16);
}

int64_t wrap(DType dtype, int64_t x) {
  switch (dtype) {
    case DType::boolean:
      return x != 0 ? 1 : 0;
    case DType::u8:
      return static_cast<uint8_t>(x);
    case DType::i8:
      return static_cast<int8_t>(x);
    case DType::i32:
      return static_cast<int32_t>(x);
    default:
      return x;
  }
}

/// To i64, or to i32 for narrower integers; the least of these for NaN and what they do not hold.
int64_t truncated(double x, DType to) {
  const double limit = to == DType::i64 ? 0x1p63 : 0x1p31;
  return static_cast<int64_t>(std::fabs(x) < limit ? x : -limit);
}

int64_t apply_integer(ScalarOp op, int64_t a, int64_t b) {
  const auto ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  // INT64_MIN / -1 does not fit; its wrapped value is the negation, without remainder.
  const int64_t quotient = b == 0 ? 0 : b == -1 ? static_cast<int64_t>(-ua) : a / b;
  const int64_t rest = b == 0 || b == -1 ? 0 : a % b;
  const bool is_below = rest != 0 && (rest < 0) != (b < 0);
  switch (op) {
    case ScalarOp::neg:
      return static_cast<int64_t>(-ua);
    case ScalarOp::abs:
      return a < 0 ? static_cast<int64_t>(-ua) : a;
    case ScalarOp::sign:
      return (a > 0) - (a < 0);
    case ScalarOp::bitwise_not:
      return ~a;
    case ScalarOp::add:
      return static_cast<int64_t>(ua + ub);
    case ScalarOp::sub:
      return static_cast<int64_t>(ua - ub);
    case ScalarOp::mul:
      return static_cast<int64_t>(ua * ub);
    case ScalarOp::floor_div:
      return is_below ? quotient - 1 : quotient;
    case ScalarOp::remainder:
      return is_below ? rest + b : rest;
    case ScalarOp::fmod:
      return rest;
    case ScalarOp::minimum:
      return std::min(a, b);
    case ScalarOp::maximum:
      return std::max(a, b);
    case ScalarOp::bitwise_and:
      return a & b;
    case ScalarOp::bitwise_or:
      return a | b;
    case ScalarOp::bitwise_xor:
      return a ^ b;
    case ScalarOp::philox:
      return philox_word(ua, ub);
    default:
      assert(false && "not an operation on integers");
      return 0;
  }
}

template <typename T>
bool compare(ScalarOp op, T a, T b) {
  switch (op) {
    case ScalarOp::eq:
      return a == b;
    case ScalarOp::ne:
      return a != b;
    case ScalarOp::lt:
      return a < b;
    case ScalarOp::le:
      return a <= b;
    case ScalarOp::gt:
      return a > b;
    default:
      return a >= b;
  }
}

bool is_zero(DType dtype, Number value) { return is_floating(dtype) ? value.real == 0 : value.integer == 0; }

}  // namespace

Number load_number(DType dtype, const void* base, int64_t element) {
  switch (dtype) {
    case DType::boolean:
      return {0, read_as<uint8_t>(base, element) != 0};
    case DType::u8:
      return {0, read_as<uint8_t>(base, element)};
    case DType::i8:
      return {0, read_as<int8_t>(base, element)};
    case DType::i32:
      return {0, read_as<int32_t>(base, element)};
    case DType::i64:
      return {0, read_as<int64_t>(base, element)};
    case DType::f16:
      return {half_to_double(read_as<uint16_t>(base, element)), 0};
    case DType::bf16:
      return {bfloat_to_double(read_as<uint16_t>(base, element)), 0};
    case DType::f32:
      return {read_as<float>(base, element), 0};
    case DType::f64:
      return {read_as<double>(base, element), 0};
  }
  assert(false && "unknown dtype");
  return {};
}

void store_number(DType dtype, void* base, int64_t element, Number value) {
  const double real = round_to(dtype, value.real);
  switch (dtype) {
    case DType::boolean:
      return write_as<uint8_t>(base, element, value.integer != 0);
    case DType::u8:
      return write_as(base, element, static_cast<uint8_t>(value.integer));
    case DType::i8:
      return write_as(base, element, static_cast<int8_t>(value.integer));
    case DType::i32:
      return write_as(base, element, static_cast<int32_t>(value.integer));
    case DType::i64:
      return write_as(base, element, value.integer);
    case DType::f16:
      return write_as(base, element, half_bits(real));
    case DType::bf16:
      return write_as(base, element, bfloat_bits(real));
    case DType::f32:
      return write_as(base, element, static_cast<float>(real));
    case DType::f64:
      return write_as(base, element, real);
  }
}

Number cast_number(Number value, DType from, DType to) {
  if (to == DType::boolean) return {0, !is_zero(from, value)};
  if (is_floating(to)) return {round_to(to, is_floating(from) ? value.real : static_cast<double>(value.integer)), 0};
  return {0, wrap(to, is_floating(from) ? truncated(value.real, to) : value.integer)};
}

Number apply(ScalarOp op, DType dtype, Number a, Number b, Number c) {
  switch (op) {
    case ScalarOp::select:
      return a.integer != 0 ? b : c;
    case ScalarOp::is_nan:
      return {0, is_floating(dtype) && std::isnan(a.real)};
    case ScalarOp::is_inf:
      return {0, is_floating(dtype) && std::isinf(a.real)};
    case ScalarOp::logical_not:
      return {0, is_zero(dtype, a)};
    default:
      break;
  }
  if (op >= ScalarOp::eq && op <= ScalarOp::ge) {
    return {0, is_floating(dtype) ? compare(op, a.real, b.real) : compare(op, a.integer, b.integer)};
  }
  if (is_floating(dtype)) return {apply_scalar(op, DType::f64, DType::f64, a.real, b.real, 0), 0};
  if (op == ScalarOp::bitwise_not && dtype == DType::boolean) return {0, a.integer == 0};
  return {0, wrap(dtype, apply_integer(op, a.integer, b.integer))};
}

Number identity_of(Combiner combiner) {
  switch (combiner) {
    case Combiner::sum:
      return {0, 0};
    case Combiner::product:
      return {1, 1};
    case Combiner::maximum:
      return {-INFINITY, INT64_MIN};
    case Combiner::minimum:
      return {INFINITY, INT64_MAX};
    case Combiner::logical_and:
      return {1, 1};
    case Combiner::logical_or:
      return {0, 0};
  }
  assert(false && "unknown combiner");
  return {};
}

Number combine(Combiner combiner, DType dtype, Number total, Number value) {
  const DType accumulator = is_floating(dtype) ? DType::f64 : DType::i64;
  switch (combiner) {
    case Combiner::sum:
      return apply(ScalarOp::add, accumulator, total, value, {});
    case Combiner::product:
      return apply(ScalarOp::mul, accumulator, total, value, {});
    case Combiner::maximum:
      return apply(ScalarOp::maximum, accumulator, total, value, {});
    case Combiner::minimum:
      return apply(ScalarOp::minimum, accumulator, total, value, {});
    case Combiner::logical_and:
      return {0, total.integer != 0 && !is_zero(dtype, value)};
    case Combiner::logical_or:
      return {0, total.integer != 0 || !is_zero(dtype, value)};
  }
  assert(false && "unknown combiner");
  return {};
}

}  // namespace kiln
