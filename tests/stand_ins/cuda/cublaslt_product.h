#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "backends/reference/number.h"

/// What the stand-in for cuBLASLt is told of a product, which of that fits together, and what it computes.
namespace kiln::cuda_emulator {

struct Operation {
  int compute = 0, scale = 0;
  int32_t transposes[2] = {0, 0}, bias_type = -1;
  uint32_t epilogue = 1;
  const void* bias = nullptr;
  int64_t bias_batch_stride = 0;
  void* aux = nullptr;  // GELU's input
  int64_t aux_column_stride = 0, aux_batch_stride = 0;

  bool has_bias() const { return (epilogue & 4) != 0; }
  bool has_gelu() const { return (epilogue & 32) != 0; }
  bool has_gelu_gradient() const { return (epilogue & 64) != 0; }
  bool has_aux() const { return (epilogue & 128) != 0; }
};

/// CUBLASLT_EPILOGUE_DEFAULT, BIAS, and GELU, GELU_BIAS, GELU_AUX, GELU_AUX_BIAS and DGELU: those that are computed here.
inline constexpr std::array k_epilogues = {1u, 4u, 32u, 36u, 160u, 164u, 192u};

struct Layout {
  int type = 0;
  uint64_t rows = 0, columns = 0;
  int64_t column_stride = 0, batch_stride = 0;
  int32_t batches = 1;
};

inline DType dtype_of(int type) {
  return type == 0 ? DType::f32 : type == 1 ? DType::f64 : type == 2 ? DType::f16 : DType::bf16;
}
inline bool is_type(int type) { return type == 0 || type == 1 || type == 2 || type == 14; }

inline uint64_t bytes_of(const Layout& layout) {
  const uint64_t elements = static_cast<uint64_t>(layout.batches - 1) * static_cast<uint64_t>(layout.batch_stride) +
                            (layout.columns - 1) * static_cast<uint64_t>(layout.column_stride) + layout.rows;
  return elements * size_of(dtype_of(layout.type));
}

/// Rows, then columns, as the product has them.
inline std::array<uint64_t, 2> shape_of(const Layout& layout, bool is_transposed) {
  return is_transposed ? std::array{layout.columns, layout.rows} : std::array{layout.rows, layout.columns};
}

inline bool is_whole(const Layout& layout) {
  return is_type(layout.type) && layout.rows > 0 && layout.columns > 0 && layout.batches > 0 &&
         std::cmp_greater_equal(layout.column_stride, layout.rows);
}

/// Of the same type and shape, wherever its columns are.
inline bool is_like(const Layout& matrix, const Layout& other) {
  return is_whole(matrix) && matrix.type == other.type && matrix.rows == other.rows &&
         matrix.columns == other.columns && matrix.batches == other.batches;
}

inline Layout layout_of_aux(const Operation& operation, const Layout& d) {
  Layout aux = d;
  aux.column_stride = operation.aux_column_stride;
  aux.batch_stride = operation.aux_batch_stride;
  return aux;
}

/// What the documentation asks of an epilogue and its operands.
inline bool is_epilogue(const Operation& operation, const Layout& d) {
  if (std::ranges::find(k_epilogues, operation.epilogue) == k_epilogues.end()) return false;
  if (operation.has_bias() && operation.bias_type != d.type) return false;
  if (!operation.has_aux()) return true;
  return operation.aux != nullptr && is_whole(layout_of_aux(operation, d)) && operation.aux_column_stride % 8 == 0 &&
         operation.aux_batch_stride % 8 == 0 && (d.batches == 1 || operation.aux_batch_stride > 0);
}

inline bool fits(const Operation& operation, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const auto left = shape_of(a, operation.transposes[0] != 0), right = shape_of(b, operation.transposes[1] != 0);
  const bool is_wide = operation.compute == 70;
  const bool has_types =
      a.type == b.type && (is_wide ? a.type == 1 && d.type == 1
                                   : operation.compute == 68 && a.type != 1 && (d.type == a.type || d.type == 0));
  return is_whole(a) && is_whole(b) && is_whole(d) && is_like(c, d) && has_types && is_epilogue(operation, d) &&
         operation.scale == (is_wide ? 1 : 0) && left[1] == right[0] && left[0] == d.rows && right[1] == d.columns &&
         a.batches == d.batches && b.batches == d.batches;
}

/// A product, with all that it needs once it is its turn.
struct Product {
  Operation operation;
  Layout a, b, c, d;
  const void *left, *right, *addend;
  void *result, *workspace;
  double factor, addend_factor;  // alpha and beta
  uint64_t parts;

