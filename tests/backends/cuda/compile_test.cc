// The chosen set through the real compiler, where it is installed: everything compiles for every target, and no register
// spills. That needs no device; that the code is right is for the conformance suite.
#include <gtest/gtest.h>

#include "backends/cuda/compile/backend.h"
#include "tests/backends/cuda/chosen_attention.h"
#include "tests/backends/cuda/chosen_gemms.h"
#include "tests/backends/cuda/chosen_loops.h"

namespace kiln::cuda {
namespace {

class CudaCompile : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!Nvrtc::of_process().ok()) GTEST_SKIP() << Nvrtc::of_process().status().to_string();
  }

  void compile_first(const NamedSpec& named) {
    SCOPED_TRACE(named.name);
    ASSERT_TRUE(validate(named.spec).ok()) << validate(named.spec).to_string();
    ASSERT_TRUE(m_backend.claims(named.spec, GetParam()).ok());
    const auto candidates = default_candidates(m_backend, named.spec, GetParam());
    ASSERT_FALSE(candidates.empty());
    const auto image = m_backend.compile(named.spec, candidates.front(), GetParam());
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    const auto record = unpack(image->code);
    ASSERT_TRUE(record.ok()) << record.status().to_string();
    for (const KernelRecord& kernel : record->kernels) {
      EXPECT_EQ(kernel.resources.spill_store_bytes + kernel.resources.spill_load_bytes, 0u);
      EXPECT_GT(kernel.resources.registers, 0u);
      EXPECT_GT(kernel.cubin_bytes, 0u);
    }
  }

  /// One warpgroup gives registers up and the others wait for theirs: for ever, were there too few.
  static void expect_registers(const KernelRecord& kernel, uint32_t left, uint32_t grown) {
    const uint32_t consumers = kernel.threads / 128 - 1;
    EXPECT_GE(kernel.resources.registers * kernel.threads, 128 * (left + grown * consumers)) << kernel.threads;
  }

  CudaCompileBackend m_backend;
};

TEST(CudaDisassembler, there_is_none_and_the_error_says_whose) {
  const auto text = CudaCompileBackend().disassemble({}, {"cuda", "sm_90a"});
  EXPECT_EQ(text.status().code(), StatusCode::unimplemented);
  EXPECT_EQ(text.status().message(), "cuda: this build has no disassembler for such code");
}

TEST_P(CudaCompile, loops_of_the_chosen_set_do_not_spill) {
  for (const NamedSpec& named : chosen_loops()) compile_first(named);
}

TEST_P(CudaCompile, gemms_of_the_chosen_set_do_not_spill) {
  for (const NamedSpec& named : chosen_gemms()) compile_first(named);
}

TEST_P(CudaCompile, attention_of_the_chosen_set_does_not_spill) {
  for (const NamedSpec& named : chosen_attention()) compile_first(named);
}

TEST_P(CudaCompile, elements_that_32_bits_do_not_count_are_reduced_and_multiplied_and_no_longer_grid_is_claimed) {
  constexpr int64_t k_many = int64_t{1} << 32;
  conformance::LoopsBuilder sums({2, k_many}, 1), points({k_many}, 1);
  const uint32_t sum = sums.reduce(Combiner::sum, sums.input(DType::f32, {k_many, 1}));
  sums.next_stage();
  sums.output(sums.reduced(sum), {1, 0});
  compile_first({"sums", sums.build(/*last_is_per_row=*/true)});
  compile_first({"product", conformance::gemm({.m = 1 << 17, .n = 1 << 16, .k = 64, .dtype = DType::bf16})});
  points.output(points.input(DType::f32, {1}), {1});
  EXPECT_EQ(m_backend.claims(points.build(), GetParam()).code(), StatusCode::unimplemented);
}

TEST_P(CudaCompile, every_form_of_a_gemm_compiles) {
  const KernelSpec spec = conformance::gemm({.m = 500, .n = 768, .k = 768, .dtype = DType::bf16, .with_bias = true});
  for (const Schedule& schedule : default_candidates(m_backend, spec, GetParam())) {
    SCOPED_TRACE(schedule.description);
    const auto image = m_backend.compile(spec, schedule, GetParam());
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    const auto record = unpack(image->code);
    ASSERT_TRUE(record.ok()) << record.status().to_string();
    for (const KernelRecord& kernel : record->kernels) {
      if (!kernel.maps.empty()) expect_registers(kernel, 40, 232);
    }
  }
}

TEST_P(CudaCompile, every_form_of_attention_by_warpgroups_compiles) {
  for (const int64_t depth : {64, 128, 256}) {
    conformance::AttentionCase c{.heads = 32, .kv_heads = 8, .q_len = 1024, .k_len = 1000, .head_dim = depth};
    c.causal = true;
    c.dtype = DType::bf16;
    const std::vector<KernelSpec> specs{conformance::AttentionBuilder(c).forward(),
                                        conformance::AttentionBuilder(c).backward()};
    for (const KernelSpec& spec : specs) {
      for (const Schedule& schedule : default_candidates(m_backend, spec, GetParam())) {
        if (!schedule.description.starts_with("wgmma")) continue;
        SCOPED_TRACE(schedule.description + " of depth " + std::to_string(depth));
        const auto image = m_backend.compile(spec, schedule, GetParam());
        ASSERT_TRUE(image.ok()) << image.status().to_string();
        const auto record = unpack(image->code);
        ASSERT_TRUE(record.ok()) << record.status().to_string();
        const KernelRecord& kernel = record->kernels.front();
        const bool is_wide = kernel.threads == 512;
        expect_registers(kernel, is_wide ? 32 : 24, is_wide ? 160 : 240);
      }
    }
  }
}

TEST_P(CudaCompile, every_candidate_of_a_normalisation_compiles) {
  const KernelSpec spec = layer_norm(DType::bf16, 512, 768);
  for (const Schedule& schedule : default_candidates(m_backend, spec, GetParam())) {
    SCOPED_TRACE(schedule.description);
    EXPECT_TRUE(m_backend.compile(spec, schedule, GetParam()).ok());
  }
}

TEST_P(CudaCompile, equal_requests_give_equal_bytes) {
  const KernelSpec spec = conformance::row_softmax(DType::f32, 64, 100);
  const Schedule schedule = default_candidates(m_backend, spec, GetParam()).front();
  const auto first = m_backend.compile(spec, schedule, GetParam());
  const auto second = m_backend.compile(spec, schedule, GetParam());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->code, second->code);
}

std::string name_of(const testing::TestParamInfo<Target>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Targets, CudaCompile, testing::ValuesIn(CudaCompileBackend().targets()), name_of);

}  // namespace
}  // namespace kiln::cuda
