// What does a verdict cost beyond the kernel's own run? Prints one line per kernel: milliseconds of this thread's CPU
// for preparing and for judging, of the run's wall time, and how many elements were compared.

#include <cstdio>

#include "backends/cpu/compile/backend.h"
#include "backends/cpu/features.h"
#include "frontend/infer/builder.h"
#include "jit/build/kernels/launch_reference.h"
#include "jit/worker/process_runner.h"
#include "verdict/doubts.h"

namespace kiln {
namespace {

void measure(const Graph& graph, const Target& target, CandidateRunner& runner) {
  const cpu::CpuCompileBackend backend;
  const Plan plan = fuse(graph).value();
  for (const Launch& launch : plan.launches) {
    const KernelSpec& spec = plan.specs[launch.spec];
    const std::vector<Schedule> schedules = default_candidates(backend, spec, target);
    const Image image = backend.compile(spec, schedules.front(), target).value();
    for (const Situation situation : {Situation::plain, Situation::harsh}) {
      double start = thread_seconds();
      auto trial = CandidateTrial::prepare(spec, runner, situation).value();
      auto reference = LaunchReference::create(plan, launch, trial).value();
      reference.aim_at({schedules.data(), 1});
      const double prepare_ms = 1e3 * (thread_seconds() - start);
      start = thread_seconds();
      const Verdict verdict = trial.judge(image, reference.outputs(), 60'000);
      const double judge_ms = 1e3 * (thread_seconds() - start);
      std::printf("%-36s %s: prepare %6.1f, judge %6.1f, run %6.1f, %6zu elements, %6zu of %6zu tiles, %s\n",
                  kernel_name(spec).c_str(), situation == Situation::plain ? "plain" : "harsh", prepare_ms, judge_ms,
                  verdict.seconds * 1e3, static_cast<size_t>(verdict.checked), static_cast<size_t>(verdict.tiles_met),
                  static_cast<size_t>(verdict.tiles), verdict.status.ok() ? "right" : verdict.status.message().c_str());
    }
  }
}

Graph graph_of(const std::function<ValueId(GraphBuilder&, Graph&)>& make) {
  Graph graph;
  GraphBuilder builder(graph);
  graph.set_outputs({make(builder, graph)});
  return graph;
}

void run(CandidateRunner& runner) {
  Target target;
  for (const cpu::CpuTarget& each : cpu::ladder()) {
    if (target.name.empty() && (each.features & ~cpu::host_features()) == 0) target = {"cpu", std::string(each.name)};
  }
  const auto in = [](Graph& graph, Shape shape) { return graph.add_input({DType::f32, std::move(shape), {}}); };
  const auto gemm = [&](int64_t m, int64_t n, int64_t k, bool transposed) {
    measure(graph_of([&](GraphBuilder& b, Graph& g) {
              const ValueId a = in(g, {m, k});
              return b.matmul(a, transposed ? b.transpose(in(g, {n, k})) : in(g, {k, n}));
            }),
            target, runner);
  };
  gemm(512, 50'257, 768, true);
  gemm(512, 768, 50'257, false);
  gemm(512, 2'304, 768, false);
  gemm(512, 768, 3'072, false);
  gemm(32, 4'096, 11'008, true);
  gemm(1, 50'257, 768, true);
  measure(graph_of([&](GraphBuilder& b, Graph& g) {
            const ValueId sum = b.op("addmm", {in(g, {3'072}), in(g, {512, 768}), in(g, {768, 3'072})});
            return b.op("gelu", {sum}, {{"approximate", std::string("tanh")}});
          }),
          target, runner);
  measure(graph_of([&](GraphBuilder& b, Graph& g) {
            return b.op("softmax", {in(g, {512, 50'257})}, {{"dim", int64_t{1}}});
          }),
          target, runner);
  measure(graph_of([&](GraphBuilder& b, Graph& g) { return b.exp(in(g, {512, 50'257})); }), target, runner);
  measure(graph_of([&](GraphBuilder& b, Graph& g) {
            return b.op("layer_norm", {in(g, {512, 768}), in(g, {768}), in(g, {768})},
                        {{"eps", 1e-5}, {"normalized_rank", int64_t{1}}});
          }),
          target, runner);
  for (const int64_t length : {512, 1'024}) {
    measure(graph_of([&](GraphBuilder& b, Graph& g) {
              const Shape shape{1, length == 512 ? 12 : 4, length, 64};
              return b.op("attention", {in(g, shape), in(g, shape), in(g, shape), k_none},
                          {{"causal", length == 512}, {"scale", 0.125}});
            }),
            target, runner);
  }
}

}  // namespace
}  // namespace kiln

int main() {
  auto runner = kiln::ProcessRunner::create({.executor_path = KILN_EXECUTOR_PATH});
  if (!runner.ok()) return std::fprintf(stderr, "%s\n", runner.status().to_string().c_str()), 1;
  kiln::run(**runner);
}
