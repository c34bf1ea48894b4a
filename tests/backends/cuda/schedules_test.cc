// Schedules as records hold them: what they say is checked against the spec, and nothing else about them is trusted. Needs
// no compiler: it looks at sources.
#include <gtest/gtest.h>

#include <set>

#include "backends/cuda/compile/attention_schedule.h"
#include "backends/cuda/compile/backend.h"
#include "backends/cuda/compile/gemm_schedule.h"
#include "backends/cuda/compile/loops_schedule.h"
#include "backends/schedule_bytes.h"
#include "tests/backends/cuda/chosen_gemms.h"
#include "tests/conformance/attention_case.h"

namespace kiln::cuda {
namespace {

using Kind = GemmSchedule::Kind;

const Target k_hopper{"cuda", "sm_90a"}, k_ampere{"cuda", "sm_80"};
const CudaTarget& k_hopper_row = *find_cuda_target("sm_90a");

Status made(const KernelSpec& spec, std::vector<uint8_t> bytes, const Target& target = k_hopper) {
  return CudaCompileBackend::source(spec, {std::move(bytes), "a test's"}, target).status();
}

void expect_refused(const KernelSpec& spec, std::vector<uint8_t> bytes, std::string_view why,
                    const Target& target = k_hopper) {
  const Status status = made(spec, std::move(bytes), target);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << why;
  EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
}

std::vector<uint8_t> bytes_of(const GemmSchedule& schedule) { return to_schedule(schedule).bytes; }

TEST(CudaSchedules, of_every_candidate_are_given_back_and_not_trusted_when_damaged) {
  std::vector<NamedSpec> specs = chosen_loops();
  const std::vector<NamedSpec> gemms = chosen_gemms();
  specs.insert(specs.end(), gemms.begin(), gemms.end());
  for (const NamedSpec& named : specs) {
    for (const Schedule& schedule : default_candidates(CudaCompileBackend(), named.spec, k_hopper)) {
      if (std::holds_alternative<GemmSpec>(named.spec.kernel)) {
        const auto parsed = gemm_schedule_of(schedule.bytes, problem_of(named.spec), k_hopper_row);
        EXPECT_TRUE(parsed.ok() && bytes_of(*parsed) == schedule.bytes) << named.name;
      } else {
        const auto parsed = parse_choices<LoopsSchedule>(schedule.bytes);
        EXPECT_TRUE(parsed.ok() && encode_choices(*parsed) == schedule.bytes) << named.name;
      }
      for (size_t size = 0; size < schedule.bytes.size(); ++size) {
        const auto cut = schedule.bytes.begin() + static_cast<ptrdiff_t>(size);
        EXPECT_EQ(made(named.spec, {schedule.bytes.begin(), cut}).code(), StatusCode::invalid_argument) << named.name;
      }
      std::vector<uint8_t> newer = schedule.bytes;
      ++newer[sizeof(uint32_t) + open_schedule(newer)->implementation.size()];
      expect_refused(
          named.spec, newer,
          std::holds_alternative<LoopsSpec>(named.spec.kernel) ? "version 3, expected 2" : "version 2, expected 1");
    }
  }
}

TEST(CudaSchedules, of_windows_pack_them_where_many_tiles_read_them) {
  const auto first = [](const conformance::WindowsCase& c, const Target& target) {
    return default_candidates(CudaCompileBackend(), conformance::windows_product(c), target).front().description;
  };
  const conformance::WindowsCase large{.channels = 64, .filters = 64, .extents = {58, 58}, .dtype = DType::bf16};
  const conformance::WindowsCase small{.dtype = DType::bf16}, wide{.channels = 64, .filters = 64, .extents = {58, 58}};
  EXPECT_TRUE(first(large, k_hopper).starts_with("packed_wgmma"));
  EXPECT_TRUE(first(large, k_ampere).starts_with("mma"));
  EXPECT_TRUE(first(small, k_hopper).starts_with("mma"));
  EXPECT_TRUE(first(wide, k_hopper).starts_with("simple"));
}

TEST(CudaSchedules, that_fit_the_spec_are_taken_from_no_list) {
  const KernelSpec half = conformance::gemm({.m = 512, .n = 512, .k = 256, .dtype = DType::bf16});
  const KernelSpec wide = conformance::gemm({.m = 512, .n = 512, .k = 256});
  EXPECT_TRUE(made(half, bytes_of({Kind::wgmma, 64, 256, 0, 0, 3, 2})).ok());
  EXPECT_TRUE(made(half, bytes_of({Kind::mma, 128, 128, 4, 2, 2, 1})).ok());
  EXPECT_TRUE(made(wide, bytes_of({Kind::simple, 64, 128, 0, 0, 2, 1})).ok());
  const KernelSpec rows = conformance::row_softmax(DType::f32, 64, 1024);
  const LoopsSchedule by_rows{.members = 64, .columns = 8, .run = 2, .members_are_neighbours = true};
  EXPECT_TRUE(made(rows, encode_choices(by_rows)).ok());
}

TEST(CudaSchedules, that_the_spec_has_no_kernel_for_are_refused_with_the_reason) {
  const KernelSpec half = conformance::gemm({.m = 512, .n = 512, .k = 256, .dtype = DType::bf16});
  const KernelSpec wide = conformance::gemm({.m = 512, .n = 512, .k = 256});
  const std::string_view not_here = "not for this product on this target", no_tile = "the template makes no such tile";
  expect_refused(half, bytes_of({Kind::simple, 64, 64, 0, 0, 2, 1}), not_here);
  expect_refused(wide, bytes_of({Kind::mma, 64, 64, 2, 2, 4, 1}), not_here);
  expect_refused(half, bytes_of({Kind::wgmma, 64, 64, 0, 0, 8, 1}), not_here, k_ampere);
  expect_refused(half, bytes_of({Kind::packed_wgmma, 64, 64, 0, 0, 8, 1}), not_here);
  expect_refused(half, bytes_of({Kind::wgmma, 192, 64, 0, 0, 2, 1}), no_tile);
  expect_refused(half, bytes_of({Kind::wgmma, 64, 64, 0, 0, 2, 2}), no_tile);
  expect_refused(half, bytes_of({Kind::mma, 64, 64, 3, 2, 4, 1}), no_tile);
  expect_refused(half, bytes_of({Kind::mma, 64, 64, 0, 0, 4, 1}), no_tile);
  expect_refused(wide, bytes_of({Kind::simple, 100, 64, 0, 0, 2, 1}), no_tile);
  expect_refused(half, bytes_of({Kind::wgmma, 128, 256, 0, 0, 16, 1}), "more shared memory than a block has");
  expect_refused(half, encode_choices(LoopsSchedule()), "no implementation \"loops\"");

  const KernelSpec rows = conformance::row_softmax(DType::f32, 64, 1022);
  expect_refused(rows, encode_choices(LoopsSchedule{.members = 3}), "no such numbers");
  expect_refused(rows, encode_choices(LoopsSchedule{.members = 16, .columns = 128}), "no block of 32 to 1024 threads");
  expect_refused(rows, encode_choices(LoopsSchedule{.ahead = 3}), "no such numbers");
  expect_refused(rows, encode_choices(LoopsSchedule{.shares = 2}), "nothing says where stores may meet");
  expect_refused(rows, encode_choices(LoopsSchedule{.run = 2}), "no runs of that length");
  const LoopsSchedule long_runs{.members = 32, .columns = 8, .run = 4, .members_are_neighbours = true};
  expect_refused(rows, encode_choices(long_runs), "no runs of that length");
  const KernelSpec points = bias_gelu_residual(DType::f32, 64, 64);
  expect_refused(points, encode_choices(LoopsSchedule{.members = 2}), "nothing is reduced");
}

TEST(CudaSchedules, of_attention_that_the_spec_has_no_kernel_for_are_refused_with_the_reason) {
  using AttentionKind = AttentionSchedule::Kind;
  using conformance::AttentionBuilder;
  const auto bytes_for = [](const AttentionSchedule& schedule) { return to_schedule(schedule).bytes; };
  const std::vector<uint8_t> listed = bytes_for({AttentionKind::wgmma, 128, 64, 2});
  const std::string_view not_here = "not for this attention on this target",
                         no_tile = "the template makes no such tile";
  conformance::AttentionCase c{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 100, .k_len = 300, .head_dim = 128};
  expect_refused(AttentionBuilder(c).forward(), listed, not_here);
  c.dtype = DType::bf16;
  for (const bool interleaved : {false, true}) {
    c.interleaved = interleaved;
    for (const KernelSpec& spec : {AttentionBuilder(c).forward(), AttentionBuilder(c).backward()}) {
      EXPECT_TRUE(made(spec, listed).ok()) << made(spec, listed).to_string();
      expect_refused(spec, listed, not_here, k_ampere);
      for (const AttentionSchedule& schedule : {AttentionSchedule{AttentionKind::wgmma, 96, 64, 2},
                                                {AttentionKind::wgmma, 256, 64, 2},
                                                {AttentionKind::wgmma, 128, 48, 2},
                                                {AttentionKind::wgmma, 128, 256, 2},
                                                {AttentionKind::wgmma, 128, 64, 1}}) {
        expect_refused(spec, bytes_for(schedule), no_tile);
      }
      expect_refused(spec, bytes_for({AttentionKind::wgmma, 128, 64, 8}), "more shared memory than a block has");
    }
  }
  conformance::AttentionCase few = c, odd = c, strided = c;
  few.q_len = 1;
  odd.head_dim = 100;
  strided.strided = true;
  for (const auto& other : {few, odd, strided}) expect_refused(AttentionBuilder(other).forward(), listed, not_here);
}

TEST(CudaSchedules, of_attention_have_keys_in_parts_where_blocks_are_fewer_than_multiprocessors) {
  const auto first_on = [](conformance::AttentionCase c, uint32_t cores) {
    const KernelSpec spec = conformance::AttentionBuilder(c).forward();
    return ranked_schedules(attention_problem_of(spec), k_hopper_row, {.cores = cores}).front();
  };
  conformance::AttentionCase few{.heads = 32, .kv_heads = 8, .q_len = 1, .k_len = 8192, .head_dim = 128};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    few.dtype = dtype;
    few.batch = 1;
    EXPECT_GE(first_on(few, 132).parts, 16u) << to_string(dtype);
    few.batch = 8;
    EXPECT_EQ(first_on(few, 4).parts, 1u) << to_string(dtype);
    const uint32_t of_many_places = first_on(few, 132).parts;
    EXPECT_TRUE(of_many_places > 1 && of_many_places < 16) << of_many_places;
  }
  few.k_len = 256;
  EXPECT_EQ(first_on(few, 132).parts, 1u) << "another launch takes longer";
  few.batch = 1, few.q_len = 16, few.k_len = 8192;
  EXPECT_EQ(first_on(few, 132).kind, AttentionSchedule::Kind::wgmma);
  EXPECT_EQ(first_on(few, 132).parts, 16u);
  const KernelSpec gradient = conformance::AttentionBuilder(few).backward();
  for (const auto& schedule : ranked_schedules(attention_problem_of(gradient), k_hopper_row, {.cores = 132})) {
    EXPECT_EQ(schedule.parts, 1u) << schedule.describe();
  }
}

TEST(CudaSchedules, of_every_kind_of_attention_with_keys_in_parts_are_first_in_the_conformance_suite) {
  std::set<std::string_view> kinds;
  for (conformance::AttentionCase c : conformance::attention_cases()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      c.dtype = dtype;
      const KernelSpec spec = conformance::AttentionBuilder(c).forward();
      const AttentionProblem problem = attention_problem_of(spec);
      const AttentionSchedule first = ranked_schedules(problem, k_hopper_row, default_machine(k_hopper_row)).front();
      if (first.parts > 1) kinds.insert(implementation_of(problem, first.kind)->name);
    }
  }
  EXPECT_EQ(kinds, (std::set<std::string_view>{"mma", "simple", "wgmma"}));
}

