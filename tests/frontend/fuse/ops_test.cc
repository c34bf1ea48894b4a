// Every row of the op table, alone and between other ops, through fusion and the reference backend.

#include <gtest/gtest.h>

#include "tests/frontend/fuse/plan_runner.h"
#include "tests/frontend/ops/samples.h"

namespace kiln {
namespace {

TEST(FusedOps, EverySampleOfEveryRowAgreesWithItsReference) {
  for (const Sample& sample : op_samples()) {
    SCOPED_TRACE(sample.op);
    expect_fused(graph_of(sample), inputs_of(sample), 1e-9);
  }
}

TEST(FusedOps, EverySampleAgreesBetweenOtherOps) {
  for (const Sample& sample : op_samples()) {
    SCOPED_TRACE(sample.op);
    expect_fused(graph_around(sample), inputs_of(sample), 1e-9);
  }
}

TEST(FusedOps, EverySampleAgreesBehindCasts) {
  for (const Sample& sample : op_samples()) {
    SCOPED_TRACE(sample.op);
    expect_fused(graph_behind_casts(sample), inputs_behind_casts(sample), 1e-9);
  }
}

}  // namespace
}  // namespace kiln
