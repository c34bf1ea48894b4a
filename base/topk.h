#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace kiln {

/// The places of the first k of `count` elements, 1 <= k <= count; `comes_first(a, b)`: whether the element at place a comes
/// before that at b. Which of equal elements are chosen, and how they and what need not be sorted come, is what libstdc++'s
/// algorithms make of a row: std::partial_sort where k is a 64th or less of it, else std::nth_element, and std::sort of what
/// comes before. Source: PyTorch, aten/src/ATen/native/TopKImpl.h, whose topk a program on the CPU is compared with.
template <typename ComesFirst>
std::vector<int64_t> topk_places(int64_t count, int64_t k, bool sorted, ComesFirst comes_first) {
  std::vector<int64_t> places(static_cast<size_t>(count));
  std::iota(places.begin(), places.end(), 0);
  if (64 * k <= count) {
    std::partial_sort(places.begin(), places.begin() + k, places.end(), comes_first);
  } else {
    std::nth_element(places.begin(), places.begin() + k - 1, places.end(), comes_first);
    if (sorted) std::sort(places.begin(), places.begin() + k - 1, comes_first);
  }
  places.resize(static_cast<size_t>(k));
  return places;
}

}  // namespace kiln
