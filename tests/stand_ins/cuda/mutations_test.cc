#include "tests/stand_ins/cuda/mutations.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "backends/cuda/compile/attention_schedule.h"
#include "backends/cuda/compile/gemm_schedule.h"
#include "backends/cuda/compile/loops_schedule.h"
#include "backends/reference/number.h"
#include "backends/schedule_bytes.h"
#include "tests/conformance/attention_case.h"
#include "tests/conformance/gemm_case.h"
#include "tests/conformance/loops_cases.h"
#include "tests/stand_ins/cuda/emulated_backend.h"

namespace kiln::cuda_emulator {
namespace {

using conformance::AttentionBuilder;
using conformance::AttentionCase;
using conformance::column_sums;
using conformance::gemm;
using conformance::row_softmax;
using cuda::AttentionSchedule;
using cuda::GemmSchedule;
using Kind = GemmSchedule::Kind;

constexpr uint64_t k_seeds = 9;

/// A kernel that the backend wrote, with those that it is launched with, data, and what they compute when nothing is wrong
/// with it.
class Subject {
 public:
  /// The first kernel of the launch's first alternative; or its last, which follows others.
  enum class Which { first, last };
  Subject(std::string name, const KernelSpec& spec, const Schedule& schedule, const std::string& target,
          Which which = Which::first)
      : m_name(std::move(name)), m_spec(spec) {
    auto source = cuda::CudaCompileBackend::source(spec, schedule, {"cuda", target});
    EXPECT_TRUE(source.ok()) << m_name << ": " << source.status().to_string();
    if (!source.ok()) return;
    m_launch = *source;
    size_t last = 0;
    while (m_launch.kernels[last].record.is_followed) ++last;
    m_launch.kernels.resize(last + 1);
    for (cuda::KernelSource& kernel : m_launch.kernels) kernel.text = full_text(kernel);
    m_place = which == Which::last ? last : 0;
    std::mt19937_64 random(5);
    std::normal_distribution<double> normal(0, 1);
    for (const BufferSpec& buffer : spec.buffers) {
      m_inputs.emplace_back((buffer.bytes() + 15) / 16);
      if (buffer.role == BufferRole::output) continue;
      for (int64_t i = 0; i < buffer.elements; ++i) {
        store_number(buffer.dtype, m_inputs.back().data(), i, {normal(random), static_cast<int64_t>(random() % 9)});
      }
    }
  }

  const std::string& name() const { return m_name; }
  const std::string& text() const { return m_launch.kernels[m_place].text; }
  const cuda::KernelRecord& record() const { return m_launch.kernels[m_place].record; }

  /// What is wrong with a kernel of this text, launched so in place of the subject: the machine's finding, or that results are
  /// others. Empty when nothing is. "the same code" when the change made none.
  std::string judge(const std::string& text, const cuda::KernelRecord& record, uint64_t seeds) {
    cuda::LaunchSource launch = m_launch;
    launch.kernels[m_place] = {text, record};
    const auto kernel = EmulatedKernels::compile(launch, m_spec.buffers);
    if (!kernel.ok()) return "does not compile: " + kernel.status().message();
    for (uint64_t seed = 0; seed < seeds; ++seed) {
      auto buffers = m_inputs;
      std::vector<void*> pointers;
      for (auto& buffer : buffers) pointers.push_back(buffer.data());
      uint32_t status = 0;
      std::string problem = kernel->run(pointers.data(), &status, seed);
      if (!problem.empty()) return problem;
      if (m_expected.empty()) m_expected = buffers;
      if (buffers != m_expected) return "other results (seed " + std::to_string(seed) + ")";
    }
    return {};
  }

