#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "frontend/ir/graph.h"

namespace kiln {

/// Where the elements of a value lie in some memory. Dims and strides in elements; strides are always given.
struct ValueLayout {
  DType dtype = DType::f32;
  std::vector<int64_t> dims, strides;

  /// `strides` empty: dense row-major. Every dim must be a constant.
  static ValueLayout of(const TensorType& type, const std::vector<Dim>& strides);
  static ValueLayout of(const TensorType& type, std::vector<int64_t> strides);

  int64_t elements() const;
  /// Bytes from the first element to the end of the last.
  uint64_t bytes() const;
  /// Where element `flat` (row-major) lies, in elements.
  int64_t place_of(int64_t flat) const;
  /// Whether the elements fill `bytes()` without gaps and without sharing, in whatever order of dims.
  bool is_packed() const;
  /// Whether each element lies where the other's does.
  bool lies_as(const ValueLayout& other) const;
  /// The type of a graph's input that lies so.
  TensorType type() const;
};

/// Calls `visit` with the elements in row-major order, in pieces: the n-th call for two layouts of equal dims and dtype
/// sees the same elements. Stops when it returns false. `bytes` must have layout.bytes().
void for_each_piece(const ValueLayout& layout, std::span<const uint8_t> bytes,
                    const std::function<bool(int64_t first, std::span<const uint8_t> piece)>& visit);

/// The first element (row-major) that differs in any bit; -1 when none does. Dims and dtypes are equal.
int64_t find_difference(const ValueLayout& a, std::span<const uint8_t> a_bytes, const ValueLayout& b,
                        std::span<const uint8_t> b_bytes);

/// A checksum that is equal for equal elements, whatever the strides.
uint64_t checksum_of_elements(const ValueLayout& layout, std::span<const uint8_t> bytes);

}  // namespace kiln
