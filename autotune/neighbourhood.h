#pragma once

#include <string>
#include <vector>

#include "frontend/kernel/kernel_spec.h"

namespace kiln {

/// Where a kernel that races lies among others: those of its family differ from it in little but their sizes, and those
/// that are near in these are likely to be fastest with the same schedule.
struct Neighbourhood {
  std::string family;      // kind, dtypes, how operands lie, what is computed beside: "gemm f32 a f32n b f32t c f32n"
  std::vector<int> sizes;  // as logarithms to base 2, rounded

  bool operator==(const Neighbourhood&) const = default;
  /// "0,9,12,10"
  std::string sizes_text() const;
};

/// Of a product its sizes are batch, m, n and k; of attention its heads in all batches, queries and keys.
/// The spec must be one of these: loops have no neighbours.
Neighbourhood neighbourhood_of(const KernelSpec& spec);

/// The neighbourhood itself, then others of its family, the nearest first, as far as a factor of eight in all sizes
/// together: at most 129.
std::vector<Neighbourhood> around(const Neighbourhood& centre);

}  // namespace kiln
