#include "jit/build/kernel_builder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "autotune/verdict.h"
#include "jit/build/artifact_writer.h"
#include "jit/build/launch_reference.h"

namespace kiln {

namespace {

// A hundred times what one core needs at 10 G scalar operations a second is a hang; the constant part is for a machine
// that does something else.
constexpr double k_hang_ms_per_operation = 1e-5;
constexpr double k_hang_ms_least = 3'000;

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

int64_t product(const std::vector<int64_t>& list) {
  return std::accumulate(list.begin(), list.end(), int64_t{1}, std::multiplies<>());
}

/// Scalar operations, roughly: for ordering jobs.
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
  };
  return std::visit(Visitor{}, spec.kernel);
}

uint32_t run_timeout_ms(const KernelSpec& spec) {
  return static_cast<uint32_t>(std::min(k_hang_ms_least + cost_of(spec) * k_hang_ms_per_operation, 600e3));
}

/// First failure of several threads.
class FirstFailure {
 public:
  void set(Status status) {
    std::lock_guard lock(m_mutex);
    if (m_status.ok()) m_status = std::move(status);
    m_failed.store(true, std::memory_order_relaxed);
  }
  bool failed() const { return m_failed.load(std::memory_order_relaxed); }
  const Status& status() const { return m_status; }

 private:
  std::mutex m_mutex;
  std::atomic<bool> m_failed{false};
  Status m_status;
};

}  // namespace

Expected<BuiltKernel> build_kernel(const KernelJob& job, const CompileBackend& backend, const Target& target,
                                   CandidateRunner& runner) {
  const KernelSpec& spec = job.spec();
  const std::string name = kernel_name(spec);
  KILN_RETURN_IF_ERROR(backend.claims(spec, target).with_context(name));

  BuiltKernel built;
  std::optional<CandidateTrial> trial;
  std::optional<LaunchReference> reference;
  std::string failures;
  for (const Schedule& schedule : backend.candidates(spec, target)) {
    auto start = std::chrono::steady_clock::now();
    auto image = backend.compile(spec, schedule, target);
    built.compile_ms += milliseconds_since(start);
    ++built.compilations;
    if (!image.ok()) {
      failures += fmt::format("; {}: {}", schedule.description, image.status().message());
      continue;
    }
    start = std::chrono::steady_clock::now();
    if (!reference) {
      KILN_ASSIGN_OR_RETURN(trial, CandidateTrial::prepare(spec, runner));
      KILN_ASSIGN_OR_RETURN(reference, LaunchReference::create(*job.plan, *job.launch, *trial));
    }
    const Verdict verdict = trial->judge(*image, reference->outputs(), run_timeout_ms(spec));
    built.verify_ms += milliseconds_since(start);
    if (verdict.status.ok()) {
      built.artifact = code_artifact(*image, target.backend);
      built.schedule = schedule.description;
      built.run_ms = verdict.seconds * 1e3;
      built.max_error = verdict.max_error;
      built.checked = verdict.checked;
      return built;
    }
    failures += fmt::format("; {}: {}", schedule.description, verdict.status.message());
  }
  return error(StatusCode::internal, "{}: no candidate passed{}", name, failures);
}

Expected<std::vector<BuiltKernel>> build_kernels(std::span<const KernelJob> jobs, const CompileBackend& backend,
                                                 const Target& target, const RunnerFactory& make_runner,
                                                 const ProgressFunction& progress) {
  std::vector<size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return cost_of(jobs[a].spec()) > cost_of(jobs[b].spec()); });

  std::vector<BuiltKernel> kernels(jobs.size());
  std::atomic<size_t> next{0}, done{0};
  FirstFailure failure;
  auto work = [&] {
    auto runner = make_runner();
    if (!runner.ok()) return failure.set(runner.status());
    for (size_t i; !failure.failed() && (i = next.fetch_add(1)) < jobs.size();) {
      auto kernel = build_kernel(jobs[order[i]], backend, target, **runner);
      if (!kernel.ok()) return failure.set(kernel.status());
      kernels[order[i]] = std::move(kernel).value();
      progress("compile", done.fetch_add(1) + 1, jobs.size(), kernel_name(jobs[order[i]].spec()));
    }
  };
  const size_t thread_count = std::min<size_t>(std::max(1u, std::thread::hardware_concurrency()), jobs.size());
  {
    std::vector<std::jthread> threads;
    for (size_t t = 1; t < thread_count; ++t) threads.emplace_back(work);
    if (thread_count > 0) work();
  }
  KILN_RETURN_IF_ERROR(failure.status());
  return kernels;
}

}  // namespace kiln
