#include <algorithm>
#include <cmath>
#include <numeric>

#include "backends/reference/body_runner.h"
#include "backends/reference/kernels.h"
#include "base/topk.h"

namespace kiln {
namespace {

/// Whether `a` is below `b`, where NaN is above all numbers.
bool is_below(DType dtype, Number a, Number b) {
  if (!is_floating(dtype)) return a.integer < b.integer;
  return std::isnan(b.real) ? !std::isnan(a.real) : a.real < b.real;
}

}  // namespace

bool run_kernel(const KernelSpec& spec, const SortSpec& sort, std::span<void* const> buffers) {
  const DType dtype = spec.buffers[sort.x.buffer].dtype;
  const std::span rows = std::span(sort.extents).first(sort.extents.size() - 1);
  std::vector<int64_t> point(sort.extents.size(), 0);
  std::vector<Number> elements(static_cast<size_t>(sort.extents.back()));
  std::vector<int64_t> order(elements.size());
  do {
    for (size_t i = 0; i < elements.size(); ++i) {
      point.back() = static_cast<int64_t>(i);
      elements[i] = load_number(dtype, buffers[sort.x.buffer], plain_address(sort.x, point));
    }
    const auto comes_first = [&](int64_t a, int64_t b) {
      if (sort.descending) std::swap(a, b);
      return is_below(dtype, elements[static_cast<size_t>(a)], elements[static_cast<size_t>(b)]);
    };
    if (sort.topk) {
      order = topk_places(sort.extents.back(), sort.topk->k, sort.topk->sorted, comes_first);
    } else {
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, comes_first);
    }
    for (size_t i = 0; i < order.size(); ++i) {
      point.back() = static_cast<int64_t>(i);
      store_number(DType::i64, buffers[sort.order.buffer], plain_address(sort.order, point), {0, order[i]});
    }
  } while (next_point(std::span(point).first(rows.size()), rows));
  return true;
}

}  // namespace kiln
