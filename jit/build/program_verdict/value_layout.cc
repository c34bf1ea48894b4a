#include "jit/build/program_verdict/value_layout.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/digest.h"
#include "frontend/kernel/affine.h"

namespace kiln {

namespace {

constexpr int64_t k_piece_elements = 8'192;  // both sides of a comparison stay in a private cache

template <size_t k_size>
void gather(const uint8_t* from, int64_t stride, int64_t count, uint8_t* to) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * k_size, from + i * stride * int64_t{k_size}, k_size);
}

void gather(size_t size, const uint8_t* from, int64_t stride, int64_t count, uint8_t* to) {
  if (stride == 1) {
    std::memcpy(to, from, static_cast<size_t>(count) * size);
    return;
  }
  switch (size) {
    case 1:
      return gather<1>(from, stride, count, to);
    case 2:
      return gather<2>(from, stride, count, to);
    case 4:
      return gather<4>(from, stride, count, to);
    default:
      return gather<8>(from, stride, count, to);
  }
}

}  // namespace

ValueLayout ValueLayout::of(const TensorType& type, std::vector<int64_t> strides) {
  ValueLayout layout{type.dtype, constants(type.shape), std::move(strides)};
  if (layout.strides.empty()) layout.strides = dense_strides(layout.dims);
  return layout;
}

ValueLayout ValueLayout::of(const TensorType& type, const std::vector<Dim>& strides) {
  return of(type, constants(strides));
}

int64_t ValueLayout::elements() const {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

uint64_t ValueLayout::bytes() const {
  if (elements() == 0) return 0;
  int64_t last = 0;
  for (size_t d = 0; d < dims.size(); ++d) last += (dims[d] - 1) * strides[d];
  return static_cast<uint64_t>(last + 1) * size_of(dtype);
}

int64_t ValueLayout::place_of(int64_t flat) const {
  int64_t place = 0;
  for (size_t d = dims.size(); d-- > 0;) {
    place += flat % dims[d] * strides[d];
    flat /= dims[d];
  }
  return place;
}

bool ValueLayout::is_packed() const {
  std::vector<size_t> order(dims.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](size_t d) { return strides[d]; });
  int64_t stride = 1;
  for (const size_t d : order) {
    if (dims[d] == 1) continue;
    if (strides[d] != stride) return false;
    stride *= dims[d];
  }
  return true;
}

bool ValueLayout::lies_as(const ValueLayout& other) const {
  if (dtype != other.dtype || dims != other.dims) return false;
  if (elements() == 0) return true;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] != 1 && strides[d] != other.strides[d]) return false;
  }
  return true;
}

TensorType ValueLayout::type() const {
  TensorType type{dtype, {}, {}};
  type.shape.assign(dims.begin(), dims.end());
  type.strides.assign(strides.begin(), strides.end());
  return type;
}

void for_each_piece(const ValueLayout& layout, std::span<const uint8_t> bytes,
                    const std::function<bool(int64_t first, std::span<const uint8_t> piece)>& visit) {
  const int64_t elements = layout.elements();
  const size_t size = size_of(layout.dtype);
  const bool is_dense = layout.strides == dense_strides(layout.dims);
  const int64_t row = layout.dims.empty() ? 1 : layout.dims.back();
  const int64_t stride = layout.dims.empty() ? 1 : layout.strides.back();
  std::vector<uint8_t> gathered(is_dense ? 0 : static_cast<size_t>(k_piece_elements) * size);
  for (int64_t first = 0; first < elements; first += k_piece_elements) {
    const int64_t count = std::min(k_piece_elements, elements - first);
    if (is_dense) {
      const auto piece = bytes.subspan(static_cast<size_t>(first) * size, static_cast<size_t>(count) * size);
      if (!visit(first, piece)) return;
      continue;
    }
    for (int64_t done = 0; done < count;) {
      const int64_t flat = first + done, part = std::min(count - done, row - flat % row);
      const uint8_t* from = bytes.data() + static_cast<size_t>(layout.place_of(flat)) * size;
      gather(size, from, stride, part, gathered.data() + static_cast<size_t>(done) * size);
      done += part;
    }
    if (!visit(first, std::span(gathered).first(static_cast<size_t>(count) * size))) return;
  }
}

int64_t find_difference(const ValueLayout& a, std::span<const uint8_t> a_bytes, const ValueLayout& b,
                        std::span<const uint8_t> b_bytes) {
  if (a.lies_as(b) && a.is_packed() && std::memcmp(a_bytes.data(), b_bytes.data(), a.bytes()) == 0) return -1;
  // Pieces of one side are checksummed as they come, then those of the other are held against them.
  std::vector<uint64_t> checksums;
  for_each_piece(a, a_bytes, [&](int64_t, std::span<const uint8_t> piece) {
    checksums.push_back(checksum_of(piece));
    return true;
  });
  int64_t wrong = -1;
  for_each_piece(b, b_bytes, [&](int64_t first, std::span<const uint8_t> piece) {
    if (checksum_of(piece) == checksums[static_cast<size_t>(first / k_piece_elements)]) return true;
    wrong = first;
    return false;
  });
  if (wrong < 0) return -1;
  const size_t size = size_of(a.dtype);
  for (;; ++wrong) {
    const auto at = [&](const ValueLayout& layout, std::span<const uint8_t> bytes) {
      return bytes.data() + static_cast<size_t>(layout.place_of(wrong)) * size;
    };
    if (std::memcmp(at(a, a_bytes), at(b, b_bytes), size) != 0) return wrong;
  }
}

}  // namespace kiln
