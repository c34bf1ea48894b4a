#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kiln {

/// constant + Σ coefficient * dim: where something lies, as a function of a kernel's iteration dims.
struct Affine {
  int64_t constant = 0;
  std::vector<std::pair<uint32_t, int64_t>> terms;  // (dim, coefficient ≠ 0), ascending by dim

  static Affine of_dim(uint32_t dim, int64_t coefficient = 1);
  Affine operator+(const Affine& other) const;
  Affine operator+(int64_t offset) const;
  Affine operator*(int64_t factor) const;
  bool is_constant() const { return terms.empty(); }
  bool operator==(const Affine&) const = default;
};

/// One Affine per dim of a tensor.
using Index = std::vector<Affine>;

/// Extents of the dims an Affine speaks of: iteration dims, counted from 0, and after k_first_indirect the values of
/// data-dependent indices, known to lie in [0, bound).
struct DimTable {
  static constexpr uint32_t k_first_indirect = 1U << 16;
  std::vector<int64_t> iteration;
  std::vector<int64_t> indirect;

  int64_t extent(uint32_t dim) const {
    return dim < k_first_indirect ? iteration[dim] : indirect[dim - k_first_indirect];
  }
};

/// Lowest and highest value, inclusive.
std::pair<int64_t, int64_t> range_of(const Affine& affine, const DimTable& dims);

/// The iteration dim must become (extent / inner, inner) for an index to be expressible.
struct DimSplit {
  uint32_t dim = 0;
  int64_t inner = 0;
};

/// Σ index[d] * stride of row-major `extents`.
Affine flatten(const Index& index, std::span<const int64_t> extents);

/// The inverse: an Index over `extents` whose flattening is `flat`; or the split that would allow it, or neither.
struct Unflattened {
  std::optional<Index> index;
  std::optional<DimSplit> split;
};
Unflattened unflatten(Affine flat, std::span<const int64_t> extents, const DimTable& dims);

/// Whether running all dims that occur in it makes `index` meet every point of `extents` exactly once.
bool is_bijection(const Index& index, std::span<const int64_t> extents, const DimTable& dims);

/// Strides of dense row-major storage.
std::vector<int64_t> dense_strides(std::span<const int64_t> extents);
int64_t product(std::span<const int64_t> extents);

/// Where element `index` of row-major `extents` lies in memory of these strides.
int64_t place_of(int64_t index, std::span<const int64_t> extents, std::span<const int64_t> strides);

}  // namespace kiln
