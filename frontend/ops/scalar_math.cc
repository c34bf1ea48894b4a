#include "frontend/ops/scalar_math.h"

#include <cassert>
#include <cmath>

#include "frontend/kernel/philox.h"
#include "frontend/ops/tensor.h"

namespace kiln {

namespace {

double minimum(double a, double b) { return std::isnan(a) || std::isnan(b) ? k_nan : std::fmin(a, b); }
double maximum(double a, double b) { return std::isnan(a) || std::isnan(b) ? k_nan : std::fmax(a, b); }

/// Python's %: the sign of the divisor.
double remainder_of(double a, double b) {
  const double r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

/// Python's //: exact where floor(a / b) would round up over an integer first.
double floor_divide(double a, double b) {
  if (b == 0) return a / b;
  const double r = std::fmod(a, b);
  double quotient = (a - r) / b;
  if (r != 0 && (r < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

double sign_of(double a) { return static_cast<double>((a > 0) - (a < 0)); }  // 0 for NaN, as torch

/// Division by zero has no value in the integers: 0. By -1 it negates, and the least number is its own negation. f64 does not
/// hold all bits of a product of i32, so what is not i64 wraps before.
double integer_binary(ScalarOp op, DType result, int64_t a, int64_t b) {
  using U = uint64_t;  // wraps
  switch (op) {
    case ScalarOp::add:
      return static_cast<double>(static_cast<int64_t>(U(a) + U(b)));
    case ScalarOp::sub:
      return static_cast<double>(static_cast<int64_t>(U(a) - U(b)));
    case ScalarOp::mul:
      if (result != DType::i64) return static_cast<int32_t>(U(a) * U(b));
      return static_cast<double>(static_cast<int64_t>(U(a) * U(b)));
    case ScalarOp::bitwise_and:
      return static_cast<double>(a & b);
    case ScalarOp::bitwise_or:
      return static_cast<double>(a | b);
    case ScalarOp::bitwise_xor:
      return static_cast<double>(a ^ b);
    case ScalarOp::philox:
      return philox_word(U(a), U(b));
    default:
      break;
  }
  if (b == 0) return 0;
  if (b == -1) return op == ScalarOp::floor_div ? -static_cast<double>(a) : 0;
  const int64_t r = a % b;
  const bool signs_differ = r != 0 && (r < 0) != (b < 0);
  switch (op) {
    case ScalarOp::fmod:
      return static_cast<double>(r);
    case ScalarOp::remainder:
      return static_cast<double>(signs_differ ? r + b : r);
    case ScalarOp::floor_div: {
      const int64_t quotient = a / b;
      return static_cast<double>(quotient - (signs_differ ? 1 : 0));
    }
    default:
      break;
  }
  assert(false && "not a scalar op on integers");
  return k_nan;
}

double integer(ScalarOp op, DType result, int64_t a, int64_t b) {
  switch (op) {
    case ScalarOp::neg:
      return integer_binary(ScalarOp::sub, result, 0, a);
    case ScalarOp::abs:
      return a < 0 ? integer_binary(ScalarOp::sub, result, 0, a) : static_cast<double>(a);
    case ScalarOp::sign:
      return sign_of(static_cast<double>(a));
    default:
      return integer_binary(op, result, a, b);
  }
}

double floating(ScalarOp op, double a, double b) {
  switch (op) {
    case ScalarOp::neg:
      return -a;
    case ScalarOp::abs:
      return std::fabs(a);
    case ScalarOp::sign:
      return sign_of(a);
    case ScalarOp::exp:
      return std::exp(a);
    case ScalarOp::expm1:
      return std::expm1(a);
    case ScalarOp::log:
      return std::log(a);
    case ScalarOp::log1p:
      return std::log1p(a);
    case ScalarOp::sqrt:
      return std::sqrt(a);
    case ScalarOp::rsqrt:
      return 1 / std::sqrt(a);
    case ScalarOp::reciprocal:
      return 1 / a;
    case ScalarOp::sin:
      return std::sin(a);
    case ScalarOp::cos:
      return std::cos(a);
    case ScalarOp::tanh:
      return std::tanh(a);
    case ScalarOp::erf:
      return std::erf(a);
    case ScalarOp::sigmoid:
      return 1 / (1 + std::exp(-a));
    case ScalarOp::floor:
      return std::floor(a);
    case ScalarOp::ceil:
      return std::ceil(a);
    case ScalarOp::round:
      return std::nearbyint(a);
    case ScalarOp::trunc:
      return std::trunc(a);
    case ScalarOp::is_nan:
      return std::isnan(a) ? 1 : 0;
    case ScalarOp::is_inf:
      return std::isinf(a) ? 1 : 0;
    case ScalarOp::add:
      return a + b;
    case ScalarOp::sub:
      return a - b;
    case ScalarOp::mul:
      return a * b;
    case ScalarOp::div:
      return a / b;
    case ScalarOp::floor_div:
      return floor_divide(a, b);
    case ScalarOp::remainder:
      return remainder_of(a, b);
    case ScalarOp::fmod:
      return std::fmod(a, b);
    case ScalarOp::pow:
      return std::pow(a, b);
    case ScalarOp::atan2:
      return std::atan2(a, b);
    default:
      break;
  }
  assert(false && "leaves have no value of their own");
  return k_nan;
}

/// A number that becomes an integer by way of i64, or of i32 where it is narrower: NaN, and what these do not hold, is their
/// least.
double least_where_none_fits(DType dtype, double a) {
  const double limit = dtype == DType::i64 ? 0x1p63 : 0x1p31;
  return std::fabs(a) < limit ? a : -limit;
}

}  // namespace

/// Whether NaN stands for an integer, or for a condition made of one.
bool has_unknown_integer(ScalarOp op, DType operand, double a, double b) {
  if (op == ScalarOp::select) return std::isnan(a);
  return !is_floating(operand) && (std::isnan(a) || std::isnan(b));
}

double apply_scalar(ScalarOp op, DType operand, DType result, double a, double b, double c) {
  if (has_unknown_integer(op, operand, a, b)) return k_nan;
  switch (op) {  // the same for every dtype
    case ScalarOp::cast:
      if (is_floating(operand) && !is_floating(result) && result != DType::boolean)
        a = least_where_none_fits(result, a);
      return result == DType::f64 ? a : round_to(result, a);
    case ScalarOp::logical_not:
      return a == 0 ? 1 : 0;
    case ScalarOp::minimum:
      return minimum(a, b);
    case ScalarOp::maximum:
      return maximum(a, b);
    case ScalarOp::eq:
      return a == b ? 1 : 0;
    case ScalarOp::ne:
      return a != b ? 1 : 0;
    case ScalarOp::lt:
      return a < b ? 1 : 0;
    case ScalarOp::le:
      return a <= b ? 1 : 0;
    case ScalarOp::gt:
      return a > b ? 1 : 0;
    case ScalarOp::ge:
      return a >= b ? 1 : 0;
    case ScalarOp::select:
      return a != 0 ? b : c;
    case ScalarOp::bitwise_not:
      return operand == DType::boolean ? (a == 0 ? 1 : 0) : round_to(result, static_cast<double>(~int64_t(a)));
    default:
      break;
  }
  if (is_floating(operand)) return floating(op, a, b);
  return round_to(result, integer(op, result, int64_t(a), int64_t(b)));
}

namespace {

/// The largest or the least number an integer dtype, or bool, holds; of i64 one that f64 holds too.
double limit_of(DType dtype, bool largest) {
  switch (dtype) {
    case DType::boolean:
      return largest ? 1 : 0;
    case DType::u8:
      return largest ? 255 : 0;
    case DType::i8:
      return largest ? 127 : -128;
    case DType::i32:
      return largest ? 0x1p31 - 1 : -0x1p31;
    default:
      return largest ? 0x1p62 : -0x1p62;
  }
}

}  // namespace

double neutral_of(Combiner combiner, DType dtype) {
  switch (combiner) {
    case Combiner::sum:
      return 0;
    case Combiner::product:
    case Combiner::logical_and:
      return 1;
    case Combiner::logical_or:
      return 0;
    case Combiner::maximum:
      return is_floating(dtype) ? -k_infinity : limit_of(dtype, false);
    case Combiner::minimum:
      return is_floating(dtype) ? k_infinity : limit_of(dtype, true);
  }
  return 0;
}

double combine(Combiner combiner, double a, double b) {
  switch (combiner) {
    case Combiner::sum:
      return a + b;
    case Combiner::product:
      return a * b;
    case Combiner::maximum:
      return maximum(a, b);
    case Combiner::minimum:
      return minimum(a, b);
    case Combiner::logical_and:
      return a != 0 && b != 0 ? 1 : 0;
    case Combiner::logical_or:
      return a != 0 || b != 0 ? 1 : 0;
  }
  return 0;
}

}  // namespace kiln
