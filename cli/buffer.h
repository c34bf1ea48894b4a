#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "client/client.h"

namespace kiln::cli {

/// The memory of one tensor as a program expects it: dims and strides in elements, 64-byte aligned, zeros at first.
class Buffer {
 public:
  explicit Buffer(const TensorLayout& layout);

  std::byte* data() { return m_bytes.data() + m_start; }
  const std::byte* data() const { return m_bytes.data() + m_start; }
  /// From the first element to the last one, gaps of strides included.
  int64_t elements() const { return m_elements; }
  size_t size_bytes() const { return static_cast<size_t>(m_elements) * size_of(m_layout.dtype); }
  DType dtype() const { return m_layout.dtype; }
  /// Elements without gaps.
  int64_t count() const;
  /// Element `index`, row-major over the dims.
  double at(int64_t index) const;

 private:
  int64_t stride(size_t dim) const;

  TensorLayout m_layout;
  int64_t m_elements;
  std::vector<std::byte> m_bytes;
  size_t m_start = 0;
};

/// Reads all of the buffer's bytes from a file that has these and no others. Errors: not_found, invalid_argument.
Status fill_from_file(Buffer& buffer, const std::string& path);

struct ExpectedAndGot {
  double expected, got;
};

/// How far one tensor's elements are from what was expected.
struct Comparison {
  int64_t compared = 0;
  double max_error = 0;  // absolute, as a share of the tolerance's scale: |expected| + the root mean square of those
  double tolerance = 0;
  bool good = true;
};

/// What a right kernel stays below, for sums of up to some thousands of terms; exact for integers.
double tolerance_of(DType dtype);

Comparison compare(std::span<const ExpectedAndGot> pairs, double tolerance);

}  // namespace kiln::cli