TEST(CudaSchedules, of_attention_that_leave_parts_launch_what_combines_them_in_each_alternative) {
  conformance::AttentionCase c{.heads = 32, .kv_heads = 8, .q_len = 16, .k_len = 8192, .head_dim = 128};
  c.dtype = DType::bf16;
  const KernelSpec spec = conformance::AttentionBuilder(c).forward();
  const AttentionSchedule best = ranked_schedules(attention_problem_of(spec), k_hopper_row, {.cores = 132}).front();
  const auto source = CudaCompileBackend::source(spec, to_schedule(best), k_hopper);
  ASSERT_TRUE(source.ok()) << source.status().to_string();
  ASSERT_EQ(source->kernels.size(), 4u);  // the best, the best for any address
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(source->kernels[i].record.is_followed, i % 2 == 0);
    EXPECT_EQ(source->kernels[i].record.entry.ends_with("_combine"), i % 2 == 1) << source->kernels[i].record.entry;
  }
  ASSERT_EQ(source->workspace_parts.size(), 1u);
  EXPECT_GE(source->workspace_parts.front(), best.workspace_elements(attention_problem_of(spec)) * 4);
}

TEST(CudaSchedules, of_attention_in_parts_that_keys_do_not_have_are_refused) {
  using AttentionKind = AttentionSchedule::Kind;
  const std::string_view why = "not so many parts of keys";
  conformance::AttentionCase c{.heads = 4, .kv_heads = 2, .q_len = 3, .k_len = 300, .head_dim = 128};
  const KernelSpec forward = conformance::AttentionBuilder(c).forward();
  const auto bytes_for = [](uint32_t columns, uint32_t parts) {
    return to_schedule(AttentionSchedule{AttentionKind::simple, 16, columns, 1, parts}).bytes;
  };
  EXPECT_TRUE(made(forward, bytes_for(32, 10)).ok());
  for (const uint32_t parts : {0u, 11u, 1u << 31}) expect_refused(forward, bytes_for(32, parts), why);
  expect_refused(conformance::AttentionBuilder(c).backward(), bytes_for(32, 2), why);
  c.k_len = 1 << 16;
  expect_refused(conformance::AttentionBuilder(c).forward(), bytes_for(16, 1000), why);
}

