#include "jit/build/kernels/kernel_builder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "autotune/machine_lock.h"
#include "base/limits.h"
#include "frontend/kernel/affine.h"
#include "frontend/kernel/kernel_text.h"
#include "jit/build/kernels/launch_reference.h"
#include "jit/build/kernels/work_items.h"
#include "jit/build/plan/missing_op.h"
#include "verdict/verdict.h"

namespace kiln {

namespace {

// A hundred times what one core needs at 10 G scalar operations a second is a hang; the constant part is for a machine
// that does something else.
constexpr double k_hang_ms_per_operation = 1e-5;
constexpr double k_hang_ms_least = 3'000;
// Harsh situations show in any part of a large grid: of one that costs more, some tasks are run.
constexpr double k_harsh_operations = 1e8;
constexpr const char* k_made_before = "made before";  // in the place of a schedule's description
constexpr Situation k_bad_index_situations[] = {Situation::negative_index, Situation::index_at_end,
                                                Situation::far_index};

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// Scalar operations, roughly.
double cost_of(const KernelSpec& spec) {
  struct Visitor {
    double operator()(const LoopsSpec& loops) const {
      return static_cast<double>(product(loops.extents)) * static_cast<double>(loops.body.exprs.size());
    }
    double operator()(const GemmSpec& gemm) const {
      return 0.2 * static_cast<double>(product(gemm.batch) * gemm.m * gemm.n) * static_cast<double>(gemm.k + 8);
    }
    double operator()(const AttentionSpec& attention) const {
      return 0.4 * static_cast<double>(attention.batch * attention.heads * attention.q_len * attention.k_len) *
             static_cast<double>(attention.head_dim + attention.value_dim);
    }
    double operator()(const AttentionBackwardSpec& backward) const { return 2.5 * (*this)(backward.forward); }
    double operator()(const SortSpec& sort) const { return 32 * static_cast<double>(product(sort.extents)); }
  };
  return std::visit(Visitor{}, spec.kernel);
}

/// What it costs to judge a kernel, in scalar operations, roughly: it runs, and what it writes is poisoned, made and read in
/// fresh memory.
double judging_cost_of(const KernelSpec& spec) {
  constexpr double k_operations_per_byte = 3;
  double bytes = 0;
  for (const BufferSpec& buffer : spec.buffers) {
    if (buffer.role != BufferRole::input) bytes += static_cast<double>(buffer.bytes());
  }
  return cost_of(spec) + k_operations_per_byte * bytes;
}

/// First failure of several threads.
class FirstFailure {
 public:
  void set(Status status) {
    std::lock_guard lock(m_mutex);
    if (m_status.ok()) m_status = std::move(status);
  }
  const Status& status() const { return m_status; }

 private:
  std::mutex m_mutex;
  Status m_status;
};

/// One kernel on its way from candidates to the first that passes.
class KernelBuild {
 public:
  KernelBuild(const KernelJob& job, const CompileBackend& backend, const Target& target,
              std::span<const Schedule> candidates)
      : m_job(job), m_backend(backend), m_target(target), m_schedules(candidates.begin(), candidates.end()) {}

  /// The code of the first candidate, which has no verdict yet. Errors: it has none, or does not compile; run() goes on.
  Expected<BuiltArtifact> compile_first() {
    KILN_RETURN_IF_ERROR(m_backend.claims(m_job.spec(), m_target));
    if (m_made_before != nullptr) return error(StatusCode::failed_precondition, "there is code of another build");
    if (m_schedules.empty()) return error(StatusCode::internal, "no candidates");
    m_first = compile(m_schedules.front());
    KILN_RETURN_IF_ERROR(m_first->status());
    return code_artifact(**m_first, m_target.backend);
  }

