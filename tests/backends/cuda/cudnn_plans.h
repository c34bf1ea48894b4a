#pragma once

#include <gtest/gtest.h>

#include <string>

#include "backends/cuda/compile/cudnn_planner.h"
#include "backends/cuda/compile/nvrtc.h"
#include "backends/cuda/compile/texts.h"
#include "backends/cuda/cudnn/plan.h"

namespace kiln::cuda {

/// Of tests of the real cuDNN, where it is installed.
class CudnnPlansTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!Cudnn::of_process().ok()) GTEST_SKIP() << Cudnn::of_process().status().to_string();
    if (!Nvrtc::of_process().ok()) GTEST_SKIP() << Nvrtc::of_process().status().to_string();
  }

  static const CudaTarget& target() { return *find_cuda_target("sm_90a"); }

  /// Whether it was made, and its text is read as the same plan.
  static void expect_read_again(const Expected<CudnnPlan>& plan) {
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    const Cudnn& cudnn = *Cudnn::of_process();
    const auto device = described_device(cudnn, cudnn_sm_90a_text);
    ASSERT_TRUE(device.ok()) << device.status().to_string();
    const auto read = load_plan(cudnn, *device, plan->text);
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    const auto again = read->text(CudnnAttribute::plan_text);
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(*again, plan->text);
    const auto workspace = read->number(CudnnAttribute::plan_workspace_bytes);
    ASSERT_TRUE(workspace.ok());
    EXPECT_LE(static_cast<uint64_t>(*workspace), plan->record.workspace_bytes);
  }
};

}  // namespace kiln::cuda
