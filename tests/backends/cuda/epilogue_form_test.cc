// Which function an epilogue is, in whatever way it is written.
#include "backends/cuda/compile/epilogue_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kiln::cuda {
namespace {

using Kind = EpilogueForm::Kind;
using testing::DoubleNear;
using testing::ElementsAre;

/// A gemm of bf16 that stores an expression in it.
class Epilogue {
 public:
  ExprId node(ScalarOp op, ExprId a = k_no_expr, ExprId b = k_no_expr, ExprId c = k_no_expr, DType dtype = DType::f32) {
    return add({op, dtype, {a, b, c}});
  }
  ExprId number(double value) { return add({.op = ScalarOp::constant, .dtype = DType::f32, .immediate = value}); }
  ExprId product() { return node(ScalarOp::accumulator); }
  /// Of a buffer of its own, or of the one before.
  ExprId load(bool is_same = false) {
    const auto slot = static_cast<uint32_t>(body().accesses.size());
    const uint32_t buffer = is_same ? body().accesses.back().buffer : slot;
    body().accesses.push_back({buffer, 0, {8, 1}, {}});
    const ExprId element = add({ScalarOp::load, DType::bf16, {k_no_expr, k_no_expr, k_no_expr}, slot});
    return widened(element);
  }
  ExprId widened(ExprId x) { return node(ScalarOp::cast, x); }
  ExprId rounded(ExprId x, DType dtype) { return node(ScalarOp::cast, x, k_no_expr, k_no_expr, dtype); }
  ExprId plus(ExprId x, ExprId y) { return node(ScalarOp::add, x, y); }
  ExprId times(ExprId x, ExprId y) { return node(ScalarOp::mul, x, y); }
  ExprId scaled(double x, ExprId y) { return times(number(x), y); }
  /// √(2/π) (x + 0.044715 x³)
  ExprId bend(ExprId x) { return scaled(0.7978845608, times(x, plus(number(1), scaled(0.044715, times(x, x))))); }

  std::optional<EpilogueForm> form(ExprId value) {
    m_gemm.stores = {{rounded(value, DType::bf16), 0, StoreMode::assign}};
    const auto functions = EpilogueFunctions::of(m_gemm, DType::bf16);
    return functions ? functions->form_of(m_gemm.stores[0].value) : std::nullopt;
  }
  std::optional<Kind> kind(ExprId value) {
    const auto found = form(value);
    return found ? std::optional(found->kind) : std::nullopt;
  }
  Body& body() { return m_gemm.epilogue; }