  /// As compile_first, for `beside`, while the reference computes what the code will be compared with.
  void compile_beside_reference(CandidateRunner& runner, const Beside& beside) {
    if (m_made_before != nullptr || m_schedules.empty()) return;
    m_runner = &runner;
    const std::jthread compiling([&] {
      if (const auto first = compile_first(); first.ok()) beside({&*first, 1});
    });
    if (!prepare(Situation::plain).ok()) return;  // run() says why
    m_reference->aim_at({&m_schedules.front(), 1});
    m_reference->foresee();
  }

  /// Code that was made before does not get its verdict any more.
  void pass_over_made_before(size_t rejected) {
    if (std::exchange(m_made_before, nullptr) == nullptr) return;
    reject(k_made_before, error(StatusCode::cancelled, "not tried, as {} others did not pass", rejected));
  }

  Expected<BuiltKernel> run(CandidateRunner* runner) {
    m_runner = runner;
    const std::string name = kernel_name(m_job.spec());
    if (const Status claimed = m_backend.claims(m_job.spec(), m_target); !claimed.ok()) {
      const Status failure = claimed.with_context(name);
      return claimed.code() == StatusCode::unimplemented ? of_an_op(failure) : failure;
    }
    if (m_made_before != nullptr) {
      KILN_ASSIGN_OR_RETURN(const bool passed,
                            judge(m_backend.finish(*m_made_before, m_target), k_made_before, m_schedules));
      if (passed) return std::move(m_built);
    }
    for (const Schedule& schedule : m_schedules) {
      auto image = m_first ? *std::exchange(m_first, std::nullopt) : compile(schedule);
      KILN_ASSIGN_OR_RETURN(const bool passed, judge(std::move(image), schedule.description, {&schedule, 1}));
      if (passed) return std::move(m_built);
    }
    // Of no op: with more memory there would be a kernel.
    if (m_is_full)
      return error(StatusCode::resource_exhausted, "{}: no candidate could be checked{}", name, m_failures);
    return of_an_op(error(StatusCode::internal, "{}: no candidate passed{}", name, m_failures));
  }

 private:
  Expected<Image> compile(const Schedule& schedule) {
    const auto start = std::chrono::steady_clock::now();
    auto image = m_backend.compile(m_job.spec(), schedule, m_target);
    m_built.compile_ms += milliseconds_since(start);
    ++m_built.compilations;
    return image;
  }

  Status of_an_op(const Status& status) const {
    return status.with_op(missing_op(reference_graph(*m_job.plan, *m_job.launch), m_backend, m_target));
  }

  /// Whether the candidate becomes the kernel; if not, why is noted. Errors: of the reference, not of the candidate.
  Expected<bool> judge(Expected<Image> image, const std::string& schedule, std::span<const Schedule> made_by) {
    if (!image.ok()) return reject(schedule, image.status());
    if (m_runner != nullptr) {
      const auto start = std::chrono::steady_clock::now();
      KILN_ASSIGN_OR_RETURN(const Verdict verdict, try_in_all_situations(*image, made_by));
      m_built.verify_ms += milliseconds_since(start);
      m_is_full |= verdict.status.code() == StatusCode::resource_exhausted;
      if (!verdict.status.ok()) return reject(schedule, verdict.status);
      m_built.run_ms = verdict.seconds * 1e3;
      m_built.max_error = verdict.max_error;
      m_built.checked = verdict.checked;
      m_built.tiles = verdict.tiles;
      m_built.tiles_met = verdict.tiles_met;
    }
    m_built.artifact = code_artifact(*image, m_target.backend);
    m_built.schedule = schedule;
    return true;
  }

  bool reject(const std::string& schedule, const Status& why) {
    if (m_built.rejected.empty()) m_built.rejected = why.message();
    m_failures += fmt::format("; {}: {}", schedule, why.message());
    return false;
  }

