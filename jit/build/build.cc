// The way of a miss, top-down.

#include "jit/build/build.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/limits.h"
#include "frontend/canonical/canonical.h"
#include "frontend/regions/regions.h"
#include "frontend/wire/wire.h"
#include "jit/build/judge_linked.h"
#include "jit/build/kernels/choose_kernels.h"
#include "jit/build/kernels/tune_kernels.h"
#include "jit/build/link/link.h"
#include "jit/build/many_sizes/build_for_sizes.h"
#include "jit/build/plan/plan_regions.h"
#include "jit/build/plan/tune_plans.h"
#include "jit/build/program_verdict/program_verdict.h"
#include "jit/build/published.h"

namespace kiln {

namespace {

using Json = nlohmann::ordered_json;

/// Milliseconds per stage, for the report.
class StageClock {
 public:
  void finish(std::string_view stage) {
    const auto now = std::chrono::steady_clock::now();
    m_stages[std::string(stage)] = std::chrono::duration<double, std::milli>(now - m_start).count();
    m_start = now;
  }
  const Json& json() const { return m_stages; }

 private:
  std::chrono::steady_clock::time_point m_start = std::chrono::steady_clock::now();
  Json m_stages = Json::object();
};

/// Builds the program of one target into `result`.
class ProgramBuild {
 public:
  /// `client` is the graph as it was asked for, `canonical` its canonical form. Without a `runner` verdicts are deferred.
  ProgramBuild(const BuildRequest& request, const Graph& client, const Canonical& canonical, const BuildTarget& target,
               Published& published, CandidateRunner* runner, const BuildEnvironment& environment, BuildResult& result)
      : m_request(request),
        m_client(client),
        m_canonical(canonical),
        m_target(target),
        m_published(published),
        m_runner(runner),
        m_environment(environment),
        m_result(result) {}

  /// Why there is no device to judge on.
  void note_not_judged(std::string why) { m_not_judged = std::move(why); }

  Expected<Json> run() {
    const Graph settled = settle_layouts(sink_views(m_canonical.graph));
    const RegionPartition partition = find_regions(settled);
    m_clock.finish("regions");
    KILN_ASSIGN_OR_RETURN(m_regions, plan_regions(partition, m_target, m_published, m_environment));
    m_clock.finish("fuse");
    KILN_RETURN_IF_ERROR(choose(settled, partition));
    m_clock.finish("kernels");
    if (m_request.tuning != Tuning::off) {
      const Deadline deadline =
          m_request.tuning == Tuning::background ? deadline_in(limits::k_background_tuning_ms) : k_no_deadline;
      const RaceOrder order{m_request.tuning == Tuning::again, deadline};
      KILN_ASSIGN_OR_RETURN(const uint32_t plans,
                            tune_plans(partition, m_target, m_published, m_environment, order, m_regions, m_kernels));
      KILN_ASSIGN_OR_RETURN(const uint32_t kernels,
                            tune_kernels(m_regions.plans, m_target, m_published, m_environment, order, m_kernels));
      m_result.raced += plans + kernels;
      m_clock.finish("tune");
    }
    m_linked = link(m_canonical, settled, partition, m_regions, m_kernels, m_target);
    m_result.is_tuned = m_result.is_tuned && m_linked.is_tuned;
    m_clock.finish("link");
    Json judged = nullptr;
    if (m_runner != nullptr) {
      KILN_ASSIGN_OR_RETURN(const ProgramVerdict verdict, verdict_over(settled, partition));
      m_not_judged = verdict.not_judged;
      judged = report_of(verdict);
      m_clock.finish("program_verdict");
    }
    m_linked.program_head.name = m_request.name;
    m_linked.program_head.not_judged = m_not_judged;
    Json report{{"target", m_target.target.name},
                {"driver", m_target.target.driver},
                {"verified", m_target.proof == Proof::verified},
                {"not_judged", m_not_judged},
                {"stages_ms", m_clock.json()},
                {"regions", m_regions.plans.size()},
                {"calls", partition.regions.size()},
                {"program", judged},
                {"kernels", m_kernels.report}};
    publish();
    return report;
  }

 private:
  /// Kernels that are for one size race with others of that size, so none that is to race takes sizes from its launches.
  Status choose(const Graph& settled, const RegionPartition& partition) {
    WithFirstCandidates judge_early;
    if (m_runner != nullptr && m_request.tuning == Tuning::off) {
      judge_early = [&](const ChosenKernels& kernels) {
        const LinkedArtifacts linked = link(m_canonical, settled, partition, m_regions, kernels, m_target);
        auto verdict = judge(settled, partition, kernels, linked);
        if (verdict.ok()) m_early = {linked.program.digest, std::move(*verdict)};
      };
    }
    if (m_request.sizes_vary && m_request.tuning == Tuning::off) {
      auto kernels =
          choose_kernels(m_regions.plans, m_target, m_published, m_environment, {}, CodeSizes::one_or_any, judge_early);
      if (kernels.ok()) {
        m_kernels = std::move(*kernels);
        return {};
      }
    }
    KILN_ASSIGN_OR_RETURN(m_kernels, choose_kernels(m_regions.plans, m_target, m_published, m_environment, {},
                                                    CodeSizes::one, judge_early));
    return {};
  }

