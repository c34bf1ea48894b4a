#include <gtest/gtest.h>

#include "backends/cpu/compile/attention/decode.h"
#include "backends/cpu/compile/attention/schedule.h"
#include "tests/backends/cpu/kernel_check.h"
#include "tests/conformance/attention_case.h"

namespace kiln::cpu {
namespace {

using conformance::attention_cases;
using Case = conformance::AttentionCase;
using SpecBuilder = conformance::AttentionBuilder;

/// Probabilities err by 2^-22 or so of themselves, sums of up to k of them wander; f16 and bf16 round the output.
double tolerance(DType dtype) { return dtype == DType::f32 ? 4e-6 : dtype == DType::f16 ? 2e-3 : 1.6e-2; }

void check_forward(const Case& c, size_t candidate = 0, uint64_t ranges = 1, double spread = 2) {
  const KernelSpec spec = SpecBuilder(c).forward();
  for (const CpuTarget* target : runnable_targets()) {
    check_kernel(spec, *target, tolerance(c.dtype) * spread, candidate, ranges, spread);
    if (testing::Test::HasFatalFailure()) return;
  }
}

/// The gradient needs a forward pass that fits its inputs: the reference makes it, in f64 rounded to the buffers.
std::vector<GuardedBuffer> backward_buffers(const Case& c) {
  const KernelSpec forward = SpecBuilder(c).forward(), spec = SpecBuilder(c).backward();
  std::vector<GuardedBuffer> inputs = make_buffers(spec, 11, 2);
  std::vector<GuardedBuffer> of_forward = make_buffers(forward, 11, 2);
  for (size_t b = 0; b < forward.buffers.size(); ++b) {
    if (forward.buffers[b].role == BufferRole::output) continue;
    for (int64_t i = 0; i < inputs[b].elements(); ++i) of_forward[b].set(i, inputs[b].at(i));
  }
  EXPECT_TRUE(run_reference(forward, pointers(of_forward)).ok());
  for (size_t b = 0; b < forward.buffers.size(); ++b) {
    for (int64_t i = 0; i < inputs[b].elements(); ++i) inputs[b].set(i, of_forward[b].at(i));
  }
  return inputs;
}

/// Sums over all queries or keys of products that err as the forward pass's do.
double backward_tolerance(DType dtype) { return (dtype == DType::f32 ? 1e-5 : 2 * tolerance(dtype)) * 4; }

void check_backward_on(const Case& c, const CpuTarget& target, const Schedule& schedule, uint64_t ranges) {
  check_schedule_on(SpecBuilder(c).backward(), backward_buffers(c), target, backward_tolerance(c.dtype), schedule,
                    ranges);
}

void check_backward(const Case& c, size_t candidate = 0, uint64_t ranges = 1) {
  const std::vector<GuardedBuffer> inputs = backward_buffers(c);
  for (const CpuTarget* target : runnable_targets()) {
    check_kernel_on(SpecBuilder(c).backward(), inputs, *target, backward_tolerance(c.dtype), candidate, ranges);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Attention, the_forward_pass_gives_the_reference) {
  for (const Case& c : attention_cases()) check_forward(c);
}

/// Every case of the list, cut down to few queries, and more.
std::vector<Case> cases_of_few_queries() {
  std::vector<Case> few{{.heads = 8, .kv_heads = 2, .q_len = 1, .k_len = 300, .head_dim = 128, .value_dim = 80},
                        {.heads = 6, .kv_heads = 1, .q_len = 5, .k_len = 129, .head_dim = 64, .dtype = DType::bf16},
                        {.heads = 7, .kv_heads = 7, .q_len = 1, .k_len = 511, .head_dim = 64, .dtype = DType::f16},
                        {.heads = 4,
                         .kv_heads = 2,
                         .q_len = 3,
                         .k_len = 250,
                         .head_dim = 32,
                         .causal = true,
                         .causal_offset = 247,
                         .bias = true},
                        {.heads = 4, .kv_heads = 2, .q_len = 3, .k_len = 300, .causal = true, .causal_offset = 20},
                        {.q_len = 5, .k_len = 150, .causal = true, .causal_offset = -3},    // rows without keys
                        {.q_len = 5, .k_len = 150, .causal = true, .causal_offset = -10}};  // no row has any
  for (Case c : attention_cases()) {
    c.causal_offset += c.causal ? c.q_len - std::min<int64_t>(c.q_len, 7) : 0;
    c.q_len = std::min<int64_t>(c.q_len, 7);
    few.push_back(c);
  }
  return few;
}

/// Candidates of both passes, the first of which are for few queries.
TEST(Attention, few_queries_have_kernels_of_their_own) {
  for (const Case& c : cases_of_few_queries()) {
    const std::vector<GuardedBuffer> inputs = backward_buffers(c);
    const auto check = [&](const KernelSpec& spec, const std::vector<GuardedBuffer>& buffers, double allowed) {
      for (const CpuTarget* target : runnable_targets()) {
        EXPECT_EQ(open_schedule(candidates_of(spec, *target).front().bytes)->implementation,
                  DecodeSchedule::k_implementation);
        for (size_t i = 0; i < 4; ++i) {
          check_kernel_on(spec, buffers, *target, allowed, i, 1 + i % 3);
          if (HasFatalFailure()) return;
        }
      }
    };
    const KernelSpec forward = SpecBuilder(c).forward();
    check(forward, make_buffers(forward, 7, 2), 2 * tolerance(c.dtype));
    check(SpecBuilder(c).backward(), inputs, backward_tolerance(c.dtype));
    if (HasFatalFailure()) return;
  }
}

TEST(Attention, gradients_of_few_queries_are_the_same_however_the_grid_is_shared) {
  const Case c{.batch = 2, .heads = 6, .kv_heads = 3, .q_len = 3, .k_len = 333, .head_dim = 40, .causal = true};
  const KernelSpec spec = SpecBuilder(c).backward();
  const std::vector<GuardedBuffer> inputs = backward_buffers(c);
  for (const CpuTarget* target : runnable_targets()) {
    const auto image =
        CpuCompileBackend().compile(spec, candidates_of(spec, *target).front(), {"cpu", std::string(target->name)});
    ASSERT_TRUE(image.ok()) << image.status().to_string();
    const LoadedImage loaded(*image);
    std::vector<GuardedBuffer> whole = inputs;
    run_in_ranges(loaded.executable(), pointers(whole), 1);
    for (const uint64_t ranges : {2, 5, 6}) {
      std::vector<GuardedBuffer> shared = inputs;
      run_in_ranges(loaded.executable(), pointers(shared), ranges);
      EXPECT_EQ(shared, whole) << target->name << ": in " << ranges << " ranges";
    }
  }
}

TEST(Attention, the_backward_pass_gives_the_reference) {
  for (const Case& c : attention_cases()) check_backward(c);
}

TEST(Attention, half_precision_gives_the_reference) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    check_forward({.heads = 2, .kv_heads = 1, .q_len = 70, .k_len = 140, .head_dim = 40, .dtype = dtype});
    check_forward({.q_len = 70, .k_len = 70, .head_dim = 64, .causal = true, .dtype = dtype});
    check_backward(
        {.heads = 2, .kv_heads = 1, .q_len = 70, .k_len = 70, .head_dim = 40, .causal = true, .dtype = dtype});
  }
}

/// All cases by choices that no list of candidates has, where the target's instructions work.
template <typename Choices>
void check_choices_of_bf16(const char* name, std::initializer_list<AttentionSchedule> choices) {
  const CpuTarget& target = *find_target(name);
  if (!can_emulate(target)) GTEST_SKIP() << "this host has no AVX512-BF16";
  for (Case c : attention_cases()) {
    c.dtype = DType::bf16;
    for (const AttentionSchedule& each : choices) {
      const Choices of_row{each};
      const Schedule schedule{encode_choices(of_row), of_row.describe(target)};
      const KernelSpec forward = SpecBuilder(c).forward();
      check_schedule_on(forward, make_buffers(forward, 7, 2), target, 2 * tolerance(c.dtype), schedule, 3);
      check_backward_on(c, target, schedule, 3);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Attention, pairs_of_bf16_give_the_reference) {
  check_choices_of_bf16<Bf16AttentionSchedule>("x86-64-v4-bf16", {{4, 132, 6}, {1, 44, 4}});
}

TEST(Attention, tiles_of_bf16_give_the_reference) {
  check_choices_of_bf16<AmxAttentionSchedule>("x86-64-v4-amx", {{4, 160, 32}, {2, 64, 32}});
}

TEST(Attention, bf16_is_multiplied_by_what_is_fastest_there) {
  const KernelSpec spec = SpecBuilder({.q_len = 64, .k_len = 64, .dtype = DType::bf16}).forward();
  const CpuCompileBackend backend;
  const auto best = [&](const char* target, const char* model) {
    const auto candidates = backend.candidates(spec, {"cpu", target}, {.model = model});
    return std::string(open_schedule(candidates.front().bytes)->implementation);
  };
  EXPECT_EQ(best("x86-64-v4-amx", "Intel(R) Xeon(R) Processor"), AmxAttentionSchedule::k_implementation);
  EXPECT_EQ(best("x86-64-v4-bf16", "Intel(R) Xeon(R) Processor"), AttentionSchedule::k_implementation);
  EXPECT_EQ(best("x86-64-v4-bf16", "AMD EPYC"), Bf16AttentionSchedule::k_implementation);
  EXPECT_EQ(best("x86-64-v4", "AMD EPYC"), AttentionSchedule::k_implementation);
}

/// Rounded probabilities are no part of it.
TEST(Attention, logsumexp_of_bf16_is_as_exact_as_f32) {
  const KernelSpec spec =
      SpecBuilder(
          {.heads = 2, .kv_heads = 1, .q_len = 70, .k_len = 140, .head_dim = 41, .causal = true, .dtype = DType::bf16})
          .forward();
  const uint32_t lse = std::get<AttentionSpec>(spec.kernel).lse.buffer;
  for (const CpuTarget* target : runnable_targets()) {
    const Target name{"cpu", std::string(target->name)};
    for (const Schedule& schedule : default_candidates(CpuCompileBackend(), spec, name)) {
      const auto image = CpuCompileBackend().compile(spec, schedule, name);
      ASSERT_TRUE(image.ok()) << image.status().to_string();
      std::vector<GuardedBuffer> ours = make_buffers(spec, 7, 2), exact = ours;
      run_in_ranges(LoadedImage(*image).executable(), pointers(ours), 1);
      ASSERT_TRUE(run_reference(spec, pointers(exact)).ok());
      for (int64_t i = 0; i < exact[lse].elements(); ++i) {
        ASSERT_NEAR(ours[lse].at(i), exact[lse].at(i), 8e-6 * (1 + std::abs(exact[lse].at(i)))) << schedule.description;
      }
    }
  }
}

TEST(Attention, numbers_that_are_none_reach_what_the_reference_says) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const KernelSpec spec = SpecBuilder({.q_len = 70, .k_len = 71, .head_dim = 16, .dtype = dtype}).forward();
    const auto& attention = std::get<AttentionSpec>(spec.kernel);
    std::vector<GuardedBuffer> buffers = make_buffers(spec, 7, 2);
    buffers[attention.q.buffer].set(3 * 16 + 1, std::numeric_limits<double>::quiet_NaN());
    buffers[attention.k.buffer].set(70 * 16 + 2, infinity);  // for some queries the largest score, for some the least
    buffers[attention.v.buffer].set(67 * 16 + 5, -infinity);
    for (const CpuTarget* target : runnable_targets()) {
      check_kernel_on(spec, buffers, *target, 2 * tolerance(dtype));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Attention, large_scores_do_not_overflow) {
  // Scores reach 7000: a unit in the last place of one is 5e-4, which its probability errs by, relatively; values are 30.
  const KernelSpec spec = SpecBuilder({.q_len = 40, .k_len = 200, .head_dim = 64}).forward();
  for (const CpuTarget* target : runnable_targets()) check_kernel(spec, *target, 2e-2, 0, 1, 30);
}

TEST(Attention, keys_that_the_score_leaves_out_are_not_read) {
  const Case c{.q_len = 40, .k_len = 700, .head_dim = 16, .window = 8};
  Case of_few = c;
  of_few.heads = 2;
  of_few.q_len = 3;
  for (const KernelSpec& spec : {SpecBuilder(c).forward(), SpecBuilder(c).backward(), SpecBuilder(of_few).forward(),
                                 SpecBuilder(of_few).backward()}) {
    std::vector<GuardedBuffer> clean = make_buffers(spec, 7), spoilt = clean;
    for (const size_t operand : {1, 2}) {
      for (int64_t i = 400 * c.head_dim; i < spoilt[operand].elements(); ++i) spoilt[operand].set(i, NAN);
    }
    for (const CpuTarget* target : runnable_targets()) {
      const auto image =
          CpuCompileBackend().compile(spec, candidates_of(spec, *target).front(), {"cpu", std::string(target->name)});
      ASSERT_TRUE(image.ok()) << image.status().to_string();
      const LoadedImage loaded(*image);
      std::vector<GuardedBuffer> expected = clean, got = spoilt;
      run_in_ranges(loaded.executable(), pointers(expected), 1);
      run_in_ranges(loaded.executable(), pointers(got), 1);
      for (size_t b = 3; b < got.size(); ++b) EXPECT_EQ(got[b], expected[b]) << target->name << ": buffer " << b;
    }
  }
}

TEST(Attention, every_candidate_is_right_however_the_grid_is_shared) {
  const Case c{.batch = 2, .heads = 2, .kv_heads = 2, .q_len = 200, .k_len = 200, .head_dim = 24, .causal = true};
  const CpuCompileBackend backend;
  const Target target{"cpu", std::string(runnable_targets().front()->name)};
  const size_t forward = default_candidates(backend, SpecBuilder(c).forward(), target).size();
  for (size_t i = 0; i < forward; ++i) {
    check_kernel(SpecBuilder(c).forward(), *runnable_targets().front(), 2 * tolerance(c.dtype), i, 1 + i % 4, 2);
  }
  const size_t backward = default_candidates(backend, SpecBuilder(c).backward(), target).size();
  for (size_t i = 0; i < backward && !HasFatalFailure(); ++i) {
    check_kernel(SpecBuilder(c).backward(), *runnable_targets().front(), 1e-3, i, 1 + i % 4, 0.2);
  }
}

TEST(Attention, schedules_of_no_list_are_as_good) {
  const Case c{.batch = 2, .heads = 2, .kv_heads = 2, .q_len = 100, .k_len = 130, .head_dim = 24, .causal = true};
  const KernelSpec forward = SpecBuilder(c).forward(), backward = SpecBuilder(c).backward();
  for (const CpuTarget* target : runnable_targets()) {
    for (const AttentionSchedule& choices : {AttentionSchedule{1, 33, 11}, AttentionSchedule{3, 80, 5}}) {
      const Schedule schedule{encode_choices(choices), choices.describe(*target)};
      check_schedule_on(forward, make_buffers(forward, 7, 2), *target, 2 * tolerance(c.dtype), schedule, 3);
      check_schedule_on(backward, make_buffers(backward, 7, 0.2), *target, 1e-3, schedule, 3);
    }
  }
}

TEST(Attention, schedules_that_no_kernel_can_be_made_by_are_refused) {
  const KernelSpec spec = SpecBuilder({.q_len = 40, .k_len = 50, .head_dim = 16}).forward();
  const KernelSpec halves = SpecBuilder({.q_len = 40, .k_len = 50, .head_dim = 16, .dtype = DType::bf16}).forward();
  for (const CpuTarget* target : runnable_targets()) {
    expect_refused(spec, *target, AttentionSchedule{2, 60, 8}, "no number of tiles");
    expect_refused(spec, *target, AttentionSchedule{0, 64, 8}, "a zero extent");
    expect_refused(spec, *target, AttentionSchedule{2, 64, 64}, "registers");
    expect_refused(spec, *target, AttentionSchedule{1, 8192, 8}, "too large");
    expect_refused(spec, *target, DecodeSchedule{0}, "a zero extent");
    if (target->has(Feature::avx512_bf16)) {
      expect_refused(halves, *target, Bf16AttentionSchedule{{2, 66, 11}}, "no whole pairs");
      expect_refused(halves, *target, Bf16AttentionSchedule{{2, 60, 8}}, "no number of tiles");
    }
  }
  const CpuTarget& tiles = *find_target("x86-64-v4-amx");
  expect_refused(halves, tiles, AmxAttentionSchedule{{4, 128, 8}}, "not two registers high");
  expect_refused(halves, tiles, AmxAttentionSchedule{{4, 144, 32}}, "no number of tiles");
  expect_refused(halves, tiles, AmxAttentionSchedule{{3, 128, 32}}, "no number of tiles");
  for (const CpuTarget* target : runnable_targets()) {
    expect_refused(spec, *target, DecodeSchedule{8192}, "too large");
    expect_refused(spec, *target, DecodeSchedule{70}, "no number of vectors");
  }
}

TEST(Attention, bytes_of_schedules_are_trusted_with_nothing) {
  const Case c{.q_len = 40, .k_len = 50, .head_dim = 16};
  Case of_halves = c;
  of_halves.dtype = DType::bf16;
  const KernelSpec halves = SpecBuilder(of_halves).forward();
  expect_bytes_are_trusted_with_nothing<AmxAttentionSchedule, AttentionSchedule>(halves, *find_target("x86-64-v4-amx"));
  for (const CpuTarget* target : runnable_targets()) {
    expect_bytes_are_trusted_with_nothing<AttentionSchedule>(SpecBuilder(c).forward(), *target);
    expect_bytes_are_trusted_with_nothing<AttentionSchedule>(SpecBuilder(c).backward(), *target);
    expect_bytes_are_trusted_with_nothing<AttentionSchedule, Bf16AttentionSchedule, AmxAttentionSchedule>(halves,
                                                                                                          *target);
    const Case few{.q_len = 1, .k_len = 50, .head_dim = 16};
    for (const KernelSpec& spec : {SpecBuilder(few).forward(), SpecBuilder(few).backward()}) {
      expect_bytes_are_trusted_with_nothing<DecodeSchedule, AttentionSchedule>(spec, *target);
    }
  }
}

}  // namespace
}  // namespace kiln::cpu
