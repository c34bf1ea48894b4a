#include <gtest/gtest.h>

#include "base/topk.h"
#include "frontend/kernel/affine.h"
#include "tests/backends/cpu/kernel_check.h"

namespace kiln::cpu {
namespace {

constexpr DType k_dtypes[] = {DType::boolean, DType::u8,   DType::i8,  DType::i32, DType::i64,
                              DType::f16,     DType::bf16, DType::f32, DType::f64};

/// Rows of a tensor; with `from` last, of one whose dims lie the other way round.
KernelSpec spec_of(DType dtype, std::vector<int64_t> extents, bool descending, bool transposed = false) {
  const int64_t count = product(extents);
  SortSpec sort{extents, descending, {.buffer = 0}, {.buffer = 1}};
  sort.x.strides = sort.order.strides = dense_strides(extents);
  if (transposed) {
    std::vector<int64_t> reversed(extents.rbegin(), extents.rend());
    sort.x.strides = dense_strides(reversed);
    std::ranges::reverse(sort.x.strides);
  }
  return {{{dtype, count, BufferRole::input}, {DType::i64, count, BufferRole::output}}, std::move(sort)};
}

void check(const KernelSpec& spec, const std::vector<GuardedBuffer>& buffers, uint64_t ranges = 1) {
  for (const CpuTarget* target : runnable_targets()) check_kernel_on(spec, buffers, *target, 0, 0, ranges);
}

TEST(Sort, RowsOfEveryDtypeWithManyEqualElements) {
  for (const DType dtype : k_dtypes) {
    for (const bool descending : {false, true}) {
      for (const bool transposed : {false, true}) {
        const KernelSpec spec = spec_of(dtype, {3, 5, 300}, descending, transposed);
        std::vector<GuardedBuffer> buffers = make_buffers(spec, 7);
        for (int64_t i = 0; is_floating(dtype) && i < buffers[0].elements(); i += 3) buffers[0].set(i, i % 4);
        check(spec, buffers, 4);
      }
    }
  }
}

TEST(Sort, RowsOfFewElementsAndOfMany) {
  for (const int64_t count : {1, 2, 255, 257, 70'000}) {
    const KernelSpec spec = spec_of(DType::f32, {count}, false);
    check(spec, make_buffers(spec, 3));
  }
}

TEST(Sort, NoNumberIsAboveAllAndZerosAreEqual) {
  constexpr double k_infinity = std::numeric_limits<double>::infinity(),
                   k_nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> numbers = {0.0,    k_nan, -0.0, k_infinity, 1,          -k_infinity,
                                       -k_nan, -1,    0.0,  -0.0,       k_infinity, k_nan};
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    for (const bool descending : {false, true}) {
      const KernelSpec spec = spec_of(dtype, {static_cast<int64_t>(numbers.size())}, descending);
      std::vector<GuardedBuffer> buffers = make_buffers(spec, 1);
      for (size_t i = 0; i < numbers.size(); ++i) buffers[0].set(static_cast<int64_t>(i), numbers[i]);
      check(spec, buffers);
    }
  }
}

TEST(Sort, WholeNumbersOfAllBits) {
  for (const DType dtype : {DType::i32, DType::i64, DType::u8}) {
    const KernelSpec spec = spec_of(dtype, {1'000}, false);
    std::vector<GuardedBuffer> buffers = make_buffers(spec, 1);
    std::mt19937_64 random(5);
    for (size_t i = 0; i < buffers[0].size(); ++i) buffers[0].data()[i] = static_cast<uint8_t>(random());
    check(spec, buffers);
  }
}

/// The same rows, of which the first k are told.
KernelSpec topk_of(DType dtype, std::vector<int64_t> extents, TopK topk, bool descending = true,
                   bool transposed = false) {
  KernelSpec spec = spec_of(dtype, std::move(extents), descending, transposed);
  SortSpec& sort = std::get<SortSpec>(spec.kernel);
  sort.topk = topk;
  sort.order.strides = dense_strides(sort.order_extents());
  spec.buffers[1].elements = product(sort.order_extents());
  return spec;
}

/// Numbers on which std::nth_element parts badly: what it compares gets its value as late as can be.
/// Source: McIlroy, A Killer Adversary for Quicksort, 1999.
std::vector<double> numbers_that_part_badly(int64_t count, int64_t k) {
  const double gas = static_cast<double>(count);
  std::vector<double> values(static_cast<size_t>(count), gas);
  double solid = 0;
  int64_t candidate = 0;
  topk_places(count, k, false, [&](int64_t a, int64_t b) {
    auto &of_a = values[static_cast<size_t>(a)], &of_b = values[static_cast<size_t>(b)];
    if (of_a == gas && of_b == gas) (a == candidate ? of_a : of_b) = solid++;
    if (of_a == gas) candidate = a;
    if (of_b == gas) candidate = b;
    return of_a < of_b;
  });
  return values;
}

TEST(Sort, FirstPlacesOfRowsOfEveryDtypeWithManyEqualElements) {
  for (const DType dtype : k_dtypes) {
    for (const TopK topk : {TopK{3}, TopK{40}, TopK{200, false}, TopK{300}}) {
      for (const bool descending : {false, true}) {
        const KernelSpec spec = topk_of(dtype, {3, 5, 300}, topk, descending, topk.k == 40);
        std::vector<GuardedBuffer> buffers = make_buffers(spec, 7);
        for (int64_t i = 0; is_floating(dtype) && i < buffers[0].elements(); i += 3) buffers[0].set(i, i % 4);
        check(spec, buffers, 4);
      }
    }
  }
}

TEST(Sort, FirstPlacesOfRowsOfFewElementsAndOfMany) {
  for (const int64_t count : {1, 2, 3, 4, 63, 64, 70'000}) {
    for (const int64_t k : {int64_t{1}, (count + 1) / 2, std::max<int64_t>(count - 1, 1), count}) {
      const KernelSpec spec = topk_of(DType::bf16, {count}, {k});
      check(spec, make_buffers(spec, 3));
    }
  }
}

TEST(Sort, FirstPlacesOfRowsThatPartBadly) {
  for (const auto& [count, k] : {std::pair{2'000, 1'000}, {2'000, 1'999}, {500, 20}}) {
    const std::vector<double> numbers = numbers_that_part_badly(count, k);
    for (const bool sorted : {false, true}) {
      const KernelSpec spec = topk_of(DType::f32, {count}, {k, sorted}, false);
      std::vector<GuardedBuffer> buffers = make_buffers(spec, 1);
      for (size_t i = 0; i < numbers.size(); ++i) buffers[0].set(static_cast<int64_t>(i), numbers[i]);
      check(spec, buffers);
    }
  }
}

TEST(Sort, RowsThatNeedTooLargeAWorkspaceAreNotClaimed) {
  const Target target{"cpu", std::string(ladder().front().name)};
  EXPECT_TRUE(CpuCompileBackend().claims(spec_of(DType::f64, {1 << 20}, false), target).ok());
  EXPECT_EQ(CpuCompileBackend().claims(spec_of(DType::f64, {1 << 27}, false), target).code(),
            StatusCode::unimplemented);
}

}  // namespace
}  // namespace kiln::cpu
