// Products whose operands no tensor map describes, by the one implementation that packs them, beside the reference.
#include <gtest/gtest.h>

#include "tests/conformance/check_kernel.h"
#include "tests/conformance/gemm_case.h"
#include "tests/conformance/windows_case.h"
#include "tests/stand_ins/cuda/emulated_backend.h"

namespace kiln::cuda_emulator {
namespace {

using conformance::gemm;
using conformance::GemmCase;

/// The emulated backend with packing schedules alone.
class PackingBackend final : public EmulatedCompileBackend {
 public:
  std::vector<Schedule> candidates(const KernelSpec& spec, const Target& target,
                                   const kiln::Machine& machine) const override {
    std::vector<Schedule> packing;
    for (Schedule& schedule : cuda::CudaCompileBackend().candidates(spec, {"cuda", target.name}, machine)) {
      if (schedule.description.starts_with("packed") && packing.size() < k_checked)
        packing.push_back(std::move(schedule));
    }
    return packing;
  }

 private:
  static constexpr size_t k_checked = 2;  // each costs a compilation
};

class Packing : public testing::Test {
 protected:
  void check(const KernelSpec& spec, conformance::CheckOptions options = {}) {
    ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
    options.tolerance_factor = 16;  // sums of some two hundred products
    const conformance::BackendUnderTest backend{m_compile, {"cuda_emulated", "sm_90a"}, m_device};
    ASSERT_FALSE(m_compile->candidates(spec, backend.target, m_compile->default_machine(backend.target)).empty());
    EXPECT_EQ(check_kernel(backend, spec, m_random, options), "");
  }

  std::shared_ptr<const PackingBackend> m_compile = std::make_shared<const PackingBackend>();
  std::shared_ptr<Device> m_device = std::make_shared<EmulatedDevice>();
  std::mt19937_64 m_random{31};
};

TEST_F(Packing, of_odd_rows_of_either_operand_in_either_order) {
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      for (const int64_t k : {201, 200}) {
        SCOPED_TRACE(std::string(a ? "t" : "n") + (b ? "t" : "n") + std::to_string(k));
        const GemmCase odd{.m = 71, .n = 77, .k = k, .dtype = DType::bf16, .a_transposed = a, .b_transposed = b};
        if (k % 8 == 0 && !a && b) continue;  // rows of whole chunks: nothing is packed
        check(gemm(odd));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(Packing, of_each_batch) {
  check(gemm({.batch = 3, .m = 40, .n = 71, .k = 66, .dtype = DType::f16, .with_bias = true}));
}

TEST_F(Packing, takes_any_address) {
  for (const bool b : {false, true}) {
    check(gemm({.m = 40, .n = 72, .k = 67, .dtype = DType::bf16, .b_transposed = b}), {.off_by_an_element = true});
  }
}

/// A's elements are -x where k is below a half of its extent, else 0; whichever dim is adjacent.
TEST_F(Packing, computes_operands_that_are_expressions) {
  for (const bool transposed : {false, true}) {
    KernelSpec spec = gemm({.m = 72, .n = 40, .k = 136, .dtype = DType::bf16, .a_transposed = transposed});
    auto& product = std::get<GemmSpec>(spec.kernel);
    auto& exprs = product.a.exprs;
    exprs.push_back({ScalarOp::neg, DType::bf16, {0, k_no_expr, k_no_expr}});
    exprs.push_back({ScalarOp::index, DType::i64, {k_no_expr, k_no_expr, k_no_expr}, 1});
    exprs.push_back({ScalarOp::constant, DType::i64, {k_no_expr, k_no_expr, k_no_expr}, 0, 0, 68});
    exprs.push_back({ScalarOp::lt, DType::boolean, {2, 3, k_no_expr}});
    exprs.push_back({ScalarOp::constant, DType::bf16});
    exprs.push_back({ScalarOp::select, DType::bf16, {4, 1, 5}});
    product.a_value = 6;
    check(spec);
  }
}

TEST_F(Packing, lays_windows_out) {
  using conformance::windows_product;
  for (const bool windows_are_a : {false, true}) {
    const std::vector<conformance::WindowsCase> cases{
        {.groups = 2, .channels = 5, .stride = {2, 1}, .dilation = {1, 2}},
        {.images = 5, .extents = {5, 6}, .images_are_batch = false},
        {.filters = 17, .images_are_batch = false, .sums_positions = true},
        {.channels = 16, .channels_last = true},
        {.channels = 2,
         .extents = {4, 5, 7},
         .kernel = {2, 3, 2},
         .stride = {1, 1, 1},
         .dilation = {1, 1, 1},
         .is_mirrored = true}};
    for (conformance::WindowsCase c : cases) {
      c.dtype = c.groups > 1 ? DType::f16 : DType::bf16;
      c.windows_are_a = windows_are_a;
      check(windows_product(c));
      check(windows_product(c), {.off_by_an_element = true});
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace kiln::cuda_emulator
