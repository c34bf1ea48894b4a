#include "tests/verdict/mutants/subjects.h"

#include <gtest/gtest.h>

#include <functional>

#include "frontend/autodiff/gradient.h"
#include "frontend/infer/builder.h"

namespace kiln::mutants {

namespace {

/// The graph of one subject in the making.
struct Draft {
  Graph graph;
  GraphBuilder b{graph};

  ValueId in(Shape shape, DType dtype = DType::f32) { return graph.add_input({dtype, std::move(shape), {}}); }
  ValueId softmax(ValueId x, int64_t dim) { return b.op("softmax", {x}, {{"dim", dim}}); }
  ValueId gelu(ValueId x) { return b.op("gelu", {x}, {{"approximate", std::string("tanh")}}); }
  std::vector<ValueId> layer_norm(int64_t rows, int64_t width) {
    const std::vector<ValueId> operands{in({rows, width}), in({width}), in({width})};
    return b.ops("layer_norm", operands, {{"eps", 1e-5}, {"normalized_rank", int64_t{1}}});
  }
};

using Make = std::function<std::vector<ValueId>(Draft&)>;

struct Row {
  const char* name;
  Make outputs;
};

std::vector<ValueId> attention(Draft& d, int64_t length, int64_t width, bool causal, bool with_gradients) {
  const Shape shape{2, 2, length, width};
  const std::vector<ValueId> operands{d.in(shape), d.in(shape), d.in(shape), k_none};
  const auto outputs = d.b.ops("attention", operands, {{"causal", causal}, {"scale", 0.4}});
  if (!with_gradients) return {outputs[0]};
  const ValueId seed = d.in(shape);
  auto grads = gradients(d.b, std::span(outputs).first(1), std::span(&seed, 1), std::span(operands).first(3));
  EXPECT_TRUE(grads.ok()) << grads.status().to_string();
  return grads.ok() ? *grads : std::vector<ValueId>{};
}

const std::vector<Row>& rows() {
  static const std::vector<Row> list{
      {"pointwise", [](Draft& d) { return std::vector{d.gelu(d.b.add(d.in({37, 65}), d.in({65})))}; }},
      {"large pointwise",
       [](Draft& d) {
         const ValueId x = d.in({300, 1'001});
         return std::vector{d.b.mul(d.b.sub(x, d.in({300, 1})), d.b.div(d.in({300, 1'001}), 3.0))};
       }},
      {"transposing add",
       [](Draft& d) { return std::vector{d.b.sub(d.in({41, 41}), d.b.permute(d.in({41, 41}), {1, 0}))}; }},
      {"relu backward",
       [](Draft& d) {
         const ValueId x = d.in({33, 70});
         return std::vector{d.b.select(d.b.compare("gt", x, 0.0), d.in({33, 70}), d.b.full({33, 70}, 0, DType::f32))};
       }},
      {"integers",
       [](Draft& d) {
         return std::vector{d.b.sub(d.b.mul(d.in({50, 9}, DType::i64), 3.0), d.in({50, 9}, DType::i64))};
       }},
      {"causal mask",
       [](Draft& d) {
         const Shape shape{45, 45};
         const ValueId keep = d.b.op("le", {d.b.iota(shape, 1), d.b.iota(shape, 0)});
         return std::vector{d.softmax(d.b.select(keep, d.in(shape), d.b.full(shape, -1e9, DType::f32)), 1)};
       }},
      {"concat and pad",
       [](Draft& d) {
         const ValueId joined = d.b.op("concat", {d.in({31, 14}), d.in({31, 17})}, {{"dim", int64_t{1}}});
         return std::vector{
             d.b.op("pad", {joined},
                    {{"low", std::vector<int64_t>{1, 2}}, {"high", std::vector<int64_t>{0, 3}}, {"value", 3.0}})};
       }},
      {"softmax", [](Draft& d) { return std::vector{d.softmax(d.in({53, 77}), 1)}; }},
      {"large softmax", [](Draft& d) { return std::vector{d.softmax(d.in({100, 1'500}), 1)}; }},
      {"log softmax",
       [](Draft& d) { return std::vector{d.b.op("log_softmax", {d.in({19, 61})}, {{"dim", int64_t{1}}})}; }},
      {"softmax backward",
       [](Draft& d) {
         return std::vector{d.b.op("softmax_backward", {d.in({40, 40}), d.in({40, 40})}, {{"dim", int64_t{1}}})};
       }},
      {"layer norm", [](Draft& d) { return d.layer_norm(37, 72); }},
      {"large layer norm", [](Draft& d) { return d.layer_norm(130, 770); }},
      {"layer norm backward",
       [](Draft& d) {
         const std::vector<ValueId> operands{d.in({43, 67}), d.in({43, 67}), d.in({43, 1}), d.in({43, 1}), d.in({67})};
         return d.b.ops("layer_norm_backward", operands, {{"normalized_rank", int64_t{1}}});
       }},
      {"column sums",
       [](Draft& d) { return std::vector{d.b.sum(d.in({129, 97}), {0}), d.b.amax(d.in({60, 60}), {1})}; }},
      {"large sum", [](Draft& d) { return std::vector{d.b.sum(d.in({64, 3, 400}), {0, 1, 2})}; }},
      {"mean of squares", [](Draft& d) { return std::vector{d.b.mean(d.b.square(d.in({26, 13, 26})), {1})}; }},
      {"embedding",
       [](Draft& d) { return std::vector{d.b.op("embedding", {d.in({90, 33}), d.in({7, 11}, DType::i64)})}; }},
      {"embedding backward",
       [](Draft& d) {
         return std::vector{
             d.b.op("embedding_backward", {d.in({7, 11, 33}), d.in({7, 11}, DType::i64)}, {{"rows", int64_t{50}}})};
       }},
      {"cross entropy",
       [](Draft& d) {
         const ValueId logits = d.in({35, 44}), target = d.in({35}, DType::i64);
         const ValueId loss = d.b.op("cross_entropy", {logits, target}, {{"reduction", std::string("mean")}});
         auto grads = gradients(d.b, loss, std::span(&logits, 1));
         EXPECT_TRUE(grads.ok()) << grads.status().to_string();
         return std::vector{loss, grads.ok() ? grads->front() : loss};
       }},
      {"gemm nn gelu",
       [](Draft& d) { return std::vector{d.gelu(d.b.op("addmm", {d.in({65}), d.in({37, 129}), d.in({129, 65})}))}; }},
      {"gemm nt residual",
       [](Draft& d) {
         return std::vector{d.b.sub(d.b.matmul(d.in({70, 70}), d.b.transpose(d.in({70, 70}))), d.in({70, 70}))};
       }},
      {"gemm tn", [](Draft& d) { return std::vector{d.b.matmul(d.b.transpose(d.in({47, 50})), d.in({47, 83}))}; }},
      {"gemm batched", [](Draft& d) { return std::vector{d.b.matmul(d.in({3, 31, 31}), d.in({3, 31, 31}))}; }},
      {"gemm of bytes",
       [](Draft& d) {
         const ValueId a = d.in({37, 130}, DType::i8), b = d.b.transpose(d.in({65, 130}, DType::i8));
         return std::vector{d.b.matmul(d.b.cast(a, DType::i32), d.b.cast(b, DType::i32))};
       }},
      {"gemm of bytes to bytes",
       [](Draft& d) { return std::vector{d.b.matmul(d.in({37, 65}, DType::i8), d.in({65, 33}, DType::i8))}; }},
      {"gemm with weights of bytes",
       [](Draft& d) {
         const ValueId weights = d.b.cast(d.b.transpose(d.in({65, 129}, DType::i8)), DType::bf16);
         return std::vector{d.b.mul(d.b.matmul(d.in({3, 129}, DType::bf16), weights), d.in({65}, DType::bf16))};
       }},
      {"gemm of halves",
       [](Draft& d) { return std::vector{d.b.matmul(d.in({37, 129}, DType::bf16), d.in({129, 70}, DType::bf16))}; }},
      {"gemm of halves, epilogue",
       [](Draft& d) {
         const ValueId product = d.b.matmul(d.in({37, 64}, DType::f16), d.b.transpose(d.in({70, 64}, DType::f16)));
         return std::vector{d.gelu(d.b.add(product, d.in({70}, DType::f16)))};
       }},
      {"large gemm",
       [](Draft& d) { return std::vector{d.b.add(d.b.matmul(d.in({250, 130}), d.in({130, 515})), d.in({515}))}; }},
      {"first of rows",
       [](Draft& d) {
         return std::vector{d.b.op("topk", {d.in({37, 37})}, {{"dim", int64_t{1}}, {"k", int64_t{9}}})};
       }},
      {"sorted rows", [](Draft& d) { return std::vector{d.b.op("argsort", {d.in({37, 37})}, {{"dim", int64_t{1}}})}; }},
      {"attention", [](Draft& d) { return attention(d, 39, 16, false, false); }},
      {"causal attention", [](Draft& d) { return attention(d, 37, 24, true, false); }},
      {"attention backward", [](Draft& d) { return attention(d, 35, 16, true, true); }},
  };
  return list;
}

}  // namespace

std::vector<Subject> subjects() {
  std::vector<Subject> result;
  for (const Row& row : rows()) {
    Draft draft;
    draft.graph.set_outputs(row.outputs(draft));
    EXPECT_TRUE(draft.b.status().ok()) << row.name << ": " << draft.b.status().to_string();
    auto plan = fuse(draft.graph);
    EXPECT_TRUE(plan.ok()) << row.name << ": " << plan.status().to_string();
    if (plan.ok()) result.push_back({row.name, std::move(plan).value()});
  }
  return result;
}

}  // namespace kiln::mutants
