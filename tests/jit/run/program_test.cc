#include "jit/run/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>

#include <cstring>
#include <map>
#include <random>

#include "base/limits.h"
#include "jit/run/program_generated.h"

namespace kiln {
namespace {

/// out[i] = in[i] + 1, or plus the last extent of the launch, over `count` floats cut into `tasks`, or as many as the launch says;
/// with `fails`, reports an index out of range.
class AddOne : public HostExecutable {
 public:
  AddOne(int64_t count, uint64_t tasks, bool fails = false) : m_count(count), m_tasks(tasks), m_fails(fails) {}
  uint64_t tasks() const override { return m_tasks; }
  uint64_t workspace_bytes() const override { return 100; }
  void run(void* const* buffers, void* workspace, LaunchStatus* status, uint64_t first, uint64_t last,
           std::span<const int64_t> extents) const override {
    const auto addend = static_cast<float>(extents.empty() ? 1 : extents.back());
    std::memset(workspace, 7, 100);
    const auto* in = static_cast<const float*>(buffers[0]);
    auto* out = static_cast<float*>(buffers[1]);
    const uint64_t tasks = std::max<uint64_t>(launch_tasks(m_tasks, extents), 1);
    for (int64_t i = m_count * first / tasks; i < static_cast<int64_t>(m_count * last / tasks); ++i)
      out[i] = in[i] + addend;
    if (m_fails) *status = LaunchStatus::index_out_of_range;
  }

 private:
  int64_t m_count;
  uint64_t m_tasks;
  bool m_fails;
};

constexpr int64_t k_count = 37;

flatbuffers::Offset<fb::Tensor> tensor_of(flatbuffers::FlatBufferBuilder& b, int64_t stride = 1) {
  const std::vector<int64_t> dims = {k_count}, strides = {stride};
  return fb::CreateTensor(b, static_cast<uint8_t>(DType::f32), b.CreateVector(dims),
                          stride == 1 ? 0 : b.CreateVector(strides));
}

/// What is wrong with a program between its kernels, each of which is right.
struct Faults {
  std::vector<uint32_t> first = {0, 1}, second = {1, 2};  // buffers of the plan's launches
  std::vector<uint8_t> roles = {0, 1};
  std::vector<int64_t> first_extents = {}, second_extents = {};
  uint64_t tasks = 5;  // of the kernel
  uint64_t plan_scratch_offset = 64;
  int64_t argument_stride = 1;  // of what the plan takes
  std::vector<uint32_t> first_call = {0, 1}, second_call = {1, 2};
  int64_t alias_stride = 1;  // of the output that is the input
};

/// One plan of two launches through scratch: out = in + 2.
class FakeSource : public ArtifactSource {
 public:
  explicit FakeSource(bool fails = false, const Faults& faults = {}) : m_fails(fails), m_tasks(faults.tasks) {
    flatbuffers::FlatBufferBuilder b;
    const std::vector<fb::ArtifactDigest> codes(1);
    const std::vector<flatbuffers::Offset<fb::Buffer>> buffers = {
        fb::CreateBuffer(b, fb::Place::input, 0, 0, 0, tensor_of(b, faults.argument_stride)),
        fb::CreateBuffer(b, fb::Place::scratch, 0, faults.plan_scratch_offset, 4 * k_count),
        fb::CreateBuffer(b, fb::Place::output, 1, 0, 0, tensor_of(b)),
        fb::CreateBuffer(b, fb::Place::scratch, 0, 0, 4 * k_count)};
    const auto launch = [&](const std::vector<uint32_t>& used, const std::vector<int64_t>& extents) {
      const auto stored = b.CreateVector(used);
      const auto roles = b.CreateVector(faults.roles);
      return fb::CreateLaunch(b, 0, stored, roles, extents.empty() ? 0 : b.CreateVector(extents));
    };
    const std::vector<flatbuffers::Offset<fb::Launch>> launches = {launch(faults.first, faults.first_extents),
                                                                   launch(faults.second, faults.second_extents)};
    b.Finish(fb::CreatePlan(b, k_program_version, b.CreateVectorOfStructs(codes), 0, b.CreateVector(buffers),
                            b.CreateVector(launches), 512));
    m_plan.assign(b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize());
  }
  Expected<std::span<const uint8_t>> plan(const Digest&) override { return std::span<const uint8_t>(m_plan); }
  Expected<std::shared_ptr<const Executable>> executable(const Digest&) override {
    ++executables;
    return std::shared_ptr<const Executable>(std::make_shared<AddOne>(k_count, m_tasks, m_fails));
  }

