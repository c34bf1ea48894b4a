// The loops of row_products.cc, included once for each width of vectors, in a namespace of its own: KILN_VECTOR_BYTES,
// and KILN_VECTOR_TARGET, the attribute that lets a function use them. No include guard, for that reason.

using AlignedVector = double __attribute__((vector_size(KILN_VECTOR_BYTES)));
typedef AlignedVector Vector __attribute__((aligned(8), may_alias));
inline constexpr size_t k_lanes = KILN_VECTOR_BYTES / sizeof(double);

/// Adds the products of `rows` rows of a and `columns` rows of b over k in [0, length) to out. `stride`: from one row to
/// the next.
template <int rows, int columns>
KILN_VECTOR_TARGET void add_block(const double* a, const double* b, size_t stride, size_t length, double* out,
                                  size_t out_stride) {
  Vector sums[rows][columns] = {};
  size_t k = 0;
  for (; k + k_lanes <= length; k += k_lanes) {
#pragma GCC unroll 4
    for (int i = 0; i < rows; ++i) {
      const Vector left = *reinterpret_cast<const Vector*>(a + i * stride + k);
#pragma GCC unroll 4
      for (int j = 0; j < columns; ++j) sums[i][j] += left * *reinterpret_cast<const Vector*>(b + j * stride + k);
    }
  }
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      double sum = 0;
      for (size_t lane = 0; lane < k_lanes; ++lane) sum += sums[i][j][lane];
      for (size_t rest = k; rest < length; ++rest) sum += a[i * stride + rest] * b[j * stride + rest];
      out[i * out_stride + j] += sum;
    }
  }
}

KILN_VECTOR_TARGET inline void add_products(const double* a, size_t a_count, const double* b, size_t b_count,
                                            size_t stride, size_t length, double* out) {
  size_t j = 0;
  for (; j + 4 <= b_count; j += 4) {
    size_t i = 0;
    const double* columns = b + j * stride;
    for (; i + 4 <= a_count; i += 4) {
      add_block<4, 4>(a + i * stride, columns, stride, length, out + i * b_count + j, b_count);
    }
    for (; i < a_count; ++i) add_block<1, 4>(a + i * stride, columns, stride, length, out + i * b_count + j, b_count);
  }
  for (; j < b_count; ++j) {
    size_t i = 0;
    const double* column = b + j * stride;
    for (; i + 4 <= a_count; i += 4) {
      add_block<4, 1>(a + i * stride, column, stride, length, out + i * b_count + j, b_count);
    }
    for (; i < a_count; ++i) add_block<1, 1>(a + i * stride, column, stride, length, out + i * b_count + j, b_count);
  }
}

KILN_VECTOR_TARGET inline void add_weighted(std::span<const double> weights, const double* rows,
                                            std::span<double> out) {
  const size_t width = out.size();
  for (const double weight : weights) {
    if (weight != 0) {
      size_t d = 0;
      for (; d + k_lanes <= width; d += k_lanes) {
        *reinterpret_cast<Vector*>(&out[d]) += weight * *reinterpret_cast<const Vector*>(rows + d);
      }
      for (; d < width; ++d) out[d] += weight * rows[d];
    }
    rows += width;
  }
}