  /// That over the program as it is linked: the early one where that was of the same bytes.
  Expected<ProgramVerdict> verdict_over(const Graph& settled, const RegionPartition& partition) const {
    if (m_early && m_early->program == m_linked.program.digest) return m_early->verdict;
    return judge(settled, partition, m_kernels, m_linked);
  }

  Expected<ProgramVerdict> judge(const Graph& settled, const RegionPartition& partition, const ChosenKernels& kernels,
                                 const LinkedArtifacts& linked) const {
    return judge_linked({m_client, m_canonical.graph, settled, partition, m_regions.plans, kernels,
                         linked.program.payload, linked.plans},
                        m_published, *m_runner, m_environment);
  }

  static Json report_of(const ProgramVerdict& verdict) {
    return Json{{"not_judged", verdict.not_judged}, {"launches", verdict.launches},
                {"stood_in", verdict.stood_in},     {"values", verdict.values},
                {"elements", verdict.elements},     {"undetermined", verdict.undetermined},
                {"bytes", verdict.bytes},           {"error_of_tolerance", verdict.max_error},
                {"run_ms", verdict.run_ms},         {"reference_ms", verdict.reference_ms}};
  }

  void publish() {
    std::ranges::move(m_kernels.artifacts, std::back_inserter(m_result.artifacts));
    std::ranges::move(m_kernels.heads, std::back_inserter(m_result.heads));
    m_result.compilations += m_kernels.compilations;
    for (size_t i = 0; i < m_linked.plans.size(); ++i) {
      if (m_published.has_plan(m_linked.plan_heads[i].key, m_linked.plans[i].digest)) continue;
      m_result.artifacts.push_back(std::move(m_linked.plans[i]));
      m_result.heads.push_back(std::move(m_linked.plan_heads[i]));
    }
    m_result.artifacts.push_back(std::move(m_linked.program));
    m_result.heads.push_back(std::move(m_linked.program_head));
  }

  /// The verdict over a program of first candidates, made while they were judged.
  struct EarlyVerdict {
    Digest program;
    ProgramVerdict verdict;
  };

  const BuildRequest& m_request;
  const Graph& m_client;
  const Canonical& m_canonical;
  const BuildTarget& m_target;
  Published& m_published;
  CandidateRunner* const m_runner;
  const BuildEnvironment& m_environment;
  BuildResult& m_result;
  RegionPlans m_regions;
  ChosenKernels m_kernels;
  LinkedArtifacts m_linked;
  std::optional<EarlyVerdict> m_early;
  std::string m_not_judged;  // why the program has no verdict of its own, or from where on; empty: it has
  StageClock m_clock;
};

}  // namespace

Expected<BuildResult> build(const BuildRequest& request, const BackendFinder& find_backend,
                            const BuildEnvironment& environment) {
  KILN_ASSIGN_OR_RETURN(const Graph received, from_wire(request.graph_wire));
  if (!request.sizes.empty()) return build_for_sizes(request, received, find_backend, environment);
  if (!received.symbols().empty()) return invalid_argument("graph has {} unbound symbols", received.symbols().size());
  const Canonical canonical = canonicalise(received);
  Published published(request.cache_directory, environment.supply);
  BuildResult result;
  Json programs = Json::array();
  for (const Target& target : request.targets) {
    const CompileBackend* backend = find_backend(target.backend);
    if (!backend) return error(StatusCode::unimplemented, "this build has no backend {}", target.backend);
    auto made = environment.make_runner(target);
    const bool is_absent = made.status().code() == StatusCode::not_found;
    if (!is_absent) KILN_RETURN_IF_ERROR(made.status());
    std::unique_ptr<CandidateRunner> runner = is_absent ? nullptr : std::move(*made);
    const BuildTarget asked{*backend, target, is_absent ? Proof::deferred : Proof::verified,
                            runner ? runner->machine() : nullptr};
    ProgramBuild program(request, received, canonical, asked, published, runner.get(), environment, result);
    if (is_absent) program.note_not_judged(made.status().message());
    KILN_ASSIGN_OR_RETURN(Json report, program.run());
    programs.push_back(std::move(report));
    if (runner) environment.done_with(target, std::move(runner));
  }
  result.report = Json{{"nodes", canonical.graph.nodes().size()}, {"programs", std::move(programs)}}.dump();
  return result;
}

}  // namespace kiln
