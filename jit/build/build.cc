// The way of a miss, top-down.

#include "jit/build/build.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "backends/compile_registry.h"
#include "cache/reader/reader.h"
#include "frontend/canonical/canonical.h"
#include "frontend/regions/regions.h"
#include "frontend/wire/wire.h"
#include "jit/build/artifact_writer.h"
#include "jit/build/kernel_builder.h"
#include "jit/build/missing_op.h"
#include "jit/build/program_verdict.h"
#include "jit/build/published.h"
#include "jit/resolve/key.h"

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

/// A distinct region of the graph on its way to a plan artifact.
struct PlannedRegion {
  Graph graph;
  Key key;
  std::optional<Digest> artifact;  // from the start when the cache has it, kernels included
  Plan plan;
  std::vector<Digest> codes;  // per plan.specs
};

/// Builds the program of one target into `result`.
class ProgramBuild {
 public:
  /// `client` is the graph as it was asked for, `graph` its canonical form. Without a `runner` verdicts are deferred.
  ProgramBuild(const Graph& client, const Graph& graph, const CompileBackend& backend, const Target& target,
               Published& published, const RunnerFactory& make_runner, CandidateRunner* runner,
               const ProgressFunction& progress, BuildResult& result)
      : m_client(client),
        m_graph(graph),
        m_backend(backend),
        m_target(target),
        m_published(published),
        m_make_runner(make_runner),
        m_runner(runner),
        m_proof(runner != nullptr ? Proof::verified : Proof::deferred),
        m_progress(progress),
        m_result(result) {}

  Expected<Json> run() {
    const Graph settled = settle_layouts(sink_views(m_graph));
    const RegionPartition partition = find_regions(settled);
    m_clock.finish("regions");
    KILN_RETURN_IF_ERROR(plan_regions(partition));
    m_clock.finish("fuse");
    KILN_RETURN_IF_ERROR(make_code());
    m_clock.finish("kernels");
    write_plans();
    BuiltArtifact program = write_program(settled, partition);
    m_clock.finish("write");
    Json judged = nullptr;
    if (m_runner != nullptr) {
      KILN_ASSIGN_OR_RETURN(judged, judge(program, settled, partition));
      m_clock.finish("program_verdict");
    }
    publish(std::move(program));
    return Json{{"target", m_target.name},     {"driver", m_target.driver},   {"verified", m_proof == Proof::verified},
                {"stages_ms", m_clock.json()}, {"regions", m_regions.size()}, {"calls", partition.regions.size()},
                {"program", judged},           {"kernels", m_kernels}};
  }

 private:
  Status plan_regions(const RegionPartition& partition) {
    const TargetTraits traits = m_backend.traits(m_target);
    for (const RegionClass& region_class : partition.classes) {
      PlannedRegion region{region_class.graph, {}, {}, {}, {}};
      region.key = plan_key(region.graph, m_target, m_proof);
      // What was published is not built again, but its plan is: the verdict over the program holds each launch against it.
      auto plan = fuse(region.graph, traits);
      if (!plan.ok()) return plan.status().with_op(missing_op(region.graph, m_backend, m_target));
      region.plan = std::move(plan).value();
      if (auto known = m_published.complete_plan(region.key.digest())) {
        region.artifact = known->digest;
        region.codes = std::move(known->codes);
      }
      m_regions.push_back(std::move(region));
      m_progress("fuse", m_regions.size(), partition.classes.size(), {});
    }
    return {};
  }

