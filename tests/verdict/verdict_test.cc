#include "verdict/verdict.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "verdict/sample_data.h"

namespace kiln {
namespace {

/// A candidate is a function here; its image is empty. What processes do is process_runner_test's subject.
class InProcessRunner final : public CandidateRunner {
 public:
  using Candidate = std::function<Expected<CandidateRun>(std::vector<std::span<uint8_t>>& buffers)>;

  Expected<std::vector<std::span<uint8_t>>> prepare(std::span<const CandidateBuffer> buffers) override {
    m_memory.clear();
    m_buffers.clear();
    for (const CandidateBuffer& buffer : buffers) {
      auto& memory = m_memory.emplace_back(buffer.size_bytes, uint8_t{0xff});
      if (buffer.source.pool == nullptr) continue;
      const std::span<const uint8_t> pool = buffer.source.pool->bytes();
      for (size_t i = 0; i < memory.size(); ++i) memory[i] = pool[(buffer.source.start_bytes + i) % pool.size()];
    }
    for (auto& memory : m_memory) m_buffers.emplace_back(memory);
    return m_buffers;
  }
  Expected<CandidateRun> run(const Image&, uint32_t, uint32_t, uint32_t, std::span<const int64_t>) override {
    return candidate(m_buffers);
  }

  Candidate candidate;

 private:
  std::vector<std::vector<uint8_t>> m_memory;
  std::vector<std::span<uint8_t>> m_buffers;
};

float* floats(std::span<uint8_t> bytes) { return reinterpret_cast<float*>(bytes.data()); }

/// total[i] += in[i]; out[i] = 2 in[i], laid out with gaps when `row_stride` exceeds the columns.
class VerdictTest : public testing::Test {
 protected:
  void prepare(int64_t rows, int64_t columns, int64_t row_stride) {
    m_rows = rows, m_columns = columns, m_stride = row_stride;
    const int64_t count = rows * columns;
    m_spec.buffers = {{DType::f32, count, BufferRole::input},
                      {DType::f32, (rows - 1) * row_stride + columns, BufferRole::output},
                      {DType::f32, count, BufferRole::inout},
                      {DType::i32, 4, BufferRole::input}};
    m_spec.kernel = LoopsSpec{};
    auto trial = CandidateTrial::prepare(m_spec, m_runner);
    ASSERT_TRUE(trial.ok());
    m_trial.emplace(std::move(*trial));
    const auto initial = [this](size_t buffer, int64_t i) {
      return static_cast<double>(reinterpret_cast<const float*>(m_trial->initial(buffer).data())[i]);
    };
    m_outputs = {{1, {rows, columns}, {row_stride, 1}, 1, [=](int64_t i) { return 2 * initial(0, i); }},
                 {2, {rows, columns}, {columns, 1}, 1, [=](int64_t i) { return initial(0, i) + initial(2, i); }}};
  }

