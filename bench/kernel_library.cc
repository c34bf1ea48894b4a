
#include <dlfcn.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/runtime/runtime.h"
#include "bench/kernel_specs.h"

/// A small C interface over compile and run, so that a Python benchmark can time our kernels and torch's in one
/// process, on one OpenMP pool (that of torch: its symbols are looked up in the process, none is linked).
///
/// Threading: none; one caller. Ownership: a kernel lives until kiln_bench_destroy. Errors: null, and
/// kiln_bench_error() says why.
namespace {

using namespace kiln;

thread_local std::string s_error;

struct BenchKernel {
  Image image;
  std::string description;
  double compile_ms = 0;
  void* code = nullptr;
  size_t code_bytes = 0;
  std::unique_ptr<HostExecutable> executable;
  std::vector<uint8_t*> workspaces;

  ~BenchKernel() {
    if (code != nullptr) munmap(code, code_bytes);
    for (uint8_t* workspace : workspaces) std::free(workspace);
  }
};

struct PoolCall {
  const HostExecutable* executable;
  void* const* buffers;
  const std::vector<uint8_t*>* workspaces;
  int (*thread_number)();
  int threads;
};

void run_share(void* argument) {
  const auto& call = *static_cast<const PoolCall*>(argument);
  const auto thread = static_cast<uint64_t>(call.thread_number());
  const auto threads = static_cast<uint64_t>(call.threads);
  const uint64_t tasks = call.executable->tasks();
  LaunchStatus status = LaunchStatus::ok;
  call.executable->run(call.buffers, (*call.workspaces)[thread], &status, tasks * thread / threads,
                       tasks * (thread + 1) / threads, {});
}

BenchKernel* make_kernel(const KernelSpec& spec, const char* target_name, int candidate) {
  const cpu::CpuCompileBackend backend;
  const Target target{"cpu", target_name};
  if (Status status = backend.claims(spec, target); !status.ok()) {
    s_error = status.to_string();
    return nullptr;
  }
  const auto candidates = default_candidates(backend, spec, target);
  if (candidate < 0 || static_cast<size_t>(candidate) >= candidates.size()) {
    s_error = "no such candidate";
    return nullptr;
  }
  auto kernel = std::make_unique<BenchKernel>();
  const auto start = std::chrono::steady_clock::now();
  cpu::ImageReport report;
  auto image = backend.compile(spec, candidates[static_cast<size_t>(candidate)], target, &report);
  kernel->compile_ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  if (!image.ok()) {
    s_error = image.status().to_string();
    return nullptr;
  }
  kernel->image = std::move(image).value();
  kernel->description =
      fmt::format("{} spills {}", candidates[static_cast<size_t>(candidate)].description, report.hot_spills);
  kernel->code_bytes = kernel->image.code.size();
  kernel->code = mmap(nullptr, kernel->code_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::memcpy(kernel->code, kernel->image.code.data(), kernel->code_bytes);
  mprotect(kernel->code, kernel->code_bytes, PROT_READ | PROT_EXEC);
  auto executable = cpu::load_image(kernel->image, {static_cast<const uint8_t*>(kernel->code), kernel->code_bytes});
  if (!executable.ok()) {
    s_error = executable.status().to_string();
    return nullptr;
  }
  kernel->executable = std::move(executable).value();
  return kernel.release();
}

}  // namespace

#define KILN_BENCH extern "C" __attribute__((visibility("default")))

KILN_BENCH const char* kiln_bench_error() { return s_error.c_str(); }

/// Operands as torch would hold them: `a_transposed` means A lies as [k, m], `b_transposed` that B lies as [n, k].
/// Buffers: a, b, [bias,] c. dtype: 5 f16, 6 bf16, 7 f32.
KILN_BENCH void* kiln_bench_gemm(const char* target, int dtype, int64_t m, int64_t n, int64_t k, int a_transposed,
                                 int b_transposed, int bias, int candidate) {
  const auto spec =
      bench::gemm_spec(static_cast<DType>(dtype), m, n, k, a_transposed != 0, b_transposed != 0, bias != 0);
  return make_kernel(spec, target, candidate);
}

KILN_BENCH int kiln_bench_gemm_candidates(const char* target, int dtype, int64_t m, int64_t n, int64_t k,
                                          int a_transposed, int b_transposed, int bias) {
  const auto spec =
      bench::gemm_spec(static_cast<DType>(dtype), m, n, k, a_transposed != 0, b_transposed != 0, bias != 0);
  return static_cast<int>(default_candidates(cpu::CpuCompileBackend(), spec, {"cpu", target}).size());
}

/// Dense [batch, heads, length, dim]. Buffers as in bench/kernel_specs.h.
KILN_BENCH void* kiln_bench_attention(const char* target, int64_t batch, int64_t heads, int64_t length, int64_t dim,
                                      int64_t causal, int64_t candidate) {
  return make_kernel(bench::attention_spec(batch, heads, length, dim, causal != 0), target,
                     static_cast<int>(candidate));
}

KILN_BENCH void* kiln_bench_attention_backward(const char* target, int64_t batch, int64_t heads, int64_t length,
                                               int64_t dim, int64_t causal, int64_t candidate) {
  return make_kernel(bench::attention_backward_spec(batch, heads, length, dim, causal != 0), target,
                     static_cast<int>(candidate));
}

KILN_BENCH void kiln_bench_destroy(void* kernel) { delete static_cast<BenchKernel*>(kernel); }
KILN_BENCH double kiln_bench_compile_ms(void* kernel) { return static_cast<BenchKernel*>(kernel)->compile_ms; }
KILN_BENCH int64_t kiln_bench_tasks(void* kernel) {
  return static_cast<int64_t>(static_cast<BenchKernel*>(kernel)->image.tasks);
}
KILN_BENCH int64_t kiln_bench_code_bytes(void* kernel) {
  return static_cast<int64_t>(static_cast<BenchKernel*>(kernel)->code_bytes);
}
KILN_BENCH const char* kiln_bench_description(void* kernel) {
  return static_cast<BenchKernel*>(kernel)->description.c_str();
}

/// One launch on `threads` threads of the OpenMP runtime that is in the process.
KILN_BENCH void kiln_bench_run(void* handle, void* const* buffers, int threads) {
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  static const auto parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  static const auto thread_number = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));
  auto& kernel = *static_cast<BenchKernel*>(handle);
  while (kernel.workspaces.size() < static_cast<size_t>(threads)) {
    const size_t bytes = (kernel.image.workspace_bytes + 4095) / 4096 * 4096 + 4096;
    kernel.workspaces.push_back(static_cast<uint8_t*>(std::aligned_alloc(4096, bytes)));
  }
  if (threads == 1 || parallel == nullptr || kernel.image.tasks == 1) {
    LaunchStatus status = LaunchStatus::ok;
    kernel.executable->run(buffers, kernel.workspaces[0], &status, 0, kernel.image.tasks, {});
    return;
  }
  PoolCall call{kernel.executable.get(), buffers, &kernel.workspaces, thread_number, threads};
  parallel(run_share, &call, static_cast<unsigned>(threads), 0);
}
