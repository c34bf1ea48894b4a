#include "frontend/ops/row_products.h"

#include <algorithm>

namespace kiln {

namespace {

namespace narrow {
#define KILN_VECTOR_BYTES 16
#define KILN_VECTOR_TARGET
#include "frontend/ops/row_products_loops.h"
#undef KILN_VECTOR_BYTES
#undef KILN_VECTOR_TARGET
}  // namespace narrow

namespace wide {
#define KILN_VECTOR_BYTES 32
#define KILN_VECTOR_TARGET __attribute__((target("arch=x86-64-v3")))
#include "frontend/ops/row_products_loops.h"
#undef KILN_VECTOR_BYTES
#undef KILN_VECTOR_TARGET
}  // namespace wide

namespace widest {
#define KILN_VECTOR_BYTES 64
#define KILN_VECTOR_TARGET __attribute__((target("arch=x86-64-v4")))
#include "frontend/ops/row_products_loops.h"
#undef KILN_VECTOR_BYTES
#undef KILN_VECTOR_TARGET
}  // namespace widest

struct Loops {
  decltype(&narrow::add_products) add_products;
  decltype(&narrow::add_weighted) add_weighted;
};

const Loops& loops() {
  static const Loops chosen = [] {
    if (__builtin_cpu_supports("x86-64-v4")) return Loops{widest::add_products, widest::add_weighted};
    if (__builtin_cpu_supports("x86-64-v3")) return Loops{wide::add_products, wide::add_weighted};
    return Loops{narrow::add_products, narrow::add_weighted};
  }();
  return chosen;
}

constexpr size_t k_block = 512;  // so much of four rows stays in the first-level cache while the others pass by

}  // namespace

void row_products(const double* a, size_t a_count, const double* b, size_t b_count, size_t length, double* out) {
  std::fill_n(out, a_count * b_count, 0.0);
  for (size_t k = 0; k < length; k += k_block) {
    loops().add_products(a + k, a_count, b + k, b_count, length, std::min(k_block, length - k), out);
  }
}

void add_weighted_rows(std::span<const double> weights, const double* rows, std::span<double> out) {
  loops().add_weighted(weights, rows, out);
}

}  // namespace kiln