  /// The right kernel, then `damage`.
  Verdict judge_damaged(const std::function<void(std::vector<std::span<uint8_t>>&, CandidateRun&)>& damage) {
    m_runner.candidate = [&](std::vector<std::span<uint8_t>>& buffers) -> Expected<CandidateRun> {
      m_poisoned.assign(buffers[1].begin(), buffers[1].end());
      for (int64_t i = 0; i < m_rows * m_columns; ++i) {
        const float in = floats(buffers[0])[i];
        floats(buffers[1])[i / m_columns * m_stride + i % m_columns] = 2 * in;
        floats(buffers[2])[i] += in;
      }
      CandidateRun run;
      run.seconds = {0.25};
      damage(buffers, run);
      return run;
    };
    return m_trial->judge({}, m_outputs, 1'000);
  }

  void leave_unwritten(std::span<uint8_t> output, size_t place) const {
    std::ranges::copy(std::span(m_poisoned).subspan(place * 4, 4), output.subspan(place * 4).begin());
  }

  int64_t m_rows = 0, m_columns = 0, m_stride = 0;
  std::vector<uint8_t> m_poisoned;  // what output 1 held before the candidate ran
  KernelSpec m_spec;
  InProcessRunner m_runner;
  std::optional<CandidateTrial> m_trial;
  std::vector<OutputReference> m_outputs;
};

TEST_F(VerdictTest, ARightCandidateIsAcceptedAgainAndAgain) {
  prepare(37, 65, 80);
  for (int i = 0; i < 2; ++i) {
    const Verdict verdict = judge_damaged([](auto&, auto&) {});
    EXPECT_TRUE(verdict.status.ok()) << verdict.status.to_string();
    EXPECT_EQ(verdict.checked, 2U * 37 * 65);
    EXPECT_EQ(verdict.seconds, 0.25);
    EXPECT_LT(verdict.max_error, 1);
  }
}

TEST_F(VerdictTest, AnElementsUncertaintyIsAskedForNoFurtherThanExcusesIt) {
  constexpr int k_most = 1'000;
  prepare(4, 16, 16);
  int steps = 0;
  m_outputs[0].uncertainty = [&](int64_t, const IsEnough& is_enough) {
    double known = 0;
    for (steps = 0; steps < k_most && !is_enough(known); ++steps) known += 0.1;
    return known;
  };
  const auto off_by = [&](float error) {
    return judge_damaged([=](auto& buffers, auto&) { floats(buffers[1])[5] += error; }).status.ok();
  };
  EXPECT_TRUE(off_by(0.45F));
  EXPECT_EQ(steps, 5);
  EXPECT_FALSE(off_by(2 * 0.1F * k_most));
  EXPECT_EQ(steps, k_most);
}

TEST_F(VerdictTest, OneUnwrittenElementIsEnough) {
  for (int64_t stride : {300, 301}) {
    prepare(200, 300, stride);
    for (int64_t element : {int64_t{0}, int64_t{12'345}, int64_t{199 * 300 + 299}}) {
      const int64_t place = element / 300 * stride + element % 300;
      const Verdict verdict =
          judge_damaged([&](auto& buffers, auto&) { leave_unwritten(buffers[1], static_cast<size_t>(place)); });
      EXPECT_NE(verdict.status.message().find(fmt::format("offset {} was not written", place)), std::string::npos)
          << verdict.status.to_string();
    }
  }
}

TEST_F(VerdictTest, AnOutputThatIsTransposedInMemoryIsScannedWhole) {
  prepare(100, 300, 300);
  m_outputs[0] = {1, {300, 100}, {1, 300}, 1, [inner = m_outputs[0].expected](int64_t i) {
                    return inner(i % 100 * 300 + i / 100);
                  }};
  EXPECT_TRUE(judge_damaged([](auto&, auto&) {}).status.ok());
  EXPECT_FALSE(judge_damaged([this](auto& buffers, auto&) { leave_unwritten(buffers[1], 29'999); }).status.ok());
}

TEST_F(VerdictTest, AWrongTileOfALargeOutputIsSeen) {
  prepare(512, 3'072, 3'072);
  for (auto [row, column] : {std::pair<int64_t, int64_t>{0, 0}, {251, 1'201}, {506, 3'008}}) {
    const Verdict verdict = judge_damaged([&, row = row, column = column](auto& buffers, auto&) {
      for (int64_t r = row; r < row + 6; ++r) {
        for (int64_t c = column; c < column + 64; ++c) floats(buffers[1])[r * 3'072 + c] *= 1.001f;
      }
    });
    EXPECT_EQ(verdict.status.code(), StatusCode::internal);
  }
}

TEST_F(VerdictTest, NanAndInfinityMustBeThereWhenExpectedAndOnlyThen) {
  prepare(4, 5, 5);
  for (float value : {std::nanf(""), INFINITY, -INFINITY}) {
    EXPECT_FALSE(judge_damaged([&](auto& buffers, auto&) { floats(buffers[1])[7] = value; }).status.ok());
    m_outputs[0].expected = [value, right = m_outputs[0].expected](int64_t i) {
      return i == 7 ? static_cast<double>(value) : right(i);
    };
    EXPECT_FALSE(judge_damaged([](auto&, auto&) {}).status.ok());
    EXPECT_TRUE(judge_damaged([&](auto& buffers, auto&) { floats(buffers[1])[7] = value; }).status.ok());
    EXPECT_FALSE(judge_damaged([&](auto& buffers, auto&) { floats(buffers[1])[7] = 1e38f; }).status.ok());
  }
}

TEST_F(VerdictTest, InputsRedZonesAndDataErrorsAreLookedAt) {
  prepare(4, 5, 5);
  const auto message = [&](const auto& damage) { return judge_damaged(damage).status.message(); };
  EXPECT_EQ(message([](auto& buffers, auto&) { buffers[3][3] ^= 1; }), "candidate changed its input 3");
  EXPECT_EQ(message([](auto&, auto&) {}), "");  // the next one finds it as it was
  EXPECT_EQ(message([](auto&, CandidateRun& run) { run.red_zones_intact = false; }),
            "candidate wrote outside its buffers");
  EXPECT_NE(
      message([](auto&, CandidateRun& run) { run.status = LaunchStatus::index_out_of_range; }).find("out of range"),
      std::string::npos);
  m_runner.candidate = [](auto&) -> Expected<CandidateRun> { return error(StatusCode::deadline_exceeded, "hangs"); };
  EXPECT_EQ(m_trial->judge({}, m_outputs, 1).status.code(), StatusCode::deadline_exceeded);
  EXPECT_TRUE(judge_damaged([](auto&, auto&) {}).status.ok());
}

TEST(Tolerance, GrowsWithTheRootOfTheLengthAndIsNoneForIntegers) {
  EXPECT_EQ(tolerance(DType::i64, 1'000, 5, 5), 0);
  EXPECT_EQ(tolerance(DType::boolean, 1, 1, 1), 0);
  EXPECT_NEAR(tolerance(DType::f32, 1, 1, 0), 12 * 0x1p-24, 1e-12);
  const double one = tolerance(DType::f32, 100, 1, 1), four = tolerance(DType::f32, 400, 1, 1);
  EXPECT_GT(four, one * 1.6);
  EXPECT_LT(four, one * 2);
  EXPECT_LT(tolerance(DType::f32, 768, 1, 1), 2e-5);  // far below what one lost term of 768 would change
  EXPECT_LT(tolerance(DType::f64, 1, 1, 1), tolerance(DType::f32, 1, 1, 1));
  EXPECT_LT(tolerance(DType::f32, 1, 1, 1), tolerance(DType::bf16, 1, 1, 1));
}

}  // namespace
}  // namespace kiln