  /// The verdict on ordinary numbers, with what is wrong anywhere. Errors: of the reference.
  Expected<Verdict> try_in_all_situations(const Image& image, std::span<const Schedule> made_by) {
    const uint32_t timeout_ms = run_timeout_ms(m_job.spec());
    KILN_ASSIGN_OR_RETURN(Verdict verdict, try_on_valid_indices(image, made_by, Situation::plain, 1));
    if (!verdict.status.ok()) return verdict;

    verdict.status = m_trial->judge_in_place(image, timeout_ms).with_context("with outputs over inputs");
    if (!verdict.status.ok()) return verdict;

    KILN_ASSIGN_OR_RETURN(const Verdict harsh, try_on_harsh_numbers(image, made_by));
    verdict.status = harsh.status;
    if (!verdict.status.ok() || !has_indirect_access(m_job.spec())) return verdict;

    for (const Situation situation : k_bad_index_situations) {
      KILN_RETURN_IF_ERROR(prepare(situation));
      if (!m_trial->has_bad_index()) continue;
      verdict.status = m_trial->judge_refusal(image, m_reference->finds_bad_index(false), timeout_ms);
      verdict.status = verdict.status.with_context("on a bad index");
      if (!verdict.status.ok()) break;
    }
    return verdict;
  }

  /// Code of a device may have other ways for addresses that are aligned, among them a library's: all of them meet such numbers.
  Expected<Verdict> try_on_harsh_numbers(const Image& image, std::span<const Schedule> made_by) {
    const uint32_t step = task_step_within(m_job.spec(), k_harsh_operations);
    KILN_ASSIGN_OR_RETURN(Verdict verdict, try_on_valid_indices(image, made_by, Situation::harsh, step));
    verdict.status = verdict.status.with_context("on zeros, tiny and large numbers, nothing aligned");
    if (!verdict.status.ok() || m_runner->is_of_host()) return verdict;
    KILN_ASSIGN_OR_RETURN(verdict, try_on_valid_indices(image, made_by, Situation::harsh_aligned, step));
    verdict.status = verdict.status.with_context("on zeros, tiny and large numbers");
    return verdict;
  }

  /// The verdict on samples of which no index comes out wrong. Where there are none, it is that of the last ones.
  Expected<Verdict> try_on_valid_indices(const Image& image, std::span<const Schedule> made_by, Situation situation,
                                         uint32_t task_step) {
    for (;;) {
      KILN_RETURN_IF_ERROR(prepare(situation));
      m_reference->aim_at(made_by);
      Verdict verdict = m_trial->judge(image, m_reference->outputs(), run_timeout_ms(m_job.spec()), task_step);
      const bool is_last = m_window + 1 == std::size(k_index_windows) || !m_trial->has_window();
      if (!verdict.reported_bad_index || is_last || !m_reference->finds_bad_index(true)) return verdict;
      ++m_window;
      m_reference.reset();
    }
  }

  /// Sample data and reference: for all candidates while situation and window stay.
  Status prepare(Situation situation) {
    if (m_reference && m_situation == situation) return {};
    m_reference.reset();
    m_trial.reset();
    m_situation = situation;
    KILN_ASSIGN_OR_RETURN(m_trial,
                          CandidateTrial::prepare(m_job.spec(), *m_runner, situation, k_index_windows[m_window]));
    if (m_job.sized) m_trial->set_extents(m_job.sized->extents);
    KILN_ASSIGN_OR_RETURN(m_reference, LaunchReference::create(*m_job.plan, *m_job.launch, *m_trial));
    return {};
  }