  /// Code for every spec that has none: specs are shared across regions, and with everything published
  /// before.
  Status make_code() {
    std::vector<KernelJob> jobs;
    std::unordered_map<Digest, size_t> job_of;
    std::unordered_map<Digest, Digest> code_of;
    for (PlannedRegion& region : m_regions) {
      if (region.artifact) continue;
      for (const Launch& launch : region.plan.launches) {
        const Key key = key_of(region.plan.specs[launch.spec]);
        const Digest digest = key.digest();
        if (code_of.contains(digest) || job_of.contains(digest)) continue;
        if (auto known = m_published.code(digest)) {
          code_of[digest] = *known;
        } else {
          job_of[digest] = jobs.size();
          jobs.push_back({digest, key.to_json(), &region.plan, &launch, deferred_code(region.plan.specs[launch.spec])});
        }
      }
    }
    KILN_ASSIGN_OR_RETURN(auto kernels, build_kernels(jobs, m_backend, m_target, m_make_runner, m_progress));
    for (size_t i = 0; i < jobs.size(); ++i) {
      code_of[jobs[i].key] = kernels[i].artifact.digest;
      report(jobs[i], kernels[i]);
      m_result.compilations += kernels[i].compilations;
      m_result.heads.push_back({jobs[i].key, kernels[i].artifact.digest, 0, jobs[i].key_parts});
      m_result.artifacts.push_back(std::move(kernels[i].artifact));
    }
    for (PlannedRegion& region : m_regions) {
      if (region.artifact) continue;
      for (const KernelSpec& spec : region.plan.specs) region.codes.push_back(code_of.at(key_of(spec).digest()));
    }
    return {};
  }

  Key key_of(const KernelSpec& spec) const { return code_key(spec, m_target, m_backend.toolchain(), m_proof); }

  /// What was compiled for the spec where its verdict had to be deferred.
  std::optional<Image> deferred_code(const KernelSpec& spec) {
    if (m_proof == Proof::deferred) return std::nullopt;
    return m_published.image(code_key(spec, m_target, {}, Proof::deferred).digest());
  }

  void report(const KernelJob& job, const BuiltKernel& kernel) {
    m_kernels.push_back({{"name", kernel_name(job.spec())},
                         {"key", job.key.to_hex()},
                         {"schedule", kernel.schedule},
                         {"compilations", kernel.compilations},
                         {"code_bytes", kernel.artifact.payload.size()},
                         {"compile_ms", kernel.compile_ms},
                         {"verify_ms", kernel.verify_ms},
                         {"run_ms", kernel.run_ms},
                         {"error_of_tolerance", kernel.max_error},
                         {"elements_checked", kernel.checked},
                         {"tiles", kernel.tiles},
                         {"tiles_checked", kernel.tiles_met}});
  }

  void write_plans() {
    for (PlannedRegion& region : m_regions) {
      if (region.artifact) continue;
      BuiltArtifact artifact =
          plan_artifact(region.plan, static_cast<uint32_t>(region.graph.inputs().size()), region.codes);
      region.artifact = artifact.digest;
      m_result.heads.push_back({region.key.digest(), artifact.digest, 0, region.key.to_json()});
      m_result.artifacts.push_back(std::move(artifact));
    }
  }

  BuiltArtifact write_program(const Graph& settled, const RegionPartition& partition) const {
    ProgramDescription description{settled, {}, {}, m_target.name, 0};
    for (const PlannedRegion& region : m_regions) description.plans.push_back(*region.artifact);
    for (const Region& region : partition.regions) {
      description.calls.push_back({region.class_index, region.inputs, region.outputs});
    }
    return program_artifact(description);
  }

  /// The program as it is linked, run and held against the client's graph. Errors: internal when it is wrong.
  Expected<Json> judge(const BuiltArtifact& program, const Graph& settled, const RegionPartition& partition) {
    m_progress("verify", 0, 1, "program");
    std::vector<const Plan*> plans;
    for (const PlannedRegion& region : m_regions) plans.push_back(&region.plan);
    const LinkedProgram linked{program.payload, [&](const Digest& digest) { return plan_named(digest); },
                               [&](const Digest& digest) { return kernel_named(digest); }};
    const ProgramVerdict verdict = judge_program({m_client, m_graph, settled, partition, plans}, linked, *m_runner);
    KILN_RETURN_IF_ERROR(verdict.status);
    m_progress("verify", 1, 1, "program");
    return Json{{"not_judged", verdict.not_judged},
                {"launches", verdict.launches},
                {"values", verdict.values},
                {"elements", verdict.elements},
                {"undetermined", verdict.undetermined},
                {"bytes", verdict.bytes},
                {"error_of_tolerance", verdict.max_error},
                {"run_ms", verdict.run_ms},
                {"reference_ms", verdict.reference_ms}};
  }

