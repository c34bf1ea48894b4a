// Plans of the real cuDNN, where it is installed, made and read without a device. That what they compute is right is for a
// machine that has one.
#include <gtest/gtest.h>

#include <algorithm>

#include "backends/cuda/compile/backend.h"
#include "backends/cuda/compile/cudnn_attention.h"
#include "tests/backends/cuda/chosen_loops.h"
#include "tests/backends/cuda/cudnn_plans.h"
#include "tests/conformance/attention_case.h"

namespace kiln::cuda {
namespace {

using conformance::AttentionBuilder;
using conformance::AttentionCase;

AttentionCase square(int64_t batch, int64_t heads, int64_t kv_heads, int64_t length, int64_t depth, bool causal,
                     DType dtype = DType::bf16) {
  return {.batch = batch,
          .heads = heads,
          .kv_heads = kv_heads,
          .q_len = length,
          .k_len = length,
          .head_dim = depth,
          .causal = causal,
          .dtype = dtype};
}

/// As models have them: depths, shared keys, masks, layouts, odd lengths, few queries.
std::vector<AttentionCase> shapes() {
  std::vector<AttentionCase> list{square(2, 12, 12, 1024, 64, true), square(2, 12, 12, 1024, 64, true, DType::f16),
                                  square(1, 16, 16, 512, 64, false), square(1, 32, 32, 1024, 128, true),
                                  square(1, 32, 8, 1024, 128, true), square(2, 8, 1, 512, 128, false, DType::f16),
                                  square(4, 12, 12, 197, 64, false), square(1, 8, 8, 1000, 96, true),
                                  square(1, 16, 16, 256, 80, false)};
  list.push_back(square(2, 16, 16, 512, 64, true));
  list.back().interleaved = true;
  list.push_back(
      {.batch = 2, .heads = 8, .kv_heads = 8, .q_len = 128, .k_len = 640, .head_dim = 64, .dtype = DType::bf16});
  list.push_back({.batch = 1,
                  .heads = 8,
                  .kv_heads = 8,
                  .q_len = 512,
                  .k_len = 384,
                  .head_dim = 64,
                  .causal = true,
                  .dtype = DType::f16});
  return list;
}

class CudnnPlans : public CudnnPlansTest {
 protected:
  static void comes_back(const KernelSpec& spec, const std::string& name) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(validate(spec).ok()) << validate(spec).to_string();
    const AttentionProblem problem = attention_problem_of(spec);
    ASSERT_NE(cudnn_for(problem, target()), nullptr);
    const auto plan = cudnn_plan(problem, {}, target());
    expect_read_again(plan);
    RecordProperty(name, std::to_string(plan->engine));
  }
};

TEST_F(CudnnPlans, of_forward_passes_are_made_and_read_again) {
  size_t shape = 0;
  for (const AttentionCase& each : shapes())
    comes_back(AttentionBuilder(each).forward(), "forward_" + std::to_string(++shape));
}

TEST_F(CudnnPlans, of_gradients_are_made_and_read_again) {
  size_t shape = 0;
  for (const AttentionCase& each : shapes())
    comes_back(AttentionBuilder(each).backward(), "backward_" + std::to_string(++shape));
}

TEST_F(CudnnPlans, are_read_by_another_driver_once_they_name_it) {
  const KernelSpec spec = AttentionBuilder(shapes().front()).forward();
  const Cudnn& cudnn = *Cudnn::of_process();
  const auto plan = cudnn_plan(attention_problem_of(spec), {}, target());
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  const auto newer = described_device(cudnn, with_driver(std::string(cudnn_sm_90a_text), 12080));
  ASSERT_TRUE(newer.ok()) << newer.status().to_string();
  EXPECT_EQ(load_plan(cudnn, *newer, plan->text).status().code(), StatusCode::failed_precondition);
  const auto read = load_plan(cudnn, *newer, with_driver(plan->text, 12080));
  EXPECT_TRUE(read.ok()) << read.status().to_string();
}

TEST_F(CudnnPlans, are_tried_first_where_they_are_known_to_be_faster_and_stand_beside_a_kernel_in_their_image) {
  const CudaCompileBackend backend;
  const Target on{"cuda", "sm_90a"};
  const auto place_of_plan = [&](const KernelSpec& spec) {
    const auto candidates = default_candidates(backend, spec, on);
    return std::ranges::find(candidates, "cudnn choice 1", &Schedule::description) - candidates.begin();
  };
  const KernelSpec spec = AttentionBuilder(shapes().front()).forward();
  EXPECT_EQ(place_of_plan(spec), 0);
  EXPECT_EQ(place_of_plan(AttentionBuilder(shapes().front()).backward()), 1);
  AttentionCase decoding = square(1, 8, 8, 4096, 64, false);
  decoding.q_len = 1;
  EXPECT_EQ(place_of_plan(AttentionBuilder(decoding).forward()), 1);

  const auto image = backend.compile(spec, default_candidates(backend, spec, on).front(), on);
  ASSERT_TRUE(image.ok()) << image.status().to_string();
  const auto record = unpack(image->code);
  ASSERT_TRUE(record.ok()) << record.status().to_string();
  ASSERT_EQ(record->plans.size(), 1u);
  EXPECT_EQ(image->workspace_bytes, record->plans[0].workspace_bytes);
  EXPECT_TRUE(record->kernels.back().aligned_buffers.empty());
  EXPECT_NE(backend.toolchain_of(spec, on).find(Cudnn::of_process()->identity()), std::string::npos);
}

TEST_F(CudnnPlans, are_none_of_what_graphs_do_not_say) {
  const auto is_claimed = [](AttentionCase attention) {
    const KernelSpec spec = AttentionBuilder(attention).forward();
    return cudnn_for(attention_problem_of(spec), target()) != nullptr;
  };
  AttentionCase attention = square(1, 4, 4, 256, 64, true);
  EXPECT_TRUE(is_claimed(attention));
  attention.causal_offset = 1;
  EXPECT_FALSE(is_claimed(attention));
  EXPECT_FALSE(is_claimed(square(1, 4, 4, 256, 64, true, DType::f32)));
  EXPECT_FALSE(is_claimed(square(1, 4, 4, 256, 60, true)));
  attention = square(1, 4, 4, 256, 64, false);
  attention.window = 16;
  EXPECT_FALSE(is_claimed(attention));
  attention.window = 0;
  attention.strided = true;
  EXPECT_FALSE(is_claimed(attention));
  const KernelSpec spec = AttentionBuilder(square(1, 4, 4, 256, 64, true)).forward();
  EXPECT_EQ(cudnn_for(attention_problem_of(spec), *find_cuda_target("sm_80")), nullptr);
}

}  // namespace
}  // namespace kiln::cuda
