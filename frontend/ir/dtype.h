#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace kiln {

/// Element types. The numbers are on disk and on the wire: append, never renumber.
enum class DType : uint8_t { boolean = 0, u8 = 1, i8 = 2, i32 = 3, i64 = 4, f16 = 5, bf16 = 6, f32 = 7, f64 = 8 };

inline constexpr uint8_t k_dtype_count = 9;

/// Bytes per element; boolean takes one byte, 0 or 1.
size_t size_of(DType dtype);
bool is_floating(DType dtype);
bool is_integral(DType dtype);  // boolean is not
/// Whether it is kept in 16 bits and computed with in f32.
constexpr bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }
/// "bool", "u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64"
std::string_view to_string(DType dtype);
std::optional<DType> dtype_from_string(std::string_view name);

/// The type arithmetic on `dtype` accumulates in: f32 for f16, bf16 and f32; f64 for f64; i64 for integers
/// and bool.
DType accumulator_of(DType dtype);

}  // namespace kiln
