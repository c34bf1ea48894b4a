#include "jit/build/kernel_builder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "autotune/sample_data.h"
#include "autotune/verdict.h"
#include "frontend/ops/element_evaluator.h"
#include "jit/build/artifact_writer.h"

namespace kiln {

namespace {

constexpr uint64_t k_perturbations = 2;
// The largest kernel of GPT-2 (logits, 40 GFLOP) takes 0.2 s on one core; a hundred times that is a hang.
constexpr uint32_t k_run_timeout_ms = 20'000;

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

/// Terms that are summed into one element, at most.
int64_t reduction_length(const KernelSpec& spec) {
  struct Visitor {
    int64_t operator()(const LoopsSpec& loops) const {
      return std::accumulate(loops.extents.begin() + loops.parallel_rank, loops.extents.end(), int64_t{1},
                             std::multiplies<>());
    }
    int64_t operator()(const GemmSpec& gemm) const { return gemm.k; }
    int64_t operator()(const AttentionSpec& attention) const { return attention.k_len + attention.head_dim; }
    int64_t operator()(const AttentionBackwardSpec& backward) const {
      return std::max(backward.forward.k_len, backward.forward.q_len) + backward.forward.head_dim;
    }
  };
  return std::visit(Visitor{}, spec.kernel);
}

std::vector<int64_t> constants(const std::vector<Dim>& dims) {
  std::vector<int64_t> values;
  values.reserve(dims.size());
  for (const Dim& dim : dims) values.push_back(dim.constant());
  return values;
}

std::vector<int64_t> row_major(const std::vector<int64_t>& dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
  return strides;
}

/// The f64 reference of a launch over the trial's inputs: the fragment of the region graph that the launch computes,
/// evaluated where the verdict asks.
class LaunchReference {
 public:
  static Expected<LaunchReference> create(const KernelJob& job, const CandidateTrial& trial) {
    LaunchReference reference;
    reference.m_graph = std::make_unique<Graph>(reference_graph(*job.plan, *job.launch));
    const KernelSpec& spec = job.spec();
    auto& inputs = reference.m_inputs;
    for (size_t i = 0; i < spec.buffers.size(); ++i) {
      if (spec.buffers[i].role != BufferRole::output) inputs.push_back(trial.initial(i));
      if (spec.buffers[i].role != BufferRole::input) reference.m_written.push_back(static_cast<uint32_t>(i));
    }
    KILN_ASSIGN_OR_RETURN(auto evaluator, ElementEvaluator::create(*reference.m_graph, inputs));
    reference.m_evaluator = std::make_unique<ElementEvaluator>(std::move(evaluator));
    return reference;
  }

  /// The references refer to this object.
  std::vector<OutputReference> outputs(const KernelSpec& spec) {
    std::vector<OutputReference> list;
    for (size_t i = 0; i < m_graph->outputs().size(); ++i) {
      const ValueId value = m_graph->outputs()[i];
      const std::vector<int64_t> dims = constants(m_graph->type(value).shape);
      const auto& strides = m_graph->output_strides()[i];
      list.push_back({m_written[i], dims, strides.empty() ? row_major(dims) : constants(strides),
                      reduction_length(spec),
                      [evaluator = m_evaluator.get(), value](int64_t flat) { return evaluator->at(value, flat); },
                      [this, value](int64_t flat) { return sensitivity(value, flat); }});
    }
    return list;
  }

 private:
  /// The largest change of an element under k_perturbations random roundings of all floating inputs.
  double sensitivity(ValueId value, int64_t flat) {
    if (m_perturbed.empty()) perturb();
    double largest = 0;
    for (const auto& perturbed : m_perturbed) {
      const double change = std::abs(perturbed->evaluator->at(value, flat) - m_evaluator->at(value, flat));
      if (change > largest) largest = change;
    }
    return largest;
  }

  struct Perturbed {
    std::vector<std::vector<std::byte>> inputs;
    std::unique_ptr<ElementEvaluator> evaluator;
  };

  void perturb() {
    for (uint64_t seed = 1; seed <= k_perturbations; ++seed) {
      auto perturbed = std::make_unique<Perturbed>();
      std::vector<std::span<const std::byte>> views;
      for (size_t i = 0; i < m_inputs.size(); ++i) {
        auto& copy = perturbed->inputs.emplace_back(m_inputs[i].begin(), m_inputs[i].end());
        perturb_by_rounding(m_graph->type(m_graph->inputs()[i]).dtype, copy, seed);
        views.emplace_back(copy);
      }
      auto evaluator = ElementEvaluator::create(*m_graph, views);
      if (!evaluator.ok()) continue;  // it was created from the same graph before
      perturbed->evaluator = std::make_unique<ElementEvaluator>(std::move(evaluator).value());
      m_perturbed.push_back(std::move(perturbed));
    }
  }

  std::unique_ptr<Graph> m_graph;
  std::unique_ptr<ElementEvaluator> m_evaluator;
  std::vector<std::span<const std::byte>> m_inputs;
  std::vector<std::unique_ptr<Perturbed>> m_perturbed;  // made when first asked for
  std::vector<uint32_t> m_written;                      // buffers, in the order of the graph's outputs
};

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
      KILN_ASSIGN_OR_RETURN(reference, LaunchReference::create(job, *trial));
    }
    const Verdict verdict = trial->judge(*image, reference->outputs(spec), k_run_timeout_ms);
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
