// What the situations of the verdict are for: kernels that are right on ordinary numbers only are rejected, and the right
// kernels of every op are accepted in all of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/features.h"
#include "frontend/infer/builder.h"
#include "jit/build/kernels/kernel_builder.h"
#include "jit/worker/process_runner.h"
#include "tests/frontend/ops/samples.h"
#include "tests/verdict/mutants/body_rewrite.h"

namespace kiln {
namespace {

const cpu::CpuCompileBackend& real_backend() {
  static const cpu::CpuCompileBackend backend;
  return backend;
}

Target host_target() {
  for (const cpu::CpuTarget& target : cpu::ladder()) {
    if ((target.features & ~cpu::host_features()) == 0) return {"cpu", std::string(target.name)};
  }
  return {};
}

using Compile = std::function<Expected<Image>(const KernelSpec&)>;

Expected<Image> real_image(const KernelSpec& spec) {
  return real_backend().compile(spec, default_candidates(real_backend(), spec, host_target()).front(), host_target());
}

/// One candidate, made by a function.
class OneCandidate final : public CompileBackend {
 public:
  explicit OneCandidate(Compile compile) : m_compile(std::move(compile)) {}
  std::string_view name() const override { return "cpu"; }
  std::vector<Target> targets() const override { return {host_target()}; }
  Machine default_machine(const Target& target) const override { return real_backend().default_machine(target); }
  std::string toolchain() const override { return "one"; }
  Status claims(const KernelSpec& spec, const Target& target) const override {
    return real_backend().claims(spec, target);
  }
  std::vector<Schedule> candidates(const KernelSpec&, const Target&, const Machine&) const override {
    return {{{0}, "the one"}};
  }
  Expected<Image> compile(const KernelSpec& spec, const Schedule&, const Target&) const override {
    return m_compile(spec);
  }

 private:
  Compile m_compile;
};

class SituationsTest : public testing::Test {
 protected:
  SituationsTest() : m_runner(ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH}).value()) {}

  /// The first failure of a kernel of the graph.
  Status build(const Graph& graph, const Compile& compile = real_image) {
    const auto plan = fuse(graph);
    KILN_RETURN_IF_ERROR(plan.status());
    const OneCandidate backend(compile);
    for (const Launch& launch : plan->launches) {
      const KernelJob job{{}, "{}", &*plan, &launch};
      KILN_RETURN_IF_ERROR(build_kernel(job, backend, host_target(), m_runner.get()).status());
    }
    return {};
  }

  std::unique_ptr<CandidateRunner> m_runner;
};

Graph exponential() {
  Graph graph;
  GraphBuilder b(graph);
  graph.set_outputs({b.exp(graph.add_input({DType::f32, {61, 129}, {}}))});
  return graph;
}

Graph embedding() {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId table = graph.add_input({DType::f32, {90, 33}, {}});
  graph.set_outputs({b.op("embedding", {table, graph.add_input({DType::i64, {7, 11}, {}})})});
  return graph;
}

/// Rows of a table by numbers that are computed: a sum, a difference.
Graph computed_rows() {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId table = graph.add_input({DType::f32, {32, 5}, {}});
  const ValueId first = graph.add_input({DType::i64, {70}, {}}), second = graph.add_input({DType::i64, {70}, {}});
  const ValueId far = b.mul(first, 2.0);
  graph.set_outputs({b.op("embedding", {table, b.add(first, second)}), b.op("embedding", {table, b.sub(first, 2.0)}),
                     b.op("embedding", {table, b.sub(far, second)})});
  return graph;
}

/// Rows of a table by numbers that a comparison decides about, of a third: it alone says whether they are valid.
Graph compared_rows() {
  Graph graph;
  GraphBuilder b(graph);
  const auto numbers = [&] { return graph.add_input({DType::i64, {70}, {}}); };
  const ValueId table = graph.add_input({DType::f32, {32, 5}, {}}), zero = b.full(0.0, DType::i64);
  const ValueId is_from_end = b.op("lt", {numbers(), zero});
  graph.set_outputs({b.op("embedding", {table, b.select(is_from_end, b.add(numbers(), 32.0), numbers())})});
  return graph;
}

