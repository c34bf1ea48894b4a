#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "frontend/ir/dtype.h"

namespace kiln {

/// A tensor in host memory, dense row-major, native byte order.
struct Tensor {
  DType dtype = DType::f32;
  std::vector<int64_t> dims;
  std::vector<std::byte> bytes;

  static Tensor zeros(DType dtype, std::vector<int64_t> dims);
  /// Each value rounded to the dtype as `store_element` does.
  static Tensor from_values(DType dtype, std::vector<int64_t> dims, std::span<const double> values);

  int64_t elements() const;
  double at(int64_t index) const;
  void set(int64_t index, double value);
};

/// Element `index` of densely packed elements, as f64. i64 beyond 2^53 loses its low bits. `data` need not be aligned.
double load_element(DType dtype, const std::byte* data, int64_t index);
/// out.size() elements from `first` on, `step` apart.
void load_elements(DType dtype, const std::byte* data, int64_t first, int64_t step, std::span<double> out);
/// Rounds to nearest even; integers truncate; boolean is value != 0.
void store_element(DType dtype, std::byte* data, int64_t index, double value);

/// `value` as `dtype` would hold it: what a cast does.
double round_to(DType dtype, double value);

float f16_to_f32(uint16_t bits);
float bf16_to_f32(uint16_t bits);
/// Round to nearest even, directly from f64 so that nothing is rounded twice; NaN stays NaN.
uint16_t f64_to_f16(double value);
uint16_t f64_to_bf16(double value);

}  // namespace kiln
