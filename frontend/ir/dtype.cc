#include "frontend/ir/dtype.h"

#include <array>
#include <cassert>

namespace kiln {
namespace {

struct DTypeRow {
  std::string_view name;
  uint8_t size_bytes;
  bool floating;
  bool integral;
  DType accumulator;
};

// In the order of the enum.
constexpr std::array<DTypeRow, k_dtype_count> k_rows{{
    {"bool", 1, false, false, DType::i64},
    {"u8", 1, false, true, DType::i64},
    {"i8", 1, false, true, DType::i64},
    {"i32", 4, false, true, DType::i64},
    {"i64", 8, false, true, DType::i64},
    {"f16", 2, true, false, DType::f32},
    {"bf16", 2, true, false, DType::f32},
    {"f32", 4, true, false, DType::f32},
    {"f64", 8, true, false, DType::f64},
}};

const DTypeRow& row(DType dtype) {
  assert(static_cast<uint8_t>(dtype) < k_dtype_count && "dtype from outside must be checked where it is read");
  return k_rows[static_cast<uint8_t>(dtype)];
}

}  // namespace

size_t size_of(DType dtype) { return row(dtype).size_bytes; }
bool is_floating(DType dtype) { return row(dtype).floating; }
bool is_integral(DType dtype) { return row(dtype).integral; }
std::string_view to_string(DType dtype) { return row(dtype).name; }
DType accumulator_of(DType dtype) { return row(dtype).accumulator; }

std::optional<DType> dtype_from_string(std::string_view name) {
  for (uint8_t i = 0; i < k_dtype_count; ++i) {
    if (k_rows[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace kiln
