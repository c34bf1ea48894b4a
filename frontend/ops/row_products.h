#pragma once

#include <cstddef>
#include <span>

namespace kiln {

/// The reference's tight loops, in f64, with the widest vectors that this processor has.

/// out[i * b_count + j] = Σ_k a[i * length + k] * b[j * length + k]: every row of `a` with every row of `b`.
void row_products(const double* a, size_t a_count, const double* b, size_t b_count, size_t length, double* out);

/// out[d] += Σ_j weights[j] * rows[j * out.size() + d]. A row of weight 0 is not read: what is masked may hold anything.
void add_weighted_rows(std::span<const double> weights, const double* rows, std::span<double> out);

}  // namespace kiln
