#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/conformance/attention_case.h"
#include "tests/conformance/check_kernel.h"

namespace kiln::conformance {
namespace {

class Attention : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void forward(const AttentionCase& c, CheckOptions options = {}) {
    // Scores are sums of head_dim products, outputs of k_len.
    options.tolerance_factor = 4 + std::sqrt(static_cast<double>(std::max(c.k_len, c.head_dim)));
    if (is_half(c.dtype)) options.tolerance_factor += k_rounded_weights;
    check(AttentionBuilder(c).forward(), options);
  }
  void backward(const AttentionCase& c, CheckOptions options = {}) {
    // Gradients are differences: what a result of 0 is off by is in proportion to what cancels there.
    options.tolerance_factor = 64 + 4 * std::sqrt(static_cast<double>(std::max(c.k_len, c.q_len)));
    if (is_half(c.dtype)) options.tolerance_factor += 16 * k_rounded_weights;
    check(AttentionBuilder(c).backward(), options);
  }
  void TearDown() override {
    if (!m_skipped.empty() && !HasFailure()) GTEST_SKIP() << m_skipped;
  }

 private:
  // Backends may round weights to the operands' dtype: 2^-9 of each, in units of tolerance_of(f32).
  static constexpr double k_rounded_weights = 500;

  void check(const KernelSpec& spec, const CheckOptions& options) {
    ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
    const std::string why = check_kernel(GetParam(), spec, m_random, options);
    if (!why.empty()) m_skipped = why;
  }

  std::mt19937_64 m_random{31};
  std::string m_skipped;
};

TEST_P(Attention, forward_passes_of_every_form) {
  for (const AttentionCase& c : attention_cases()) {
    forward(c);
    if (HasFailure()) return;
  }
}

TEST_P(Attention, forward_passes_of_halves) {
  DType dtype = DType::f16;
  for (AttentionCase c : attention_cases()) {
    c.dtype = dtype = dtype == DType::f16 ? DType::bf16 : DType::f16;
    forward(c);
    if (HasFailure()) return;
  }
}

TEST_P(Attention, forward_passes_of_f64) {
  forward({.heads = 2, .kv_heads = 1, .q_len = 50, .k_len = 70, .head_dim = 40, .causal = true, .dtype = DType::f64});
  forward({.heads = 2, .kv_heads = 1, .q_len = 3, .k_len = 900, .head_dim = 16, .dtype = DType::f64});
}

TEST_P(Attention, forward_passes_of_tensors_at_any_address) {
  forward({.q_len = 70, .k_len = 90, .head_dim = 64, .dtype = DType::bf16}, {.off_by_an_element = true});
  forward({.heads = 4, .q_len = 17, .k_len = 650, .dtype = DType::bf16}, {.off_by_an_element = true});
}

TEST_P(Attention, backward_passes_of_every_form) {
  for (const AttentionCase& c : attention_cases()) {
    backward(c);
    if (HasFailure()) return;
  }
}

TEST_P(Attention, backward_passes_of_halves) {
  DType dtype = DType::f16;
  for (AttentionCase c : attention_cases()) {
    c.dtype = dtype = dtype == DType::f16 ? DType::bf16 : DType::f16;
    backward(c);
    if (HasFailure()) return;
  }
}

TEST_P(Attention, backward_passes_of_f64) {
  backward({.heads = 2, .kv_heads = 1, .q_len = 50, .k_len = 70, .head_dim = 40, .causal = true, .dtype = DType::f64});
}

TEST_P(Attention, backward_passes_of_tensors_at_any_address) {
  backward({.q_len = 70, .k_len = 90, .head_dim = 64, .dtype = DType::bf16}, {.off_by_an_element = true});
}

INSTANTIATE_TEST_SUITE_P(Backends, Attention, testing::ValuesIn(backends_under_test()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace kiln::conformance