  const KernelJob& m_job;
  const CompileBackend& m_backend;
  const Target& m_target;
  const std::vector<Schedule> m_schedules;
  const Image* m_made_before = m_job.made_before ? &*m_job.made_before : nullptr;  // where it is still to be tried
  std::optional<Expected<Image>> m_first;                                          // the first of them, compiled
  CandidateRunner* m_runner = nullptr;
  BuiltKernel m_built;
  Situation m_situation = Situation::plain;  // of the trial and its reference
  size_t m_window = 0;                       // likewise: of k_index_windows
  std::optional<CandidateTrial> m_trial;
  std::optional<LaunchReference> m_reference;
  std::string m_failures;
  bool m_is_full = false;  // there was no memory to run a candidate in
};

std::vector<Schedule> candidates_of(const KernelJob& job, const CompileBackend& backend, const Target& target,
                                    const Machine* machine) {
  if (job.sized) return job.sized->candidates;
  return backend.candidates(job.spec(), target, machine_for(backend, target, machine));
}

}  // namespace

Machine machine_for(const CompileBackend& backend, const Target& target, const Machine* machine) {
  Machine known = machine == nullptr || target.is_deterministic ? backend.default_machine(target) : *machine;
  if (target.threads != 0) known.cores = target.threads;
  return known;
}

Machine machine_for(const CompileBackend& backend, const Target& target, const CandidateRunner* runner) {
  return machine_for(backend, target, runner == nullptr ? nullptr : runner->machine());
}

BuiltHead code_head(const KernelJob& job, const Digest& code, uint32_t generation, std::string schedule) {
  return {.key = job.key,
          .artifact = code,
          .generation = generation,
          .key_parts = job.key_parts,
          .name = kernel_name(job.spec()),
          .schedule = std::move(schedule),
          .spec = kernel_text(job.spec())};
}

uint32_t run_timeout_ms(const KernelSpec& spec) {
  return static_cast<uint32_t>(std::min(k_hang_ms_least + cost_of(spec) * k_hang_ms_per_operation, 600e3));
}

uint32_t task_step_within(const KernelSpec& spec, double operations) {
  return static_cast<uint32_t>(std::clamp(std::ceil(cost_of(spec) / operations), 1.0, 1e6));
}

Expected<BuiltKernel> build_kernel(const KernelJob& job, const CompileBackend& backend, const Target& target,
                                   CandidateRunner* runner) {
  const Machine* machine = runner == nullptr ? nullptr : runner->machine();
  return build_kernel(job, backend, target, runner, candidates_of(job, backend, target, machine));
}

Expected<BuiltKernel> build_kernel(const KernelJob& job, const CompileBackend& backend, const Target& target,
                                   CandidateRunner* runner, std::span<const Schedule> candidates) {
  return KernelBuild(job, backend, target, candidates).run(runner);
}

namespace {

/// All the builds of some jobs, the one that costs most first.
class KernelBuilds {
 public:
  KernelBuilds(std::span<const KernelJob> jobs, const BuildTarget& target, const BuildEnvironment& environment)
      : m_jobs(jobs), m_target(target), m_environment(environment), m_order(jobs.size()), m_builds(jobs.size()) {
    std::iota(m_order.begin(), m_order.end(), 0);
    std::ranges::stable_sort(m_order, std::greater(), [&](size_t i) { return judging_cost_of(jobs[i].spec()); });
  }

  /// In the order of the jobs: their first candidates' code. Errors: of one that has none.
  Expected<std::vector<BuiltArtifact>> compile_first() {
    std::vector<BuiltArtifact> artifacts(m_jobs.size());
    const auto compile = [&](size_t item, CandidateRunner* runner) -> Status {
      KILN_ASSIGN_OR_RETURN(artifacts[m_order[item]], build_of(m_order[item], runner).compile_first());
      return {};
    };
    KILN_RETURN_IF_ERROR(for_each(m_jobs.size(), m_target.machine == nullptr, compile));
    return artifacts;
  }

