/// Index maps.
///
/// Every view (permute, slice, expand, reshape, flip) renames indices, and all but reshape keep affine maps affine. A
/// reshape flattens an index and cuts it up again, which asks for e / n and e % n of an affine e. Both are affine
/// when e's terms fall into multiples of n and a rest that stays in [0, n). Where one dim straddles n (coefficient
/// c < n, c * extent > n), cutting that iteration dim at n / c makes it so: the common refinement of the two
/// factorisations. Splitting iteration dims is free, they are merged again at the end where every access allows.
#include "frontend/kernel/affine.h"

#include <algorithm>

namespace kiln {

Affine Affine::of_dim(uint32_t dim, int64_t coefficient) {
  Affine result;
  if (coefficient != 0) result.terms.emplace_back(dim, coefficient);
  return result;
}

Affine Affine::operator+(const Affine& other) const {
  Affine sum;
  sum.constant = constant + other.constant;
  auto a = terms.begin();
  auto b = other.terms.begin();
  while (a != terms.end() || b != other.terms.end()) {
    if (b == other.terms.end() || (a != terms.end() && a->first < b->first)) {
      sum.terms.push_back(*a++);
    } else if (a == terms.end() || b->first < a->first) {
      sum.terms.push_back(*b++);
    } else {
      if (a->second + b->second != 0) sum.terms.emplace_back(a->first, a->second + b->second);
      ++a, ++b;
    }
  }
  return sum;
}

Affine Affine::operator+(int64_t offset) const {
  Affine sum = *this;
  sum.constant += offset;
  return sum;
}

Affine Affine::operator*(int64_t factor) const {
  Affine result;
  if (factor == 0) return result;
  result.constant = constant * factor;
  for (const auto& [dim, coefficient] : terms) result.terms.emplace_back(dim, coefficient * factor);
  return result;
}

std::pair<int64_t, int64_t> range_of(const Affine& affine, const DimTable& dims) {
  int64_t low = affine.constant, high = affine.constant;
  for (const auto& [dim, coefficient] : affine.terms) {
    const int64_t span = coefficient * (dims.extent(dim) - 1);
    (span < 0 ? low : high) += span;
  }
  return {low, high};
}

std::vector<int64_t> dense_strides(std::span<const int64_t> extents) {
  std::vector<int64_t> strides(extents.size());
  int64_t stride = 1;
  for (size_t d = extents.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= extents[d];
  }
  return strides;
}

int64_t product(std::span<const int64_t> extents) {
  int64_t result = 1;
  for (const int64_t extent : extents) result *= extent;
  return result;
}

int64_t place_of(int64_t index, std::span<const int64_t> extents, std::span<const int64_t> strides) {
  int64_t place = 0;
  for (size_t d = extents.size(); d-- > 0;) {
    place += index % extents[d] * strides[d];
    index /= extents[d];
  }
  return place;
}

Affine flatten(const Index& index, std::span<const int64_t> extents) {
  const std::vector<int64_t> strides = dense_strides(extents);
  Affine flat;
  for (size_t d = 0; d < index.size(); ++d) flat = flat + index[d] * strides[d];
  return flat;
}

namespace {

struct Division {
  Affine quotient, remainder;
};

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

Division divide(const Affine& affine, int64_t by) {
  Division result;
  result.quotient.constant = floor_div(affine.constant, by);
  result.remainder.constant = affine.constant - result.quotient.constant * by;
  for (const auto& [dim, coefficient] : affine.terms) {
    const bool divides = coefficient % by == 0;
    (divides ? result.quotient : result.remainder).terms.emplace_back(dim, divides ? coefficient / by : coefficient);
  }
  return result;
}

// A dim of the remainder that runs past `by` and can be cut there.
std::optional<DimSplit> find_split(const Affine& remainder, int64_t by, const DimTable& dims) {
  for (const auto& [dim, coefficient] : remainder.terms) {
    if (dim >= DimTable::k_first_indirect) continue;
    const int64_t step = std::abs(coefficient), extent = dims.extent(dim);
    if (step >= by || by % step != 0 || step * extent <= by || extent % (by / step) != 0) continue;
    return DimSplit{dim, by / step};
  }
  return std::nullopt;
}

}  // namespace

Unflattened unflatten(Affine flat, std::span<const int64_t> extents, const DimTable& dims) {
  Index index(extents.size());
  for (size_t d = extents.size(); d-- > 0;) {
    if (extents[d] == 1) continue;
    const auto [low, high] = range_of(flat, dims);
    if (low >= 0 && high < extents[d]) {  // all dims further out are 0
      index[d] = std::move(flat);
      return {std::move(index), std::nullopt};
    }
    Division division = divide(flat, extents[d]);
    const auto [rest_low, rest_high] = range_of(division.remainder, dims);
    if (rest_low < 0 || rest_high >= extents[d]) {
      return {std::nullopt, find_split(division.remainder, extents[d], dims)};
    }
    index[d] = std::move(division.remainder);
    flat = std::move(division.quotient);
  }
  if (!flat.is_constant() || flat.constant != 0) return {};
  return {std::move(index), std::nullopt};
}

bool is_bijection(const Index& index, std::span<const int64_t> extents, const DimTable& dims) {
  const Affine flat = flatten(index, extents);
  std::vector<std::pair<int64_t, int64_t>> radix;  // (|coefficient|, extent)
  for (const auto& [dim, coefficient] : flat.terms) {
    if (dim >= DimTable::k_first_indirect) return false;
    radix.emplace_back(std::abs(coefficient), dims.extent(dim));
  }
  std::sort(radix.begin(), radix.end());
  int64_t reached = 1;
  for (const auto& [step, extent] : radix) {
    if (step != reached) return false;
    reached *= extent;
  }
  return reached == product(extents) && range_of(flat, dims).first == 0;
}

}  // namespace kiln
