// Faults planted into plans that are right: each is refused, with the op.

#include "frontend/fuse/check_plan.h"

#include <gtest/gtest.h>

#include "frontend/infer/builder.h"

namespace kiln {
namespace {

/// Two products in a row, so that something lies in a temporary: tanh(x @ w) @ w, and the transpose of the first.
Plan right_plan() {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = graph.add_input({DType::f32, {4, 4}, {}}), w = graph.add_input({DType::f32, {4, 4}, {}});
  const ValueId first = b.op("tanh", {b.matmul(x, w)});
  graph.set_outputs({b.matmul(first, w), b.sum(first, {0})});
  graph.set_output_strides(0, {1, 4});
  return fuse(graph).value();
}

uint32_t temporary_of(const Plan& plan) {
  for (uint32_t b = 0; b < plan.buffers.size(); ++b) {
    if (plan.buffers[b].kind == BufferKind::temporary) return b;
  }
  ADD_FAILURE() << "no temporary";
  return 0;
}

std::string refusal(const Plan& plan) {
  const Status status = check_plan(plan);
  EXPECT_EQ(status.code(), StatusCode::internal);
  return status.message();
}

TEST(CheckPlan, WhatFuseGivesIsRight) { EXPECT_TRUE(check_plan(right_plan()).ok()); }

TEST(CheckPlan, AReadOfWhatNothingWroteIsRefusedWithTheOp) {
  Plan plan = right_plan();
  plan.launches.erase(plan.launches.begin());
  EXPECT_NE(refusal(plan).find("where nothing was written"), std::string::npos) << refusal(plan);
  plan = right_plan();
  std::swap(plan.launches.front(), plan.launches.back());
  EXPECT_NE(refusal(plan).find("where nothing was written"), std::string::npos) << refusal(plan);
  EXPECT_EQ(refusal(plan).rfind("fuse: ", 0), 0U) << refusal(plan);
}

TEST(CheckPlan, ABufferThatHoldsAnotherValueIsRefused) {
  Plan plan = right_plan();
  const uint32_t temporary = temporary_of(plan);
  for (Launch& launch : plan.launches) {
    for (size_t i = 0; i < launch.buffers.size(); ++i) {
      const bool reads = plan.specs[launch.spec].buffers[i].role == BufferRole::input;
      if (reads && launch.buffers[i] == temporary) launch.buffers[i] = 0;  // the first input, of the same size
    }
  }
  EXPECT_NE(refusal(plan).find("where another value lies"), std::string::npos) << refusal(plan);
}

TEST(CheckPlan, ABufferOfAnotherLayoutIsRefused) {
  Plan plan = right_plan();
  plan.buffers[temporary_of(plan)].elements += 1;
  EXPECT_NE(refusal(plan).find("of another layout"), std::string::npos) << refusal(plan);
  plan = right_plan();
  plan.buffers[temporary_of(plan)].dtype = DType::f64;
  EXPECT_NE(refusal(plan).find("of another layout"), std::string::npos) << refusal(plan);
}

TEST(CheckPlan, WritesToInputsAndOverWhatIsReadAreRefused) {
  for (const bool to_input : {true, false}) {
    Plan plan = right_plan();
    Launch& launch = plan.launches.back();
    const KernelSpec& spec = plan.specs[launch.spec];
    size_t written = 0, read = 0;
    for (size_t i = 0; i < launch.buffers.size(); ++i) (spec.buffers[i].role == BufferRole::input ? read : written) = i;
    if (spec.buffers[written].elements != spec.buffers[read].elements)
      std::swap(plan.launches.back(), plan.launches[1]);
    Launch& square = plan.launches.back();
    for (size_t i = 0; i < square.buffers.size(); ++i) {
      if (plan.specs[square.spec].buffers[i].role != BufferRole::output) continue;
      square.buffers[i] = to_input ? 0 : temporary_of(plan);
    }
    EXPECT_NE(refusal(plan).find("writes"), std::string::npos) << refusal(plan);
  }
}

TEST(CheckPlan, AnOutputThatIsNotWrittenOrLiesOtherwiseIsRefused) {
  Plan plan = right_plan();
  plan.launches.pop_back();
  EXPECT_NE(refusal(plan).find("nothing writes output"), std::string::npos) << refusal(plan);
  plan = right_plan();
  plan.graph.set_output_strides(0, {1, 5});
  EXPECT_NE(refusal(plan).find("in another layout than is asked for"), std::string::npos) << refusal(plan);
}

}  // namespace
}  // namespace kiln
