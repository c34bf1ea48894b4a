// How strong is the verdict? Kernels of every kind are generated wrong, one fault each, and judged as candidates are: in
// the execution worker, against the reference of the graph. A mutant that is accepted and computes something else on the
// very same inputs, all outputs compared, has survived.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <random>
#include <thread>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/features.h"
#include "backends/reference/reference.h"
#include "frontend/ops/tensor.h"
#include "jit/build/kernels/launch_reference.h"
#include "jit/worker/process_runner.h"
#include "tests/verdict/mutants/mutate.h"
#include "tests/verdict/mutants/subjects.h"
#include "verdict/verdict.h"

namespace kiln::mutants {
namespace {

constexpr size_t k_kinds = static_cast<size_t>(Kind::count);
constexpr size_t k_mutants_per_kernel_and_kind = 4;  // drawn at random: code generation is what takes the time
constexpr uint32_t k_timeout_ms = 20'000;

struct Tally {
  size_t killed = 0, survived = 0, equivalent = 0, not_compiled = 0;
};

struct Kernel {
  std::string name;
  const Plan* plan;
  const Launch* launch;
  const KernelSpec& spec() const { return plan->specs[launch->spec]; }
};

class MutantsTest : public testing::Test {
 protected:
  MutantsTest() {
    for (const cpu::CpuTarget& target : cpu::ladder()) {
      if ((target.features & ~cpu::host_features()) == 0 && m_target.name.empty())
        m_target = {"cpu", std::string(target.name)};
    }
    m_subjects = subjects();
    for (const Subject& subject : m_subjects) {
      for (const Launch& launch : subject.plan.launches) {
        const std::string name = fmt::format("{}: {}", subject.name, kernel_name(subject.plan.specs[launch.spec]));
        m_kernels.push_back({name, &subject.plan, &launch});
      }
    }
  }

  /// The best candidate's image.
  Expected<Image> compile(const KernelSpec& spec) const {
    KILN_RETURN_IF_ERROR(m_backend.claims(spec, m_target));
    return m_backend.compile(spec, default_candidates(m_backend, spec, m_target).front(), m_target);
  }

  void examine(const Kernel& kernel);
  void print() const;

  cpu::CpuCompileBackend m_backend;
  Target m_target;
  std::vector<Subject> m_subjects;
  std::vector<Kernel> m_kernels;
  std::mutex m_mutex;
  std::array<Tally, k_kinds> m_tallies;
  std::vector<std::string> m_survivors, m_equivalents;
};

using Memory = std::vector<std::vector<std::byte>>;

/// What the interpreter makes of the trial's inputs.
Memory interpreted(const KernelSpec& original, const KernelSpec& spec, const CandidateTrial& trial) {
  Memory memory;
  std::vector<void*> pointers;
  for (size_t i = 0; i < original.buffers.size(); ++i) {
    const BufferSpec& buffer = original.buffers[i];
    memory.emplace_back(buffer.bytes());
    if (buffer.role != BufferRole::output) std::ranges::copy(trial.initial(i), memory.back().begin());
  }
  for (auto& bytes : memory) pointers.push_back(bytes.data());
  const Status status = run_reference(spec, pointers);
  EXPECT_TRUE(status.ok()) << status.to_string();
  return memory;
}

/// Equal but for the rounding of what is stored, in all elements.
bool compute_the_same(const KernelSpec& spec, const Memory& a, const Memory& b) {
  for (size_t i = 0; i < spec.buffers.size(); ++i) {
    const BufferSpec& buffer = spec.buffers[i];
    for (int64_t e = 0; e < buffer.elements; ++e) {
      const double x = load_element(buffer.dtype, a[i].data(), e), y = load_element(buffer.dtype, b[i].data(), e);
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      if (!(std::abs(x - y) <= 0x1p-22 * std::abs(x)) || !is_floating(buffer.dtype)) return false;
    }
  }
  return true;
}

std::vector<Mutant> drawn(std::vector<Mutant> mutants, uint64_t seed) {
  std::shuffle(mutants.begin(), mutants.end(), std::mt19937_64(seed));
  std::array<size_t, k_kinds> count{};
  std::erase_if(mutants,
                [&](const Mutant& m) { return ++count[static_cast<size_t>(m.kind)] > k_mutants_per_kernel_and_kind; });
  return mutants;
}

void MutantsTest::examine(const Kernel& kernel) {
  const KernelSpec& spec = kernel.spec();
  auto runner = ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH});
  ASSERT_TRUE(runner.ok()) << runner.status().to_string();
  auto trial = CandidateTrial::prepare(spec, **runner);
  ASSERT_TRUE(trial.ok()) << trial.status().to_string();
  auto reference = LaunchReference::create(*kernel.plan, *kernel.launch, *trial);
  ASSERT_TRUE(reference.ok()) << reference.status().to_string();