/// Rows of a table by floats: as they are, rounded, negative, shares of it.
Graph rows_by_floats(DType dtype) {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId table = graph.add_input({DType::f32, {32, 5}, {}});
  std::vector<ValueId> rows;
  const auto take = [&](const auto& position, DType index) {
    const ValueId at = b.cast(position(graph.add_input({dtype, {70}, {}})), index);
    rows.push_back(b.op("embedding", {table, at}));
  };
  take([&](ValueId x) { return x; }, DType::i64);
  take([&](ValueId x) { return b.op("round", {x}); }, DType::i32);
  take([&](ValueId x) { return b.neg(x); }, DType::i64);
  take([&](ValueId x) { return b.mul(x, 32.0); }, DType::i32);
  take([&](ValueId x) { return b.mul(b.add(x, 1.0), 16.0); }, DType::i64);
  graph.set_outputs(rows);
  return graph;
}

/// What becomes of i64's least number, which NaN is as an integer.
Graph least_numbers() {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId least = b.cast(b.log(graph.add_input({DType::f32, {70}, {}})), DType::i64),
                minus_one = b.full(-1.0, DType::i64);
  graph.set_outputs({b.neg(least), b.op("abs", {least}), b.op("sign", {least}), b.op("floor_div", {least, minus_one}),
                     b.op("remainder", {least, minus_one}), b.op("fmod", {least, minus_one})});
  return graph;
}

/// A router's: scores far below the largest, as a share of it, are out. Both zeros meet in what they are a share of.
Graph masked_scores() {
  Graph graph;
  GraphBuilder b(graph);
  const ValueId x = graph.add_input({DType::f32, {32, 4}, {}}), size = graph.add_input({DType::f32, {32, 4}, {}});
  const ValueId largest = b.amax(x, {1}, true), share = b.div(b.sub(largest, x), b.op("maximum", {size, largest}));
  const ValueId is_out = b.op("gt", {share, b.full(0.0, DType::f32)});
  const ValueId scores = b.select(is_out, b.full(-HUGE_VAL, DType::f32), x);
  const ValueId probabilities = b.op("softmax", {scores}, {{"dim", int64_t{1}}});
  graph.set_outputs({scores, probabilities, b.amax(probabilities, {1}, true)});
  return graph;
}

void expect_accepted(const Status& status) { EXPECT_TRUE(status.ok()) << status.to_string(); }

void expect_rejected(const Status& status, std::string_view why) {
  EXPECT_NE(status.message().find(why), std::string::npos) << status.to_string();
}

/// The sample in a dtype, its last dims `times` as long: many elements meet what is rare in the data.
std::optional<Graph> graph_in(Sample sample, DType dtype, int64_t times, Graph (*make)(const Sample&) = graph_of) {
  for (auto& operand : sample.operands) {
    if (!operand) continue;
    std::vector<int64_t> dims = operand->dims;
    if (!dims.empty() && dims.back() > 1) dims.back() *= times;
    operand = Tensor::zeros(is_floating(operand->dtype) ? dtype : operand->dtype, dims);
  }
  try {
    return make(sample);
  } catch (const std::exception&) {
    return std::nullopt;  // an attribute says how long the last dim is
  }
}

TEST_F(SituationsTest, IndicesThatAreComputedAreTriedWhereAllAreValid) { expect_accepted(build(computed_rows())); }

TEST_F(SituationsTest, AnExtremeOfBothZerosIsEither) { expect_accepted(build(masked_scores())); }

TEST_F(SituationsTest, TheLeastIntegerIsItsOwnNegation) { expect_accepted(build(least_numbers())); }

TEST_F(SituationsTest, IndicesThatComparedNumbersDecideAboutAreTriedWhereAllAreValid) {
  expect_accepted(build(compared_rows()));
}

TEST_F(SituationsTest, IndicesMadeOfFloatsAreTriedWhereAllAreValid) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const Status built = build(rows_by_floats(dtype));
    EXPECT_TRUE(built.ok()) << to_string(dtype) << ": " << built.to_string();
  }
}

TEST_F(SituationsTest, KernelsOfEveryOpAreAccepted) {
  std::set<std::string> seen;
  size_t wide = 0;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (const Sample& sample : op_samples()) {
      for (const int64_t times : {1, 211}) {
        const auto graph = graph_in(sample, dtype, times);
        if (!graph) continue;
        const Status status = build(*graph);
        if (status.code() == StatusCode::unimplemented) continue;  // no kernel form in this dtype
        EXPECT_TRUE(status.ok()) << sample.op << " in " << to_string(dtype) << ": " << status.to_string();
        seen.insert(sample.op);
        wide += times > 1;
      }
    }
  }
  EXPECT_GT(seen.size(), 100U);
  EXPECT_GT(wide, 300U);
}