  int executables = 0;
  std::vector<uint8_t> m_plan;

 private:
  bool m_fails;
  uint64_t m_tasks;
};

/// Two calls of the plan, the second on the first's result; the second output is the input.
std::vector<uint8_t> make_program(const Faults& faults = {}) {
  flatbuffers::FlatBufferBuilder b;
  const std::vector<fb::ArtifactDigest> plans(1);
  const std::vector<flatbuffers::Offset<fb::Buffer>> buffers = {
      fb::CreateBuffer(b, fb::Place::input, 0),
      fb::CreateBuffer(b, fb::Place::scratch, 0, 0, 4 * k_count, tensor_of(b)),
      fb::CreateBuffer(b, fb::Place::output, 0)};
  const std::vector<flatbuffers::Offset<fb::Call>> calls = {fb::CreateCall(b, 0, b.CreateVector(faults.first_call)),
                                                            fb::CreateCall(b, 0, b.CreateVector(faults.second_call))};
  const std::vector<flatbuffers::Offset<fb::Tensor>> inputs = {tensor_of(b)};
  const std::vector<flatbuffers::Offset<fb::Tensor>> outputs = {tensor_of(b), tensor_of(b, faults.alias_stride)};
  const std::vector<flatbuffers::Offset<fb::Alias>> aliases = {fb::CreateAlias(b, 1, 0)};
  b.Finish(fb::CreateProgram(b, k_program_version, b.CreateVectorOfStructs(plans), b.CreateVector(buffers),
                             b.CreateVector(calls), 4 * k_count, b.CreateVector(inputs), b.CreateVector(outputs),
                             b.CreateVector(aliases), b.CreateString("test"), 3, 9));
  return {b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize()};
}

TEST(Program, CallsOfAPlanRunInOrderOnAnyNumberOfThreads) {
  FakeSource source;
  const auto bytes = make_program();
  auto program = Program::load(bytes, source);
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  EXPECT_EQ(source.executables, 1);  // one kernel, four launches
  EXPECT_EQ((*program)->launch_names().size(), 4u);
  EXPECT_EQ((*program)->generation(), 3u);
  EXPECT_EQ((*program)->output_alias(1), 0u);
  std::vector<float> in(k_count);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
  for (uint32_t threads : {1u, 2u, 3u, 16u}) {
    std::vector<float> out(in.size(), -1);
    const void* inputs[] = {in.data()};
    void* outputs[] = {out.data(), nullptr};
    ASSERT_TRUE((*program)->run(inputs, outputs, threads).ok());
    for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(out[i], in[i] + 4);
  }
}

TEST(Program, EachLaunchHasItsExtents) {
  FakeSource source(false, {.first_extents = {3, 10}, .second_extents = {200}});
  auto program = Program::load(make_program(), source);
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  const std::vector<float> in(k_count, 1);
  std::vector<float> out(k_count);
  const void* inputs[] = {in.data()};
  void* outputs[] = {out.data(), nullptr};
  ASSERT_TRUE((*program)->run(inputs, outputs, 2).ok());
  for (const float value : out) EXPECT_EQ(value, 1 + 2 * (10 + 200));
}

TEST(Program, ALaunchSaysHowManyTasksItHasWhereItsKernelDoesNot) {
  FakeSource source(false, {.first_extents = {3, 10}, .second_extents = {11, 200}, .tasks = 0});
  auto program = Program::load(make_program(), source);
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  const std::vector<float> in(k_count, 1);
  for (const uint32_t threads : {1U, 2U}) {
    std::vector<float> out(k_count, -1);
    const void* inputs[] = {in.data()};
    void* outputs[] = {out.data(), nullptr};
    ASSERT_TRUE((*program)->run(inputs, outputs, threads).ok());
    for (const float value : out) EXPECT_EQ(value, 1 + 2 * (10 + 200));
  }
}

TEST(Program, AnIndexOutOfRangeIsATypedError) {
  FakeSource source(true);
  auto program = Program::load(make_program(), source);
  ASSERT_TRUE(program.ok());
  std::vector<float> in(k_count), out(k_count);
  const void* inputs[] = {in.data()};
  void* outputs[] = {out.data(), nullptr};
  EXPECT_EQ((*program)->run(inputs, outputs, 2).code(), StatusCode::out_of_range);
}

/// What loading a program with a planted fault says.
std::string refusal(const Faults& faults) {
  FakeSource source(false, faults);
  const auto program = Program::load(make_program(faults), source);
  if (program.ok()) return "it loads";
  EXPECT_EQ(program.status().code(), StatusCode::data_loss);
  return program.status().message();
}

TEST(Program, WhatDoesNotFitTogetherIsRefused) {
  EXPECT_EQ(refusal({}), "it loads");
  EXPECT_EQ(refusal({.second = {3, 2}}), "program: a launch reads what nothing wrote");
  EXPECT_EQ(refusal({.first_call = {1, 2}, .second_call = {0, 1}}), "program: a launch reads what nothing wrote");
  EXPECT_EQ(refusal({.first = {0, 2}, .second = {2, 1}, .first_call = {0, 1}, .second_call = {0, 2}}), "it loads");
  EXPECT_EQ(refusal({.roles = {1, 0}}), "program: a launch writes an input");
  EXPECT_EQ(refusal({.first = {0, 0}}), "program: a launch writes an input");
  EXPECT_EQ(refusal({.first = {0, 1}, .second = {1, 1}}), "program: a launch writes over its own buffers");
  EXPECT_EQ(refusal({.second = {1, 3}, .plan_scratch_offset = 32}), "program: a launch writes over its own buffers");
  EXPECT_EQ(refusal({.roles = {0}}), "program: a launch without the roles of its buffers");
  EXPECT_EQ(refusal({.argument_stride = 2}), "program: an argument in another layout");
  EXPECT_EQ(refusal({.alias_stride = 3}), "program: an output is an input in another layout");
  EXPECT_EQ(refusal({.second_call = {1, 1}}), "program: nothing writes an output");
  EXPECT_EQ(refusal({.first_call = {0, 0}}), "program: a launch writes an input");
}

TEST(Program, ExtentsThatNoTensorHasAreRefused) {
  const std::vector<int64_t> most(limits::k_launch_extents, 1), too_many(limits::k_launch_extents + 1, 1);
  EXPECT_EQ(refusal({.first_extents = most, .second_extents = {0, limits::k_tensor_elements}}), "it loads");
  EXPECT_EQ(refusal({.first_extents = too_many}), "program: a launch with too many extents");
  EXPECT_EQ(refusal({.second_extents = {-1}}), "program: an extent that no tensor has");
  EXPECT_EQ(refusal({.second_extents = {1, limits::k_tensor_elements + 1}}), "program: an extent that no tensor has");
  EXPECT_EQ(refusal({.first_extents = {4}, .second_extents = {}, .tasks = 0}), "program: a launch without tasks");
  EXPECT_EQ(refusal({.first_extents = {4}, .second_extents = {0, 4}, .tasks = 0}), "program: a launch without tasks");
}

TEST(Program, AnOutputThatNothingWritesIsRefused) {
  EXPECT_EQ(refusal({.second = {1, 3}, .plan_scratch_offset = 192, .second_call = {0, 2}}),
            "program: nothing writes an output");
}

TEST(Program, TheNumberOfTensorsIsChecked) {
  FakeSource source;
  auto program = Program::load(make_program(), source);
  EXPECT_EQ((*program)->run({}, {}, 1).code(), StatusCode::invalid_argument);
}

TEST(Program, DamagedBytesAreRefusedOrHarmless) {
  const auto good = make_program();
  std::mt19937 random(5);
  size_t refused = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    FakeSource source;
    auto bytes = good;
    auto& target = trial % 2 ? bytes : source.m_plan;
    target[random() % target.size()] = static_cast<uint8_t>(random());
    auto program = Program::load(bytes, source);
    refused += !program.ok();
  }
  EXPECT_GT(refused, 1'000u);
}

TEST(Program, EveryTruncationIsRefused) {
  const auto good = make_program();
  for (size_t size = 0; size + 4 < good.size(); size += 4) {
    FakeSource source;
    EXPECT_FALSE(Program::load(std::span(good.data(), size), source).ok()) << size;
  }
}

}  // namespace
}  // namespace kiln