 private:
  ExprId add(const ScalarNode& node) {
    body().exprs.push_back(node);
    return static_cast<ExprId>(body().exprs.size() - 1);
  }
  GemmSpec m_gemm{.m = 8, .n = 8, .k = 8, .dtype = DType::bf16};
};

TEST(EpilogueForm, a_sum_has_the_factor_of_each_term) {
  Epilogue e;
  EXPECT_EQ(e.form(e.product()), (EpilogueForm{Kind::sum, 1, {}}));
  EXPECT_EQ(e.form(e.node(ScalarOp::neg, e.product())), (EpilogueForm{Kind::sum, -1, {}}));
  const ExprId third = e.node(ScalarOp::div, e.product(), e.number(3));
  EXPECT_THAT(e.form(third)->factor, DoubleNear(1.0 / 3, 1e-15));
  // (2 x + y) / 4 - z
  const ExprId both = e.scaled(0.25, e.plus(e.scaled(2, e.product()), e.load()));
  const auto form = e.form(e.node(ScalarOp::sub, both, e.load()));
  ASSERT_TRUE(form.has_value());
  EXPECT_EQ(form->kind, Kind::sum);
  EXPECT_EQ(form->factor, 0.5);
  EXPECT_THAT(form->factors, ElementsAre(0.25, -1));
}

TEST(EpilogueForm, gelu_is_gelu_in_whatever_way_it_is_written) {
  Epilogue e;
  const ExprId x = e.plus(e.scaled(0.125, e.product()), e.load());
  const EpilogueForm gelu{Kind::gelu, 0.125, {1}};
  // x/2 + x/2 tanh(u)
  const ExprId half = e.scaled(0.5, x), bend = e.node(ScalarOp::tanh, e.bend(x));
  EXPECT_EQ(e.form(e.plus(half, e.times(half, bend))), gelu);
  // x sigmoid(2 u)
  EXPECT_EQ(e.form(e.times(x, e.node(ScalarOp::sigmoid, e.scaled(2, e.bend(x))))), gelu);
  // x / (1 + exp(-2 u))
  const ExprId falling = e.node(ScalarOp::exp, e.scaled(-2, e.bend(x)));
  EXPECT_EQ(e.form(e.node(ScalarOp::div, x, e.plus(falling, e.number(1)))), gelu);
}

TEST(EpilogueForm, its_gradient_is_one_in_whatever_way_it_is_written) {
  Epilogue e;
  const ExprId g = e.product(), x = e.load();
  const EpilogueForm gradient{Kind::gelu_gradient, 1, {1}};
  const ExprId slope = e.scaled(0.7978845608, e.plus(e.number(1), e.scaled(3 * 0.044715, e.times(x, x))));
  const ExprId t = e.node(ScalarOp::tanh, e.bend(x)), s = e.node(ScalarOp::sigmoid, e.scaled(2, e.bend(x)));
  // g (1 + t) / 2 + g x (1 - t²) u' / 2
  const ExprId first = e.scaled(0.5, e.times(g, e.plus(e.number(1), t)));
  const ExprId flat = e.node(ScalarOp::sub, e.number(1), e.times(t, t));
  EXPECT_EQ(e.form(e.plus(first, e.times(e.scaled(0.5, e.times(g, x)), e.times(flat, slope)))), gradient);
  // g (s + 2 x s (1 - s) u')
  const ExprId steep = e.times(e.times(e.scaled(2, x), e.times(s, e.node(ScalarOp::sub, e.number(1), s))), slope);
  EXPECT_EQ(e.form(e.times(g, e.plus(s, steep))), gradient);
  // The same element, loaded anew, of a gradient that is scaled.
  const ExprId again = e.load(true);
  const ExprId others = e.times(e.scaled(0.5, again), e.times(flat, slope));
  EXPECT_EQ(e.form(e.times(e.scaled(4, g), e.plus(e.scaled(0.5, e.plus(t, e.number(1))), others))),
            (EpilogueForm{Kind::gelu_gradient, 4, {1}}));
}

TEST(EpilogueForm, of_gelu_by_erf_is_none_nor_is_that_of_its_gradient) {
  Epilogue e;
  const ExprId g = e.product();
  const ExprId share = [&] {
    const ExprId bend = e.node(ScalarOp::erf, e.scaled(0.7071067811865476, g));
    return e.scaled(0.5, e.plus(e.number(1), bend));
  }();
  EXPECT_EQ(e.kind(e.times(g, share)), std::nullopt);
  const ExprId x = e.load();
  const ExprId below = e.scaled(0.5, e.plus(e.number(1), e.node(ScalarOp::erf, e.scaled(0.7071067811865476, x))));
  const ExprId bell = e.node(ScalarOp::exp, e.scaled(-0.5, e.times(x, x)));
  EXPECT_EQ(e.kind(e.times(g, e.plus(below, e.scaled(0.3989422804014327, e.times(x, bell))))), std::nullopt);
  // GELU's usual short form
  EXPECT_EQ(e.kind(e.times(g, e.node(ScalarOp::sigmoid, e.scaled(1.702, g)))), std::nullopt);
}

TEST(EpilogueForm, of_what_is_straight_but_for_some_numbers_is_none) {
  Epilogue e;
  const ExprId x = e.product();
  EXPECT_EQ(e.kind(e.node(ScalarOp::maximum, x, e.number(0))), std::nullopt);
  EXPECT_EQ(e.kind(e.node(ScalarOp::minimum, x, e.number(65504))), std::nullopt) << "what f16 holds";
  const ExprId is_nan = e.node(ScalarOp::is_nan, x, k_no_expr, k_no_expr, DType::boolean);
  EXPECT_EQ(e.kind(e.node(ScalarOp::select, is_nan, e.number(0), x)), std::nullopt);
  EXPECT_EQ(e.kind(e.plus(x, e.number(1e-3))), std::nullopt);
  EXPECT_EQ(e.kind(e.scaled(0, x)), std::nullopt);
  EXPECT_EQ(e.kind(e.number(0)), std::nullopt);
  EXPECT_EQ(e.kind(e.times(x, e.load())), std::nullopt) << "by an element";
}

TEST(EpilogueForm, of_roundings_to_the_result_is_what_it_is_without_others_are_none) {
  Epilogue e;
  const auto sum_with = [&](DType dtype) {
    return e.kind(e.plus(e.widened(e.rounded(e.product(), dtype)), e.number(0)));
  };
  EXPECT_EQ(sum_with(DType::bf16), Kind::sum);
  EXPECT_EQ(sum_with(DType::f64), Kind::sum);
  EXPECT_EQ(sum_with(DType::f16), std::nullopt);
  EXPECT_EQ(sum_with(DType::i32), std::nullopt);
}

TEST(EpilogueForm, of_a_place_or_of_elements_that_are_not_always_loaded_is_none) {
  Epilogue e;
  const ExprId place = e.node(ScalarOp::index, k_no_expr, k_no_expr, k_no_expr, DType::i64);
  EXPECT_EQ(e.kind(e.plus(e.product(), e.scaled(0, e.widened(place)))), std::nullopt);
  const ExprId element = e.load();
  const ExprId sum = e.plus(e.product(), element);
  EXPECT_EQ(e.kind(sum), Kind::sum);
  e.body().accesses.back().indirect = {{place, 1, 8}};
  EXPECT_EQ(e.kind(sum), std::nullopt);
  e.body().accesses.back().indirect.clear();
  ScalarNode& load = e.body().exprs[e.body().exprs[element].operands[0]];
  load.operands[0] = e.node(ScalarOp::constant, k_no_expr, k_no_expr, k_no_expr, DType::boolean);
  EXPECT_EQ(e.kind(sum), std::nullopt);
}

}  // namespace
}  // namespace kiln::cuda