TEST_F(SituationsTest, KernelsOfEveryOpAmongOthersAreAccepted) {
  std::set<std::string> seen;
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const Sample& sample : op_samples()) {
      const auto graph = graph_in(sample, dtype, 211, graph_around);
      if (!graph) continue;
      const Status status = build(*graph);
      if (status.code() == StatusCode::unimplemented) continue;  // no kernel form in this dtype
      EXPECT_TRUE(status.ok()) << sample.op << " in " << to_string(dtype) << ": " << status.to_string();
      seen.insert(sample.op);
    }
  }
  EXPECT_GT(seen.size(), 80U);
}

TEST_F(SituationsTest, WhatOverflowsInsideAnOpIsNoFault) {
  Graph graph;  // exp(out) * 0 where out is no logarithm of a probability: NaN in f32, 0 in the reference
  GraphBuilder b(graph);
  const ValueId out = graph.add_input({DType::f32, {512, 1'000}, {}}),
                rows = graph.add_input({DType::f32, {512, 1}, {}});
  const ValueId grad = b.mul(b.expand(rows, {512, 1'000}), 0.0);
  graph.set_outputs({b.op("log_softmax_backward", {grad, out}, {{"dim", int64_t{1}}})});
  const Status status = build(graph);
  EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST_F(SituationsTest, AnOutputMayEqualThePoison) {
  for (const DType dtype : {DType::u8, DType::i8, DType::boolean, DType::i32}) {
    Graph graph;
    GraphBuilder b(graph);
    const ValueId x = graph.add_input({dtype, {100, 1'000}, {}});
    graph.set_outputs({b.op("bitwise_or", {x, graph.add_input({dtype, {100, 1'000}, {}})})});
    const Status status = build(graph);
    EXPECT_TRUE(status.ok()) << to_string(dtype) << ": " << status.to_string();
  }
}

TEST_F(SituationsTest, AKernelThatIsWrongForLargeNumbersIsRejected) {
  const Status status = build(exponential(), [](KernelSpec spec) {
    Body& body = std::get<LoopsSpec>(spec.kernel).body;
    const auto load = std::ranges::find(body.exprs, ScalarOp::load, &ScalarNode::op) - body.exprs.begin();
    mutants::Rewritten clamped =
        mutants::rewrite(body, static_cast<ExprId>(load), [](mutants::Appender& out, ExprId copy) {
          return out.op(ScalarOp::minimum, DType::f32, copy, out.number(DType::f32, 4));
        });
    for (Stage& stage : std::get<LoopsSpec>(spec.kernel).stages) {
      for (Store& store : stage.stores) store.value = clamped.map[store.value];
    }
    body = std::move(clamped.body);
    return real_image(spec);
  });
  expect_rejected(status, "on zeros, tiny and large numbers");
}

TEST_F(SituationsTest, AKernelThatNeedsAlignmentIsRejected) {
  const Status status = build(exponential(), [](const KernelSpec& spec) -> Expected<Image> {
    KILN_ASSIGN_OR_RETURN(Image image, real_image(spec));
    // mov rax, [rdi]; movaps xmm0, [rax]; jmp entry
    const uint8_t prefix[] = {0x48, 0x8b, 0x07, 0x0f, 0x28, 0x00, 0xe9};
    const auto start = image.code.size();
    image.code.insert(image.code.end(), std::begin(prefix), std::end(prefix));
    const auto distance = static_cast<int32_t>(static_cast<int64_t>(image.entry) -
                                               static_cast<int64_t>(image.code.size() + sizeof(int32_t)));
    for (int byte = 0; byte < 4; ++byte) image.code.push_back(static_cast<uint8_t>(distance >> (8 * byte)));
    image.entry = start;
    return image;
  });
  expect_rejected(status, "nothing aligned: candidate died of signal 11");
}

TEST_F(SituationsTest, AKernelWithoutTheRightBoundsCheckIsRejected) {
  EXPECT_TRUE(build(embedding()).ok()) << build(embedding()).to_string();
  for (const int64_t too_far : {int64_t{1}, int64_t{1} << 20}) {
    const Status status = build(embedding(), [&](KernelSpec spec) {
      for (BufferSpec& buffer : spec.buffers) {
        if (buffer.elements == 90 * 33) buffer.elements += too_far * 33;
      }
      for (Access& access : std::get<LoopsSpec>(spec.kernel).body.accesses) {
        for (IndirectTerm& term : access.indirect) term.bound += too_far;
      }
      return real_image(spec);
    });
    expect_rejected(status, "on a bad index");
  }
}

}  // namespace
}  // namespace kiln