 private:
  struct alignas(16) Chunk {
    uint8_t bytes[16] = {};
    bool operator==(const Chunk&) const = default;
  };
  std::string m_name;
  KernelSpec m_spec;
  cuda::LaunchSource m_launch;
  size_t m_place = 0;  // of the subject in it
  std::vector<std::vector<Chunk>> m_inputs, m_expected;
};

std::vector<Subject> subjects() {
  std::vector<Subject> result;
  const auto add_gemm = [&](const char* name, const conformance::GemmCase& c, const GemmSchedule& schedule) {
    result.emplace_back(name, gemm(c), to_schedule(schedule), "sm_90a");
  };
  const auto add_loops = [&](const char* name, const KernelSpec& spec) {
    const Target target{"cuda", "sm_90a"};
    result.emplace_back(name, spec, default_candidates(cuda::CudaCompileBackend(), spec, target).front(), target.name);
  };
  add_loops("softmax of short rows", row_softmax(DType::f32, 5, 77));
  add_loops("softmax of long rows", row_softmax(DType::f32, 3, 1500));
  const Schedule by_columns{encode_choices(cuda::LoopsSchedule{.members = 16, .columns = 32}), "by columns"};
  result.emplace_back("sums of columns", column_sums(DType::f32, 77, 50), by_columns, "sm_90a");
  // Ragged along every dim; more steps than stages, over several tiles of a block. The last step of mma is in the stage
  // whose memory the epilogue takes first.
  add_gemm("simple", {.m = 70, .n = 67, .k = 50}, {Kind::simple, 64, 64, 0, 0, 2, 1});
  add_gemm("mma", {.m = 72, .n = 88, .k = 296, .dtype = DType::bf16}, {Kind::mma, 64, 64, 2, 2, 4, 1});
  add_gemm("wgmma", {.m = 72, .n = 88, .k = 200, .dtype = DType::bf16, .b_transposed = true},
           {Kind::wgmma, 64, 64, 0, 0, 8, 1});
  add_gemm("wgmma of a cluster", {.m = 264, .n = 136, .k = 136, .dtype = DType::f16, .a_transposed = true},
           {Kind::wgmma, 128, 128, 0, 0, 6, 2});
  const auto add_attention = [&](const char* name, const AttentionCase& c, const AttentionSchedule& schedule) {
    result.emplace_back(name, AttentionBuilder(c).forward(), to_schedule(schedule), "sm_90a");
    result.emplace_back(std::string("gradients of ") + name, AttentionBuilder(c).backward(), to_schedule(schedule),
                        "sm_90a");
  };
  constexpr auto k_simple = AttentionSchedule::Kind::simple, k_mma = AttentionSchedule::Kind::mma,
                 k_wgmma = AttentionSchedule::Kind::wgmma;
  // Queries of two heads in a tile; a tile that begins where the last of its queries ends; one that ends right after the
  // first of its queries; scores that would be read from beyond the ends.
  AttentionCase causal{.heads = 4, .kv_heads = 2, .q_len = 35, .k_len = 50, .head_dim = 24, .value_dim = 40};
  causal.causal = true;
  causal.causal_offset = 14;
  causal.bias = true;
  add_attention("simple attention", causal, {k_simple, 32, 16, 1});
  causal.dtype = DType::bf16;
  add_attention("attention by mma", causal, {k_mma, 32, 16, 2});
  AttentionCase all{.q_len = 32, .k_len = 70, .head_dim = 16, .value_dim = 17, .bias = true};
  add_attention("simple attention", all, {k_simple, 16, 32, 1});
  all.dtype = DType::f16;
  add_attention("attention by mma", all, {k_mma, 32, 16, 3});
  AttentionCase none{.q_len = 60, .k_len = 40, .causal = true, .causal_offset = -37};
  add_attention("simple attention", none, {k_simple, 16, 16, 1});
  none.dtype = DType::f16;
  add_attention("attention by mma", none, {k_mma, 32, 16, 2});
  // The same of warpgroups' tiles; keys that go round the ring.
  AttentionCase wide{.heads = 4, .kv_heads = 2, .q_len = 67, .k_len = 330, .head_dim = 24, .value_dim = 40};
  wide.dtype = DType::bf16;
  wide.causal = true;
  wide.causal_offset = 190;
  wide.bias = true;
  add_attention("attention by wgmma", wide, {k_wgmma, 128, 64, 2});
  AttentionCase deep{.q_len = 64, .k_len = 200, .head_dim = 40, .value_dim = 16, .dtype = DType::f16, .bias = true};
  add_attention("attention by wgmma", deep, {k_wgmma, 64, 64, 2});
  AttentionCase late{.q_len = 150, .k_len = 80, .head_dim = 72, .causal = true, .causal_offset = -70};
  late.dtype = DType::f16;
  add_attention("attention by wgmma", late, {k_wgmma, 64, 64, 2});
  // Keys in parts: the last part without keys, without a whole tile; queries that have keys in some parts, and in none.
  const auto add_parts = [&](const char* name, const AttentionCase& c, const AttentionSchedule& schedule) {
    const KernelSpec spec = AttentionBuilder(c).forward();
    result.emplace_back(name, spec, to_schedule(schedule), "sm_90a");
    result.emplace_back("combination of parts", spec, to_schedule(schedule), "sm_90a", Subject::Which::last);
  };
  AttentionCase few{.heads = 4, .kv_heads = 2, .q_len = 9, .k_len = 150, .head_dim = 24, .value_dim = 40};
  few.causal = true;
  few.causal_offset = 100;
  few.bias = true;
  add_parts("simple attention", few, {k_simple, 32, 16, 1, 4});
  few.dtype = DType::bf16;
  add_parts("attention by mma", few, {k_mma, 32, 16, 2, 4});
  few.causal_offset = -2;
  add_parts("attention by mma", few, {k_mma, 16, 32, 2, 2});
  AttentionCase one{.batch = 2, .heads = 3, .q_len = 4, .k_len = 77, .head_dim = 16, .value_dim = 17};
  add_parts("simple attention", one, {k_simple, 16, 16, 1, 3});
  one.q_len = 1;
  one.dtype = DType::f16;
  add_parts("attention by mma", one, {k_mma, 16, 16, 2, 5});
  AttentionCase many{.heads = 4, .kv_heads = 2, .q_len = 25, .k_len = 330, .head_dim = 24, .value_dim = 40};
  many.dtype = DType::bf16;
  many.causal = true;
  many.causal_offset = 190;
  many.bias = true;
  add_parts("attention by wgmma", many, {k_wgmma, 64, 64, 2, 3});
  return result;
}

TEST(Schedules, that_no_list_of_candidates_has_give_the_same_products) {
  struct Pair {
    conformance::GemmCase product;
    GemmSchedule listed, other;
  };
  const std::vector<Pair> pairs = {
      {{.m = 70, .n = 67, .k = 50}, {Kind::simple, 64, 64, 0, 0, 2, 1}, {Kind::simple, 64, 128, 0, 0, 2, 1}},
      {{.m = 72, .n = 88, .k = 296, .dtype = DType::bf16},
       {Kind::mma, 64, 64, 2, 2, 4, 1},
       {Kind::mma, 64, 64, 1, 4, 3, 1}},
      {{.m = 72, .n = 88, .k = 200, .dtype = DType::bf16, .b_transposed = true},
       {Kind::wgmma, 64, 64, 0, 0, 8, 1},
       {Kind::wgmma, 64, 256, 0, 0, 3, 1}},
  };
  for (const auto& [product, listed, other] : pairs) {
    Subject one("listed", gemm(product), to_schedule(listed), "sm_90a");
    const Subject two("other", gemm(product), to_schedule(other), "sm_90a");
    EXPECT_EQ(one.judge(one.text(), one.record(), 1), "");
    EXPECT_EQ(one.judge(two.text(), two.record(), k_seeds), "") << other.describe();
  }
}

struct Planted {
  std::string kernel, mistake;
  int place;  // among those where the mistake can be made, from 1
  auto operator<=>(const Planted&) const = default;
};

// Mutants that no seed can tell from the kernel, because they are none: what the mistake takes away is not needed there.
const std::set<Planted> k_harmless = {
    {"softmax of long rows", "a mask of points off by one", 1},  // a block for each row: there are no rows beyond
    {"sums of columns", "a missing barrier of the block", 5},    // frees scratch that nothing uses again
    {"attention by wgmma", "a stage released early",
     2},  // the producer is held up by the values before, released later
    {"gradients of attention by wgmma", "a mask of the depth off by one", 6},  // rows are whole pieces
    {"gradients of attention by wgmma", "a mask of the depth off by one", 7},
    // Of rows, these are past the end, and not stored; the data's logsumexps are all numbers.
    {"gradients of attention by wgmma", "a query without keys taken for one that has some", 1},
};

TEST(PlantedMistakes, kernels_without_them_pass_under_many_seeds) {
  for (Subject& subject : subjects()) {
    EXPECT_EQ(subject.judge(subject.text(), subject.record(), 4 * k_seeds), "") << subject.name();
  }
}

/// By one of the problems that the kernel is given: a mask that is off by one shows where something is beyond it.
TEST(PlantedMistakes, each_is_found) {
  std::map<Planted, std::string> findings;
  for (Subject& subject : subjects()) {
    ASSERT_EQ(subject.judge(subject.text(), subject.record(), 1), "") << subject.name();
    std::map<std::string, int> places;
    for (const Mistake& mistake : mistakes()) {
      for (const std::string& mutant : mutants_of(subject.text(), mistake)) {
        const Planted planted{subject.name(), mistake.name, ++places[mistake.name]};
        const auto known = findings.find(planted);
        if (known != findings.end() && !known->second.empty()) continue;  // another problem has found it
        if (!EmulatedKernels::differs(subject.text(), mutant)) continue;
        findings[planted] = subject.judge(mutant, subject.record(), k_seeds);
      }
    }
  }
  std::map<std::string, int> found;
  for (const auto& [planted, finding] : findings) {
    std::cout << planted.kernel << ": " << planted.mistake << ", place " << planted.place << ": " << finding << "\n";
    found[planted.mistake] += finding.empty() ? 0 : 1;
    EXPECT_EQ(finding.empty(), k_harmless.contains(planted)) << planted.kernel << ": " << planted.mistake;
  }
  for (const Mistake& mistake : mistakes()) EXPECT_GT(found[mistake.name], 0) << mistake.name << " was never planted";
}

TEST(PlantedMistakes, parts_that_nobody_combines_are_found) {
  size_t launches = 0;
  for (Subject& subject : subjects()) {
    if (!subject.record().is_followed) continue;
    ASSERT_EQ(subject.judge(subject.text(), subject.record(), 1), "");
    cuda::KernelRecord record = subject.record();
    record.is_followed = false;
    EXPECT_NE(subject.judge(subject.text(), record, 1), "") << subject.name();
    ++launches;
  }
  EXPECT_GT(launches, 0u);
}

TEST(PlantedMistakes, boxes_without_the_swizzle_that_products_expect_are_found) {
  for (Subject& subject : subjects()) {
    if (subject.record().maps.empty()) continue;
    ASSERT_EQ(subject.judge(subject.text(), subject.record(), 1), "");
    cuda::KernelRecord record = subject.record();
    record.maps[1].is_swizzled = false;
    EXPECT_NE(subject.judge(subject.text(), record, k_seeds), "") << subject.name();
  }
}

}  // namespace
}  // namespace kiln::cuda_emulator
