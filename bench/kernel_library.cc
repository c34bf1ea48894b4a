#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>

#include "backends/cpu/runtime/runtime.h"
#include "backends/host_rate.h"
#include "base/limits.h"
#include "bench/schedule_search.h"
#include "frontend/canonical/canonical.h"
#include "frontend/text/text.h"
#include "jit/build/kernels/tune_kernels.h"
#include "jit/run/team_work.h"

/// A small C interface over compile and run, so that a Python benchmark can time our kernels and torch's in one
/// process, on one OpenMP pool (torch's, which is loaded before). Graphs are in the text form.
///
/// Threading: one caller. Ownership: a kernel lives until kiln_bench_destroy. Errors: null or 0, and kiln_bench_error()
/// says why.
namespace {

using namespace kiln;

thread_local std::string s_error, s_result;

struct Free {
  void operator()(uint8_t* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<uint8_t, Free>;

Memory pages(uint64_t bytes) {
  return Memory(static_cast<uint8_t*>(std::aligned_alloc(4096, (bytes / 4096 + 1) * 4096)));
}

/// Code that lies mapped and executable, and the places of its buffers among BenchKernel's pointers.
struct Step {
  Image image;
  void* code = MAP_FAILED;
  std::unique_ptr<HostExecutable> executable;
  std::vector<uint32_t> buffers;
  std::vector<int64_t> extents;  // what its launches carry

  Step() = default;
  Step(Step&& other) noexcept
      : image(std::move(other.image)),
        code(std::exchange(other.code, MAP_FAILED)),
        executable(std::move(other.executable)),
        buffers(std::move(other.buffers)),
        extents(std::move(other.extents)) {}
  ~Step() {
    if (code != MAP_FAILED) munmap(code, image.code.size());
  }

  Status load() {
    code = mmap(nullptr, image.code.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (code == MAP_FAILED) return error(StatusCode::resource_exhausted, "no memory for code");
    std::memcpy(code, image.code.data(), image.code.size());
    mprotect(code, image.code.size(), PROT_READ | PROT_EXEC);
    KILN_ASSIGN_OR_RETURN(executable, cpu::load_image(image, {static_cast<const uint8_t*>(code), image.code.size()}));
    return {};
  }
};

/// What a graph fuses to, as code, with the memory it needs.
struct BenchKernel {
  Plan plan;
  std::vector<Step> steps;
  std::vector<Memory> temporaries, workspaces;
  std::vector<void*> pointers;  // per plan buffer; inputs and outputs are set by each run
  uint64_t workspace_bytes = 0;
  std::string description;
  double compile_ms = 0;

  void run(void* const* arguments, uint32_t threads) {
    threads = static_cast<uint32_t>(std::min<uint64_t>(threads, max_tasks()));
    while (workspaces.size() < threads) workspaces.push_back(pages(workspace_bytes));
    const size_t inputs = plan.region.inputs().size();
    for (size_t i = 0; i < pointers.size(); ++i) {
      const PlanBuffer& buffer = plan.buffers[i];
      if (buffer.kind == BufferKind::input) pointers[i] = arguments[buffer.index];
      if (buffer.kind == BufferKind::output) pointers[i] = arguments[inputs + buffer.index];
    }
    std::vector<uint64_t> state(TeamWork::state_bytes(steps.size(), threads) / sizeof(uint64_t));
    TeamWork work(state.data(), steps.size(), threads);
    if (threads == 1) return run_steps(work, 0);
#pragma omp parallel num_threads(threads)
    run_steps(work, static_cast<uint32_t>(omp_get_thread_num()));
  }

  /// More threads than tasks would have nothing to do, and do not come.
  uint64_t max_tasks() const {
    uint64_t most = 1;
    for (const Step& step : steps) most = std::max(most, launch_tasks(step.executable->tasks(), step.extents));
    return most;
  }

  /// As a program does (jit/run).
  void run_steps(TeamWork& work, uint32_t thread) const {
    for (size_t s = 0; s < steps.size(); ++s) {
      const uint64_t tasks = launch_tasks(steps[s].executable->tasks(), steps[s].extents);
      void* buffers[limits::k_kernel_buffers];
      for (size_t i = 0; i < steps[s].buffers.size(); ++i) buffers[i] = pointers[steps[s].buffers[i]];
      auto status = LaunchStatus::ok;
      while (const auto piece = work.take(s, thread, tasks)) {
        steps[s].executable->run(buffers, workspaces[thread].get(), &status, piece->first, piece->last,
                                 steps[s].extents);
        work.finish(s, piece->last - piece->first);
      }
      work.wait(s, tasks);
    }
  }
};

Expected<Plan> plan_of(const char* text) {
  KILN_ASSIGN_OR_RETURN(const Graph graph, parse_text(text));
  return fuse(settle_layouts(canonicalise(graph).graph));
}

Target target_named(const char* name) { return *name == 0 ? cpu::host_targets().front() : Target{"cpu", name}; }

constexpr int k_any_size = -1;

/// How the launch's spec is compiled: candidate `candidate` of what races, or the last one that there is; the first of all else.
/// k_any_size: code for any size, where there is such.
Schedule schedule_of(const KernelSpec& spec, const Target& target, int candidate, std::vector<int64_t>& extents) {
  if (candidate == k_any_size) {
    if (auto sized = bench::backend().sized(spec, target)) {
      extents = std::move(sized->extents);
      return sized->candidates.front();
    }
  }
  const auto schedules = bench::backend().candidates(spec, target, bench::machine(target));
  const bool has_choice = candidate > 0 && is_tunable(spec, target);
  return schedules[has_choice ? std::min(static_cast<size_t>(candidate), schedules.size() - 1) : 0];
}

Expected<Step> make_step(const Plan& plan, const Launch& launch, const Target& target, int candidate,
                         std::string& description) {
  const KernelSpec& spec = plan.specs[launch.spec];
  KILN_RETURN_IF_ERROR(bench::backend().claims(spec, target));
  cpu::ImageReport report;
  Step step;
  const Schedule schedule = schedule_of(spec, target, candidate, step.extents);
  KILN_ASSIGN_OR_RETURN(step.image, bench::backend().compile(spec, schedule, target, &report));
  KILN_RETURN_IF_ERROR(step.load());
  step.buffers = launch.buffers;
  description +=
      fmt::format("{}{} spills {}", description.empty() ? "" : "; ", schedule.description, report.hot_spills);
  return step;
}

Expected<std::unique_ptr<BenchKernel>> make_kernel(const char* text, const Target& target, int candidate) {
  auto kernel = std::make_unique<BenchKernel>();
  const auto start = std::chrono::steady_clock::now();
  KILN_ASSIGN_OR_RETURN(kernel->plan, plan_of(text));
  for (const Launch& launch : kernel->plan.launches) {
    KILN_ASSIGN_OR_RETURN(Step step, make_step(kernel->plan, launch, target, candidate, kernel->description));
    kernel->workspace_bytes = std::max(kernel->workspace_bytes, step.image.workspace_bytes);
    kernel->steps.push_back(std::move(step));
  }
  kernel->compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  for (PlanBuffer& buffer : kernel->plan.buffers) {
    void*& pointer = kernel->pointers.emplace_back(nullptr);
    if (buffer.kind == BufferKind::constant) pointer = kernel->plan.constants[buffer.index].data();
    if (buffer.kind != BufferKind::temporary) continue;
    kernel->temporaries.push_back(pages(buffer.bytes()));
    pointer = kernel->temporaries.back().get();
  }
  return kernel;
}

Expected<int> count_candidates(const char* text, const Target& target) {
  KILN_ASSIGN_OR_RETURN(const Plan plan, plan_of(text));
  size_t most = 1;
  for (const Launch& launch : plan.launches) {
    const KernelSpec& spec = plan.specs[launch.spec];
    if (!is_tunable(spec, target)) continue;
    most = std::max(most, bench::backend().candidates(spec, target, bench::machine(target)).size());
  }
  return static_cast<int>(most);
}

using SearchPlan = Expected<std::string> (*)(const Plan&, const Target&, uint32_t rounds);

Expected<std::string> search(const char* text, const Target& target, uint32_t rounds, SearchPlan of_plan) {
  KILN_ASSIGN_OR_RETURN(const Plan plan, plan_of(text));
  return of_plan(plan, target, rounds);
}

Expected<std::string> search_near(std::span<const char* const> texts, const Target& target, uint32_t rounds,
                                  uint32_t guesses, uint32_t seed) {
  std::vector<Plan> plans;
  for (const char* text : texts) {
    KILN_ASSIGN_OR_RETURN(Plan plan, plan_of(text));
    plans.push_back(std::move(plan));
  }
  return bench::search_near(plans, target, rounds, guesses, seed);
}

/// Nothing, with the error kept, for what failed.
template <typename T>
T value_or_error(Expected<T> value) {
  if (value.ok()) return std::move(value).value();
  s_error = value.status().to_string();
  return T{};
}

BenchKernel& kernel_of(void* kernel) { return *static_cast<BenchKernel*>(kernel); }

}  // namespace

#define KILN_BENCH extern "C" __attribute__((visibility("default")))

KILN_BENCH const char* kiln_bench_error() { return s_error.c_str(); }

/// `target`: "" is the host's best one. `candidate`: of the kernels that race; the last for one that there is not. -1: code for
/// any size (CompileBackend::sized) of what has such.
KILN_BENCH void* kiln_bench_compile(const char* text, const char* target, int candidate) {
  return value_or_error(make_kernel(text, target_named(target), candidate)).release();
}

/// The most candidates that a kernel of the graph has.
KILN_BENCH int kiln_bench_candidates(const char* text, const char* target) {
  return value_or_error(count_candidates(text, target_named(target)));
}

/// Has the tuner pick, and looks for something better among all schedules (schedule_search.h): JSON, until the next call.
KILN_BENCH const char* kiln_bench_search(const char* text, const char* target, int rounds) {
  s_result = value_or_error(search(text, target_named(target), static_cast<uint32_t>(rounds), bench::search));
  return s_result.empty() ? nullptr : s_result.c_str();
}

/// What a busy neighbour and a bad order of candidates do to its pick (search_with_faults of schedule_search.h).
KILN_BENCH const char* kiln_bench_search_with_faults(const char* text, const char* target, int rounds) {
  s_result =
      value_or_error(search(text, target_named(target), static_cast<uint32_t>(rounds), bench::search_with_faults));
  return s_result.empty() ? nullptr : s_result.c_str();
}

/// The same for several graphs that learn from each other (search_near of schedule_search.h).
KILN_BENCH const char* kiln_bench_search_near(const char* const* texts, int count, int rounds, int guesses, int seed) {
  s_result =
      value_or_error(search_near({texts, static_cast<size_t>(count)}, target_named(""), static_cast<uint32_t>(rounds),
                                 static_cast<uint32_t>(guesses), static_cast<uint32_t>(seed)));
  return s_result.empty() ? nullptr : s_result.c_str();
}

/// Floating-point operations a second that so many threads reach with the dtype in registers; 0 where the host has no
/// instruction that multiplies it.
KILN_BENCH double kiln_bench_roof(const char* dtype, int threads) {
  const std::vector<HostLoop> loops = host_loops();
  const auto loop = std::ranges::find(loops, std::string_view(dtype), &HostLoop::dtype);
  return loop == loops.end() ? 0 : best_rate(static_cast<uint32_t>(threads), *loop);
}

KILN_BENCH void kiln_bench_destroy(void* kernel) { delete static_cast<BenchKernel*>(kernel); }
KILN_BENCH double kiln_bench_compile_ms(void* kernel) { return kernel_of(kernel).compile_ms; }
KILN_BENCH const char* kiln_bench_description(void* kernel) { return kernel_of(kernel).description.c_str(); }

/// The inputs' addresses, then the outputs'. On `threads` threads of the OpenMP runtime that is in the process.
KILN_BENCH void kiln_bench_run(void* kernel, void* const* arguments, int threads) {
  kernel_of(kernel).run(arguments, static_cast<uint32_t>(threads));
}
