#include "cli/buffer.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "frontend/ops/element_evaluator.h"

namespace kiln::cli {

namespace {

constexpr size_t k_alignment = 64;

}  // namespace

Buffer::Buffer(const TensorLayout& layout) : m_layout(layout), m_elements(1) {
  for (size_t i = 0; i < layout.dims.size(); ++i) {
    if (layout.dims[i] == 0) m_elements = 0;
  }
  if (m_elements != 0) {
    for (size_t i = 0; i < layout.dims.size(); ++i) m_elements += (layout.dims[i] - 1) * stride(i);
  }
  m_bytes.resize(static_cast<size_t>(m_elements) * size_of(layout.dtype) + k_alignment);
  m_start = (k_alignment - reinterpret_cast<uintptr_t>(m_bytes.data()) % k_alignment) % k_alignment;
}

int64_t Buffer::count() const {
  int64_t count = 1;
  for (const int64_t extent : m_layout.dims) count *= extent;
  return count;
}

double Buffer::at(int64_t index) const {
  int64_t place = 0;
  for (size_t i = m_layout.dims.size(); i-- > 0;) {
    place += index % m_layout.dims[i] * stride(i);
    index /= m_layout.dims[i];
  }
  return load_element(m_layout.dtype, data(), place);
}

int64_t Buffer::stride(size_t dim) const {
  if (!m_layout.strides.empty()) return m_layout.strides[dim];
  int64_t stride = 1;
  for (size_t i = dim + 1; i < m_layout.dims.size(); ++i) stride *= m_layout.dims[i];
  return stride;
}

Status fill_from_file(Buffer& buffer, const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return error(StatusCode::not_found, "{}: {}", path, std::strerror(errno));
  const auto size = static_cast<size_t>(file.tellg());
  if (size != buffer.size_bytes()) {
    return invalid_argument("{} has {} bytes, expected {}: the elements alone, in native byte order", path, size,
                            buffer.size_bytes());
  }
  file.seekg(0);
  file.read(reinterpret_cast<char*>(buffer.data()), static_cast<std::streamsize>(size));
  return file ? Status() : error(StatusCode::unknown, "{} cannot be read", path);
}

double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-10;
    case DType::f32:
      return 1e-4;
    case DType::f16:
      return 1e-2;
    case DType::bf16:
      return 5e-2;
    default:
      return 0;
  }
}

Comparison compare(std::span<const ExpectedAndGot> pairs, double tolerance) {
  Comparison result{.compared = static_cast<int64_t>(pairs.size()), .tolerance = tolerance};
  double squares = 0;
  int64_t finite = 0;
  for (const auto& [expected, got] : pairs) {
    if (!std::isfinite(expected)) continue;
    squares += expected * expected;
    ++finite;
  }
  const double spread = finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite));
  for (const auto& [expected, got] : pairs) {
    if (expected == got || (std::isnan(expected) && std::isnan(got))) continue;
    const double error = std::abs(got - expected) / (std::abs(expected) + spread);
    if (!(error <= tolerance)) result.good = false;
    if (!(error <= result.max_error)) result.max_error = std::isnan(error) ? INFINITY : error;
  }
  return result;
}

}  // namespace kiln::cli