  /// Errors: the first job's that fails. `beside` is called in between, early.
  Expected<std::vector<BuiltKernel>> run(const std::function<void()>& beside) {
    const size_t others = beside ? 1 : 0;
    std::vector<BuiltKernel> kernels(m_jobs.size());
    std::atomic<size_t> done{0};
    const auto build = [&](size_t item, CandidateRunner* runner) -> Status {
      if (item < others) return beside(), Status();
      const size_t job = m_order[item - others];
      KernelBuild& kernel = build_of(job, runner);
      if (const size_t rejected = m_rejected; rejected >= limits::k_rejected_candidates) {
        kernel.pass_over_made_before(rejected);
      }
      KILN_ASSIGN_OR_RETURN(kernels[job], kernel.run(runner));
      if (m_jobs[job].made_before && !kernels[job].rejected.empty()) ++m_rejected;
      m_builds[job].reset();  // with its samples and reference
      m_environment.progress("compile", done.fetch_add(1) + 1, m_jobs.size(), kernel_name(m_jobs[job].spec()));
      return {};
    };
    KILN_RETURN_IF_ERROR(for_each(m_jobs.size() + others, true, build));
    return kernels;
  }

  /// The same of one job, whose reference computes on another thread than compiles it.
  Expected<std::vector<BuiltKernel>> run_one(const Beside& beside) {
    std::vector<BuiltKernel> kernels(1);
    const auto build = [&](size_t, CandidateRunner* runner) -> Status {
      KernelBuild& kernel = build_of(0, runner);
      if (runner != nullptr) kernel.compile_beside_reference(*runner, beside);
      KILN_ASSIGN_OR_RETURN(kernels[0], kernel.run(runner));
      m_environment.progress("compile", 1, 1, kernel_name(m_jobs[0].spec()));
      return {};
    };
    KILN_RETURN_IF_ERROR(for_each(1, true, build));
    return kernels;
  }

 private:
  using Work = std::function<Status(size_t item, CandidateRunner* runner)>;

  /// On the threads that the build may have, each with a runner of its own where it needs one.
  Status for_each(size_t count, bool needs_runner, const Work& work) {
    FirstFailure failure;
    const auto threads = [&] {
      const size_t all = m_environment.threads();
      return needs_runner ? std::min(all, m_environment.most_runners(m_target.target)) : all;
    };
    const auto do_some = [&](size_t item, WorkItems& items) -> Status {
      std::unique_ptr<CandidateRunner> runner;
      if (needs_runner) {
        KILN_ASSIGN_OR_RETURN(runner, make_runner(m_environment, m_target));
      }
      for (std::optional<size_t> i = item; i; i = items.next()) {
        const auto undisturbing = MachineLock::shared();
        KILN_RETURN_IF_ERROR(work(*i, runner.get()));
      }
      if (runner) m_environment.done_with(m_target.target, std::move(runner));
      return {};
    };
    WorkItems(count, threads).run([&](size_t item, WorkItems& items) {
      if (Status status = do_some(item, items); !status.ok()) {
        failure.set(std::move(status));
        items.stop();
      }
    });
    return failure.status();
  }

  KernelBuild& build_of(size_t job, const CandidateRunner* runner) {
    const auto& [backend, target, proof, machine] = m_target;
    std::optional<KernelBuild>& build = m_builds[job];
    const Machine* there = machine == nullptr && runner != nullptr ? runner->machine() : machine;
    if (!build) build.emplace(m_jobs[job], backend, target, candidates_of(m_jobs[job], backend, target, there));
    return *build;
  }

  const std::span<const KernelJob> m_jobs;
  const BuildTarget& m_target;
  const BuildEnvironment& m_environment;
  std::vector<size_t> m_order;
  std::vector<std::optional<KernelBuild>> m_builds;
  std::atomic<size_t> m_rejected{0};  // of what was made before
};

}  // namespace

Expected<std::vector<BuiltKernel>> build_kernels(std::span<const KernelJob> jobs, const BuildTarget& target,
                                                 const BuildEnvironment& environment, const Beside& beside) {
  KernelBuilds builds(jobs, target, environment);
  if (!beside) return builds.run({});
  if (jobs.size() == 1 && environment.threads() > 1) return builds.run_one(beside);
  const auto first = builds.compile_first();
  if (!first.ok()) return builds.run({});
  return builds.run([&] { beside(*first); });
}

}  // namespace kiln
