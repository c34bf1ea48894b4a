#include "frontend/ops/tensor.h"

#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

namespace kiln {

namespace {

template <typename T>
T read(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void write(std::byte* data, int64_t index, T value) {
  std::memcpy(data + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

/// Truncated and wrapped to T; 0 for NaN and what i64 cannot hold.
template <typename T>
T to_integer(double value) {
  if (!(value >= -0x1p63 && value < 0x1p63)) return 0;
  return static_cast<T>(static_cast<int64_t>(value));
}

/// Rounds to `precision` significant bits, fewer below the smallest normal 2^min_exponent; overflow is left to the
/// caller.
double round_significand(double value, int precision, int min_exponent) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), min_exponent);
  const double unit = std::ldexp(1.0, exponent - precision + 1);
  return std::nearbyint(value / unit) * unit;
}

}  // namespace

Tensor Tensor::zeros(DType dtype, std::vector<int64_t> dims) {
  Tensor tensor{dtype, std::move(dims), {}};
  tensor.bytes.resize(static_cast<size_t>(tensor.elements()) * size_of(dtype));
  return tensor;
}

Tensor Tensor::from_values(DType dtype, std::vector<int64_t> dims, std::span<const double> values) {
  Tensor tensor = zeros(dtype, std::move(dims));
  assert(static_cast<int64_t>(values.size()) == tensor.elements());
  for (size_t i = 0; i < values.size(); ++i) tensor.set(static_cast<int64_t>(i), values[i]);
  return tensor;
}

int64_t Tensor::elements() const {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

double Tensor::at(int64_t index) const { return load_element(dtype, bytes.data(), index); }
void Tensor::set(int64_t index, double value) { store_element(dtype, bytes.data(), index, value); }

double load_element(DType dtype, const std::byte* data, int64_t index) {
  switch (dtype) {
    case DType::boolean:
      return read<uint8_t>(data, index) != 0 ? 1 : 0;
    case DType::u8:
      return read<uint8_t>(data, index);
    case DType::i8:
      return read<int8_t>(data, index);
    case DType::i32:
      return read<int32_t>(data, index);
    case DType::i64:
      return static_cast<double>(read<int64_t>(data, index));
    case DType::f16:
      return f16_to_f32(read<uint16_t>(data, index));
    case DType::bf16:
      return bf16_to_f32(read<uint16_t>(data, index));
    case DType::f32:
      return read<float>(data, index);
    case DType::f64:
      return read<double>(data, index);
  }
  return 0;
}

void load_elements(DType dtype, const std::byte* data, int64_t first, int64_t step, std::span<double> out) {
  const auto load_each = [&](auto load) {
    for (double& value : out) {
      value = load(first);
      first += step;
    }
  };
  // The dtypes that large reductions read; the loop is free of the switch, and of the step where it can be.
  if (dtype == DType::f32 && step == 1) {
    for (double& value : out) value = read<float>(data, first++);
    return;
  }
  if (dtype == DType::f32) return load_each([&](int64_t i) { return static_cast<double>(read<float>(data, i)); });
  if (dtype == DType::f64) return load_each([&](int64_t i) { return read<double>(data, i); });
  load_each([&](int64_t i) { return load_element(dtype, data, i); });
}

void store_element(DType dtype, std::byte* data, int64_t index, double value) {
  switch (dtype) {
    case DType::boolean:
      return write<uint8_t>(data, index, value != 0 ? 1 : 0);
    case DType::u8:
      return write(data, index, to_integer<uint8_t>(value));
    case DType::i8:
      return write(data, index, to_integer<int8_t>(value));
    case DType::i32:
      return write(data, index, to_integer<int32_t>(value));
    case DType::i64:
      return write(data, index, to_integer<int64_t>(value));
    case DType::f16:
      return write(data, index, f64_to_f16(value));
    case DType::bf16:
      return write(data, index, f64_to_bf16(value));
    case DType::f32:
      return write(data, index, static_cast<float>(value));
    case DType::f64:
      return write(data, index, value);
  }
}

double round_to(DType dtype, double value) {
  std::byte bytes[8];
  store_element(dtype, bytes, 0, value);
  return load_element(dtype, bytes, 0);
}

float bf16_to_f32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t f64_to_bf16(double value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto rounded = static_cast<float>(round_significand(value, 8, -126));  // exact, or past the largest: infinity
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) >> 16);
}

float f16_to_f32(uint16_t bits) {
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  if (exponent == 31) {
    return fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction | 1024), exponent - 25);
}

uint16_t f64_to_f16(double value) {
  if (std::isnan(value)) return 0x7e00;
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::fabs(round_significand(value, 11, -14));
  if (magnitude >= 65536.0) return sign | 0x7c00;
  if (magnitude < 0x1p-14) return sign | static_cast<uint16_t>(magnitude * 0x1p24);  // subnormal or zero
  const int exponent = std::ilogb(magnitude);
  const auto fraction = static_cast<uint16_t>(std::ldexp(magnitude, 10 - exponent));  // 1024 to 2047
  return static_cast<uint16_t>(sign | ((exponent + 14) << 10)) + fraction;  // its leading 1 makes the exponent whole
}

}  // namespace kiln