  void run() const {
    if (operation.compute == 70) {
      sum_up<double>();
    } else {
      sum_up<float>();
    }
  }

 private:
  template <typename Sum>
  void sum_up() const {
    const auto shape = shape_of(a, operation.transposes[0] != 0);
    for (int64_t batch = 0; batch < d.batches; ++batch) {
      for (uint64_t column = 0; column < d.columns; ++column) {
        for (uint64_t row = 0; row < d.rows; ++row) {
          const Sum sum = parts == 1 ? sum_of<Sum>(batch, row, column, 0, shape[1])
                                     : sum_of_parts<Sum>(batch, row, column, shape[1]);
          store(d, result, batch, row, column, finished(sum, batch, row, column));
        }
      }
    }
  }
  static int64_t at(const Layout& layout, int64_t batch, uint64_t row, uint64_t column) {
    return batch * layout.batch_stride + static_cast<int64_t>(column) * layout.column_stride +
           static_cast<int64_t>(row);
  }
  double of(const Layout& layout, const void* matrix, bool is_transposed, int64_t batch, uint64_t row,
            uint64_t column) const {
    const int64_t place = is_transposed ? at(layout, batch, column, row) : at(layout, batch, row, column);
    return load_number(dtype_of(layout.type), matrix, place).real;
  }
  template <typename Sum>
  Sum sum_of(int64_t batch, uint64_t row, uint64_t column, uint64_t begin, uint64_t end) const {
    Sum sum = 0;
    for (uint64_t k = begin; k < end; ++k) {
      sum = std::fma(static_cast<Sum>(of(a, left, operation.transposes[0] != 0, batch, row, k)),
                     static_cast<Sum>(of(b, right, operation.transposes[1] != 0, batch, k, column)), sum);
    }
    return sum;
  }
  template <typename Sum>
  Sum sum_of_parts(int64_t batch, uint64_t row, uint64_t column, uint64_t k) const {
    auto* const sums = static_cast<Sum*>(workspace);
    sums[0] = sum_of<Sum>(batch, row, column, 0, k / 2);
    sums[1] = sum_of<Sum>(batch, row, column, k / 2, k);
    return sums[0] + sums[1];
  }
  template <typename Sum>
  Sum finished(Sum sum, int64_t batch, uint64_t row, uint64_t column) const {
    sum *= static_cast<Sum>(factor);
    // A factor of 0: nobody reads what is added.
    if (addend_factor != 0) {
      sum += static_cast<Sum>(addend_factor) * static_cast<Sum>(of(c, addend, false, batch, row, column));
    }
    if (operation.has_bias()) {
      const int64_t place = batch * operation.bias_batch_stride + static_cast<int64_t>(row);
      sum += static_cast<Sum>(load_number(dtype_of(operation.bias_type), operation.bias, place).real);
    }
    const Layout aux = layout_of_aux(operation, d);
    if (operation.has_gelu_gradient())
      return sum * gelu_slope(static_cast<Sum>(of(aux, operation.aux, false, batch, row, column)));
    if (operation.has_aux()) store(aux, operation.aux, batch, row, column, sum);
    return operation.has_gelu() ? sum / 2 * (1 + bend(sum)) : sum;
  }
  template <typename Sum>
  static Sum bend(Sum x) {
    constexpr Sum k_scale = static_cast<Sum>(0.7978845608028654), k_cubic = static_cast<Sum>(0.044715);
    return std::tanh(k_scale * (x + k_cubic * x * x * x));
  }
  template <typename Sum>
  static Sum gelu_slope(Sum x) {
    constexpr Sum k_scale = static_cast<Sum>(0.7978845608028654), k_cubic = static_cast<Sum>(3 * 0.044715);
    const Sum t = bend(x);
    return (1 + t) / 2 + x / 2 * (1 - t * t) * k_scale * (1 + k_cubic * x * x);
  }
  static void store(const Layout& layout, void* matrix, int64_t batch, uint64_t row, uint64_t column, double value) {
    store_number(dtype_of(layout.type), matrix, at(layout, batch, row, column), {value, 0});
  }
};

}  // namespace kiln::cuda_emulator
