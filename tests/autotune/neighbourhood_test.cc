#include "autotune/neighbourhood.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kiln {
namespace {

/// A product of f32, of which B may lie the other way round.
KernelSpec product(int64_t m, int64_t n, int64_t k, bool is_transposed = false) {
  GemmSpec gemm{.m = m, .n = n, .k = k};
  const ScalarNode load{.op = ScalarOp::load};
  gemm.a = {{load}, {{0, 0, {k, 1}, {}}}};
  gemm.b = {{load}, {{1, 0, is_transposed ? std::vector<int64_t>{1, k} : std::vector<int64_t>{n, 1}, {}}}};
  gemm.a_value = gemm.b_value = 0;
  gemm.epilogue = {{{.op = ScalarOp::accumulator}}, {{2, 0, {n, 1}, {}}}};
  gemm.stores = {{0, 0}};
  return {{{DType::f32, m * k}, {DType::f32, k * n}, {DType::f32, m * n, BufferRole::output}}, gemm};
}

KernelSpec with_epilogue(KernelSpec spec, ScalarOp op) {
  auto& gemm = std::get<GemmSpec>(spec.kernel);
  gemm.epilogue.exprs.push_back({.op = op, .operands = {0, k_no_expr, k_no_expr}});
  gemm.stores.front().value = 1;
  return spec;
}

int distance(const Neighbourhood& one, const Neighbourhood& other) {
  int sum = 0;
  for (size_t d = 0; d < one.sizes.size(); ++d) sum += std::abs(one.sizes[d] - other.sizes[d]);
  return sum;
}

TEST(Neighbourhood, sizes_within_a_rounding_share_one) {
  EXPECT_EQ(neighbourhood_of(product(500, 3072, 768)), neighbourhood_of(product(520, 3000, 800)));
  EXPECT_EQ(neighbourhood_of(product(512, 3072, 768)).sizes, (std::vector{0, 9, 12, 10}));
}

TEST(Neighbourhood, what_decides_how_a_product_is_cut_is_a_family) {
  const KernelSpec plain = product(64, 64, 64);
  KernelSpec stores_halves = plain;
  stores_halves.buffers[2].dtype = DType::bf16;
  const KernelSpec others[] = {product(64, 64, 64, true), stores_halves, with_epilogue(plain, ScalarOp::neg),
                               with_epilogue(plain, ScalarOp::tanh)};
  std::vector<std::string> families{neighbourhood_of(plain).family};
  for (const KernelSpec& other : others) families.push_back(neighbourhood_of(other).family);
  std::ranges::sort(families);
  EXPECT_EQ(std::ranges::adjacent_find(families), families.end());
}

TEST(Neighbourhood, attention_and_its_gradient_are_two_families) {
  const AttentionSpec attention{
      .batch = 2, .heads = 8, .kv_heads = 8, .q_len = 256, .k_len = 512, .head_dim = 64, .value_dim = 64};
  const Neighbourhood forward = neighbourhood_of(KernelSpec{{}, attention});
  const Neighbourhood backward = neighbourhood_of(KernelSpec{{}, AttentionBackwardSpec{.forward = attention}});
  EXPECT_EQ(forward.sizes, (std::vector{4, 8, 9}));
  EXPECT_EQ(backward.sizes, forward.sizes);
  EXPECT_NE(backward.family, forward.family);
}

TEST(Neighbourhood, the_nearest_come_first_and_none_twice) {
  const Neighbourhood centre = neighbourhood_of(product(512, 3072, 768));
  const std::vector<Neighbourhood> near = around(centre);
  ASSERT_EQ(near.size(), 129);
  EXPECT_EQ(near.front(), centre);
  EXPECT_TRUE(std::ranges::is_sorted(near, {}, [&](const Neighbourhood& each) { return distance(centre, each); }));
  EXPECT_EQ(distance(centre, near.back()), 3);
  for (auto each = near.begin(); each != near.end(); ++each) {
    EXPECT_EQ(each->family, centre.family);
    EXPECT_EQ(std::find(std::next(each), near.end(), *each), near.end());
  }
}

}  // namespace
}  // namespace kiln