TEST(CudaSchedules, follow_what_moves_most_not_what_is_widest) {
  const auto first_of = [](const KernelSpec& spec) {
    const auto bytes = default_candidates(CudaCompileBackend(), spec, k_hopper).front().bytes;
    return parse_choices<LoopsSchedule>(bytes).value();
  };
  // A wide element for each row beside rows of narrow ones.
  conformance::LoopsBuilder b({4000, 5000}, 1);
  const ExprId target = b.input(DType::i64, {1, 0}), x = b.cast(b.input(DType::bf16, {5000, 1}), DType::f32);
  const ExprId is_target = b.op(ScalarOp::eq, b.index(1), target);
  const uint32_t sum = b.reduce(Combiner::sum, b.op(ScalarOp::select, is_target, x, b.real(DType::f32, 0)));
  b.next_stage();
  b.output(b.reduced(sum), {1, 0});
  EXPECT_TRUE(first_of(b.build(/*last_is_per_row=*/true)).members_are_neighbours);
  EXPECT_GT(first_of(embedding(DType::f32, 4096, 768, true)).shares, 1u);
  const LoopsSchedule sums = first_of(conformance::column_sums(DType::bf16, 4096, 768));
  EXPECT_FALSE(sums.members_are_neighbours);
  EXPECT_GE(768 / sums.columns, 64u);
}