  const BuiltArtifact* built(const Digest& digest) const {
    const auto found = std::ranges::find(m_result.artifacts, digest, &BuiltArtifact::digest);
    return found == m_result.artifacts.end() ? nullptr : &*found;
  }

  Expected<std::span<const uint8_t>> plan_named(const Digest& digest) const {
    if (const BuiltArtifact* artifact = built(digest)) return std::span<const uint8_t>(artifact->payload);
    if (const auto known = m_published.plan_named(digest)) return *known;
    return error(StatusCode::not_found, "plan {} is gone from the cache", digest.to_short());
  }

  Expected<LinkedProgram::Kernel> kernel_named(const Digest& digest) const {
    const KernelSpec* spec = nullptr;
    for (const PlannedRegion& region : m_regions) {
      for (size_t i = 0; i < region.codes.size(); ++i) {
        if (region.codes[i] == digest) spec = &region.plan.specs[i];
      }
    }
    if (spec == nullptr)
      return error(StatusCode::internal, "the program names code {} that its plans do not", digest.to_short());
    const auto buffers = static_cast<uint32_t>(spec->buffers.size());
    if (const BuiltArtifact* code = built(digest)) {
      const Image image{code->payload, code->entry, code->tasks, code->workspace_bytes, code->features};
      return LinkedProgram::Kernel{image, buffers};
    }
    if (auto known = m_published.image_named(digest)) return LinkedProgram::Kernel{std::move(*known), buffers};
    return error(StatusCode::not_found, "code {} is gone from the cache", digest.to_short());
  }

  void publish(BuiltArtifact program) {
    const Key key = program_key(m_graph, m_target, m_proof);
    m_result.heads.push_back({key.digest(), program.digest, 0, key.to_json()});
    m_result.artifacts.push_back(std::move(program));
  }

  const Graph& m_client;
  const Graph& m_graph;
  const CompileBackend& m_backend;
  const Target& m_target;
  Published& m_published;
  const RunnerFactory& m_make_runner;
  CandidateRunner* const m_runner;
  const Proof m_proof;
  const ProgressFunction& m_progress;
  BuildResult& m_result;
  std::vector<PlannedRegion> m_regions;
  Json m_kernels = Json::array();
  StageClock m_clock;
};

}  // namespace

Expected<BuildResult> build(const BuildRequest& request, const RunnerFactory& make_runner,
                            const ProgressFunction& progress) {
  KILN_ASSIGN_OR_RETURN(const Graph received, from_wire(request.graph_wire));
  if (!received.symbols().empty()) return invalid_argument("graph has {} unbound symbols", received.symbols().size());
  const Graph graph = canonicalise(received);
  Published published(request.cache_directory);
  BuildResult result;
  Json programs = Json::array();
  for (const Target& target : request.targets) {
    const CompileBackend* backend = find_compile_backend(target.backend);
    if (!backend) return error(StatusCode::unimplemented, "this build has no backend {}", target.backend);
    KILN_ASSIGN_OR_RETURN(const auto runner, make_runner(target));
    ProgramBuild program(received, graph, *backend, target, published, make_runner, runner.get(), progress, result);
    KILN_ASSIGN_OR_RETURN(Json report, program.run());
    programs.push_back(std::move(report));
  }
  result.report = Json{{"nodes", graph.nodes().size()}, {"programs", std::move(programs)}}.dump();
  return result;
}

}  // namespace kiln
