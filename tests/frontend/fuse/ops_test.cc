// Every row of the op table, alone and between other ops, through fusion and the reference backend.

#include <gtest/gtest.h>

#include "frontend/infer/builder.h"
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

// Reverses dim order on the way in and out, adds pointwise work on both sides.
Graph surrounded(const Sample& sample) {
  Graph graph;
  GraphBuilder b(graph);
  std::vector<ValueId> operands;
  for (const std::optional<Tensor>& operand : sample.operands) {
    if (!operand) {
      operands.push_back(k_none);
      continue;
    }
    const Shape shape(operand->dims.begin(), operand->dims.end());
    const ValueId input = graph.add_input({operand->dtype, shape, {}});
    operands.push_back(is_floating(operand->dtype) ? b.add(b.mul(input, 1.0), 0.0) : input);
  }
  const std::vector<ValueId> results = b.ops(sample.op, operands, sample.attributes);
  std::vector<ValueId> outputs;
  for (const ValueId result : results) {
    std::vector<int64_t> reversed;
    for (size_t d = b.shape(result).size(); d-- > 0;) reversed.push_back(static_cast<int64_t>(d));
    ValueId value = b.permute(result, reversed);
    if (is_floating(b.dtype(result))) value = b.mul(value, 2.0);
    outputs.push_back(b.reshape(value, {[&] {
                                  Dim count(1);
                                  for (const Dim& dim : Shape(b.shape(value))) count = count * dim;
                                  return count;
                                }()}));
  }
  EXPECT_TRUE(b.status().ok()) << b.status().to_string();
  graph.set_outputs(outputs);
  return graph;
}

TEST(FusedOps, EverySampleAgreesBetweenOtherOps) {
  for (const Sample& sample : op_samples()) {
    SCOPED_TRACE(sample.op);
    expect_fused(surrounded(sample), inputs_of(sample), 1e-9);
  }
}

}  // namespace
}  // namespace kiln