// What an output may be written over changes while the launch runs: no load of it may be moved behind stores.
TEST(CudaSources, load_by_the_way_of_what_nobody_writes_only_where_nobody_does) {
  const auto loads_so = [](const KernelSpec& spec) {
    const Schedule first = default_candidates(CudaCompileBackend(), spec, k_hopper).front();
    return CudaCompileBackend::source(spec, first, k_hopper)->kernels.front().text.find("load_input(args.b0") !=
           std::string::npos;
  };
  conformance::LoopsBuilder in_place({4000, 5000}, 2);
  in_place.output(in_place.op(ScalarOp::neg, in_place.input(DType::f32, {5000, 1})), {5000, 1});
  EXPECT_FALSE(loads_so(in_place.build()));
  conformance::LoopsBuilder turned({4000, 5000}, 2);
  turned.output(turned.op(ScalarOp::neg, turned.input(DType::f32, {1, 4000})), {5000, 1});
  EXPECT_TRUE(loads_so(turned.build()));
}

TEST(CudaSchedules, pack_operands_of_odd_rows_where_many_tiles_read_them) {
  const auto first_of = [](int64_t m, int64_t n, int64_t k) {
    const KernelSpec spec = conformance::gemm({.m = m, .n = n, .k = k, .dtype = DType::bf16});
    return default_candidates(CudaCompileBackend(), spec, k_hopper).front().description;
  };
  EXPECT_TRUE(first_of(2048, 768, 1001).starts_with("packed_wgmma")) << first_of(2048, 768, 1001);
  EXPECT_TRUE(first_of(2048, 768, 1000).starts_with("wgmma"));
  EXPECT_TRUE(first_of(33, 77, 101).starts_with("mma"));
}

TEST(CudaSchedules, count_waves_on_the_multiprocessors_of_the_machine) {
  const KernelSpec spec = conformance::gemm({.m = 1024, .n = 1024, .k = 256});
  const auto first_on = [&](uint32_t cores) {
    return CudaCompileBackend().candidates(spec, k_hopper, {.cores = cores}).front().description;
  };
  EXPECT_EQ(first_on(64), "simple tile 128x128 stages 2");
  EXPECT_EQ(first_on(256), "simple tile 64x64 stages 2");
}

}  // namespace
}  // namespace kiln::cuda
