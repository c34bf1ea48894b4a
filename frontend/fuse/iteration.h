#pragma once

#include "frontend/kernel/affine.h"
#include "frontend/kernel/kernel_spec.h"

namespace kiln {

/// The dims a kernel is thought of in (a tensor's, or batch, m, n), each cut into pieces where index maps ask for it.
/// The pieces, in order, are the iteration dims while expressions are made; afterwards they are merged again.
class IterationSpace {
 public:
  explicit IterationSpace(const std::vector<int64_t>& extents);
  static IterationSpace of_pieces(std::vector<std::vector<int64_t>> pieces);

  /// The extents of all pieces.
  std::vector<int64_t> extents() const;
  size_t rank() const { return extents().size(); }
  /// The position in each logical dim, from iteration dim `first` on.
  Index index(uint32_t first = 0) const;
  /// False when the dim is not one of ours or cannot be cut there.
  bool split(DimSplit split, uint32_t first = 0);
  const std::vector<std::vector<int64_t>>& pieces() const { return m_pieces; }

 private:
  std::vector<std::vector<int64_t>> m_pieces;  // none for an extent of 1
};

/// Attempts of which each cuts one dim: an extent below 2^40 has at most 40 cuts.
inline constexpr int k_most_cuts = 64;

/// Whether dims d and d + 1 of every access of the body can be walked as one dim (`extent` is that of d + 1).
bool can_merge(const Body& body, size_t d, int64_t extent);
/// Makes dims d and d + 1 one; can_merge must hold.
void merge_dims(Body& body, size_t d);

/// Dim order[i] becomes dim i.
void permute_dims(Body& body, const std::vector<uint32_t>& order);

/// Merges neighbouring pieces of each logical dim where every access allows it, and gives each logical dim at least one
/// iteration dim, also those of extent 1. The pieces that are left, of each logical dim.
std::vector<std::vector<int64_t>> merge_what_can(Body& body, const IterationSpace& space);

/// Merges the pieces of every logical dim and gives each logical dim one iteration dim, also those of extent 1.
/// False when some access does not allow it.
bool merge_pieces(Body& body, const IterationSpace& space);

/// No access moves along the dim and no expression asks for its value.
bool ignores_dim(const Body& body, size_t d);
void remove_dim(Body& body, size_t d);
/// A dim that the body ignores becomes dim d.
void insert_dim(Body& body, size_t d);

}  // namespace kiln