  const auto right = compile(spec);
  ASSERT_TRUE(right.ok()) << kernel.name << ": " << right.status().to_string();
  const Verdict verdict = trial->judge(*right, reference->outputs(), k_timeout_ms);
  EXPECT_TRUE(verdict.status.ok()) << kernel.name << ": " << verdict.status.to_string();

  std::optional<Memory> wanted;
  for (const Mutant& mutant : drawn(mutants_of(spec), 1)) {
    const auto image = compile(mutant.spec);
    Tally change;
    if (!image.ok()) {
      change.not_compiled = 1;
    } else if (!trial->judge(*image, reference->outputs(), k_timeout_ms).status.ok()) {
      change.killed = 1;
    } else {
      if (!wanted) wanted = interpreted(spec, spec, *trial);
      const bool same = compute_the_same(spec, *wanted, interpreted(spec, mutant.spec, *trial));
      (same ? change.equivalent : change.survived) = 1;
    }
    const std::scoped_lock lock(m_mutex);
    Tally& tally = m_tallies[static_cast<size_t>(mutant.kind)];
    tally.killed += change.killed, tally.survived += change.survived;
    tally.equivalent += change.equivalent, tally.not_compiled += change.not_compiled;
    if (change.equivalent)
      m_equivalents.push_back(fmt::format("{}: {}, {}", kernel.name, to_string(mutant.kind), mutant.what));
    if (change.survived)
      m_survivors.push_back(fmt::format("{}: {}, {}", kernel.name, to_string(mutant.kind), mutant.what));
  }
}

void MutantsTest::print() const {
  std::printf("%-22s %7s %9s %11s %13s\n", "kind", "killed", "survived", "equivalent", "not compiled");
  for (size_t k = 0; k < k_kinds; ++k) {
    const Tally& t = m_tallies[k];
    std::printf("%-22s %7zu %9zu %11zu %13zu\n", to_string(static_cast<Kind>(k)), t.killed, t.survived, t.equivalent,
                t.not_compiled);
  }
  for (const std::string& equivalent : m_equivalents) std::printf("equivalent: %s\n", equivalent.c_str());
  for (const std::string& survivor : m_survivors) std::printf("survived: %s\n", survivor.c_str());
}

TEST_F(MutantsTest, AlmostNoWrongKernelPassesAndEveryRightOneDoes) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i; (i = next++) < m_kernels.size();) examine(m_kernels[i]);
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < std::max(1U, std::thread::hardware_concurrency()); ++t) threads.emplace_back(work);
  }
  print();
  size_t killed = 0, survived = 0;
  for (const Tally& tally : m_tallies) {
    EXPECT_GT(tally.killed, 0U);
    killed += tally.killed, survived += tally.survived;
  }
  std::printf("%zu kernels, %zu wrong mutants, %zu rejected (%.2f %%)\n", m_kernels.size(), killed + survived, killed,
              100.0 * static_cast<double>(killed) / static_cast<double>(killed + survived));
  EXPECT_GE(killed + survived, 500U);
  EXPECT_GE(static_cast<double>(killed), 0.99 * static_cast<double>(killed + survived));
}

}  // namespace
}  // namespace kiln::mutants
