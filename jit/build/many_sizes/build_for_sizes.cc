#include "jit/build/many_sizes/build_for_sizes.h"

#include <fmt/ranges.h>

#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <ranges>

#include "base/limits.h"
#include "frontend/canonical/canonical.h"
#include "frontend/infer/bind_symbols.h"
#include "frontend/regions/regions.h"
#include "jit/build/judge_linked.h"
#include "jit/build/many_sizes/link_many.h"
#include "jit/build/plan/missing_op.h"
#include "jit/build/plan/model_choices.h"
#include "jit/build/published.h"
#include "jit/resolve/key.h"
#include "jit/resolve/size_ranges.h"

namespace kiln {

namespace {

/// Regions that are alike, and stand for the same symbols: for any sizes they have one plan.
RegionPartition by_symbols(RegionPartition partition) {
  std::map<std::pair<uint32_t, std::vector<SymbolId>>, uint32_t> known;
  std::vector<RegionClass> classes;
  for (uint32_t r = 0; r < partition.regions.size(); ++r) {
    Region& region = partition.regions[r];
    const auto [found, is_new] =
        known.try_emplace({region.class_index, region.symbols}, static_cast<uint32_t>(classes.size()));
    if (is_new) {
      classes.push_back(partition.classes[region.class_index]);
      classes.back().regions.clear();
    }
    region.class_index = found->second;
    classes[found->second].regions.push_back(r);
  }
  return {std::move(partition.regions), std::move(classes)};
}

/// The parts of a graph of symbols for some sizes; found in that graph, they are the same parts for all sizes.
Expected<RegionPartition> bound(RegionPartition partition, const Sizes& sizes) {
  for (RegionClass& region_class : partition.classes) {
    Sizes of_class;
    for (const SymbolId symbol : partition.regions[region_class.regions.front()].symbols)
      of_class.push_back(sizes[symbol]);
    KILN_ASSIGN_OR_RETURN(region_class.graph, bind_symbols(region_class.graph, of_class));
  }
  return partition;
}

/// A plan in which each launch has a spec of its own: which of them are equal depends on sizes.
Plan with_specs_apart(Plan plan) {
  std::vector<KernelSpec> specs;
  std::vector<Digest> digests;
  for (Launch& launch : plan.launches) {
    specs.push_back(plan.specs[launch.spec]);
    digests.push_back(plan.digests[launch.spec]);
    launch.spec = static_cast<uint32_t>(specs.size() - 1);
  }
  plan.specs = std::move(specs);
  plan.digests = std::move(digests);
  return plan;
}

/// Tries one grid of ranges after the other.
class SizedBuild {
 public:
  SizedBuild(const BuildRequest& request, const Graph& graph, const BuildTarget& target, CandidateRunner& runner,
             const BuildEnvironment& environment)
      : m_request(request),
        m_canonical(canonicalise(graph)),
        m_settled(settle_layouts(sink_views(m_canonical.graph))),
        m_partition(by_symbols(find_regions(m_settled))),
        m_target(target),
        m_runner(runner),
        m_environment(environment),
        m_published(request.cache_directory, environment.supply) {}

  Expected<BuildResult> run() {
    KILN_ASSIGN_OR_RETURN(PlannedSizes asked, plan(m_request.sizes));
    std::vector<SizeRange> tried;
    std::string whys;
    for (const uint32_t doublings : k_range_doublings) {
      const std::vector<SizeRange> ranges = ranges_around(m_request.sizes, doublings);
      if (ranges == tried) continue;
      tried = ranges;
      auto result = build(ranges, asked);
      if (result.ok() || result.status().code() != StatusCode::unimplemented) return result;
      whys += fmt::format("; up to {}: {}", fmt::join(tried | std::views::transform(&SizeRange::last), ", "),
                          result.status().message());
    }
    return error(StatusCode::unimplemented, "no program serves sizes around {}{}", fmt::join(m_request.sizes, ", "),
                 whys);
  }

 private:
  /// Errors: unimplemented where one program does not serve the ranges.
  Expected<BuildResult> build(const std::vector<SizeRange>& ranges, PlannedSizes& asked) {
    KILN_ASSIGN_OR_RETURN(std::vector<PlannedSizes> samples, plan_samples(ranges));
    // Code that suits the largest serves the others, if any does. It is made, and judged, for the sizes that were asked for.
    const SizedSchedules like = sized_schedules(samples.front().plans, m_target);
    KILN_RETURN_IF_ERROR(check_like(samples.front(), asked));
    KILN_ASSIGN_OR_RETURN(asked.kernels, choose_kernels(asked.plans, m_target, m_published, m_environment, {},
                                                        CodeSizes::any, {}, &like));
    for (PlannedSizes& sample : samples) KILN_RETURN_IF_ERROR(choose(sample, asked, like));
    KILN_ASSIGN_OR_RETURN(LinkedMany linked, link_many(samples, ranges, m_target.target));
    KILN_RETURN_IF_ERROR(judge(samples, linked));
    return result_of(asked, ranges, std::move(linked));
  }

  /// All but the kernels.
  Expected<PlannedSizes> plan(const Sizes& sizes) const {
    PlannedSizes planned{.sizes = sizes};
    KILN_ASSIGN_OR_RETURN(planned.graph, bind_symbols(m_canonical.graph, sizes));
    KILN_ASSIGN_OR_RETURN(planned.settled, bind_symbols(m_settled, sizes));
    KILN_ASSIGN_OR_RETURN(planned.partition, bound(m_partition, sizes));
    for (const RegionClass& region_class : planned.partition.classes) {
      auto plan = fuse(region_class.graph, model_choices(m_target.backend, m_target.target));
      if (!plan.ok()) return plan.status().with_op(missing_op(region_class.graph, m_target.backend, m_target.target));
      planned.plans.push_back(with_specs_apart(std::move(*plan)));
    }
    return planned;
  }

  /// Errors: unimplemented where one of them has another form than the largest.
  Expected<std::vector<PlannedSizes>> plan_samples(std::span<const SizeRange> ranges) {
    std::vector<PlannedSizes> samples;
    for (const Sizes& sizes : sample_sizes(ranges)) {
      auto planned = plan(sizes);
      if (!planned.ok()) return error(StatusCode::unimplemented, "{}", planned.status().message());
      samples.push_back(std::move(*planned));
      KILN_RETURN_IF_ERROR(check_like(samples.front(), samples.back()));
      m_environment.progress("fuse", samples.size(), 0, {});
    }
    return samples;
  }

  /// That both have equally many plans of equally many kernels.
  static Status check_like(const PlannedSizes& a, const PlannedSizes& b) {
    const auto kernels_of = [](const Plan& plan) { return plan.specs.size(); };
    if (std::ranges::equal(a.plans, b.plans, {}, kernels_of, kernels_of)) return {};
    return error(StatusCode::unimplemented, "sizes {} and {} have other kernels", fmt::join(a.sizes, ", "),
                 fmt::join(b.sizes, ", "));
  }

  /// Gives a sample the code that was chosen for what was asked for. Errors: unimplemented where it needs other code.
  Status choose(PlannedSizes& sample, const PlannedSizes& asked, const SizedSchedules& like) {
    auto kernels = known_kernels(sample.plans, m_target, m_published, asked.kernels, like);
    if (!kernels.ok()) {
      return error(StatusCode::unimplemented, "sizes {} need other code: {}", fmt::join(sample.sizes, ", "),
                   kernels.status().message());
    }
    sample.kernels = std::move(*kernels);
    sample.kernels.artifacts = asked.kernels.artifacts;
    return {};
  }

  /// At the smallest sizes, and at some that are no corner of the ranges.
  Status judge(std::span<const PlannedSizes> samples, const LinkedMany& linked) {
    KILN_RETURN_IF_ERROR(judge(samples[samples.size() > 1 ? 1 : 0], linked));
    return samples.size() > 2 ? judge(samples.back(), linked) : Status();
  }

  Status judge(const PlannedSizes& sample, const LinkedMany& linked) {
    KILN_ASSIGN_OR_RETURN(const auto program, resized_program(linked.program.payload, sample.sizes));
    std::vector<BuiltArtifact> plans = linked.plans;
    for (BuiltArtifact& plan : plans) {
      KILN_ASSIGN_OR_RETURN(plan.payload, resized_plan(plan.payload, sample.sizes));
    }
    return judge_linked({sample.graph, sample.graph, sample.settled, sample.partition, sample.plans, sample.kernels,
                         program, plans},
                        m_published, m_runner, m_environment)
        .status();
  }

  BuildResult result_of(PlannedSizes& asked, const std::vector<SizeRange>& ranges, LinkedMany linked) const {
    BuildResult result;
    result.artifacts = std::move(asked.kernels.artifacts);
    result.heads = std::move(asked.kernels.heads);
    result.compilations = asked.kernels.compilations;
    const Key key = sized_program_key(m_canonical.digest, ranges, m_target.target);
    result.heads.push_back({key.digest(), linked.program.digest, 0, key.to_json(), m_request.name});
    std::ranges::move(linked.plans, std::back_inserter(result.artifacts));
    result.artifacts.push_back(std::move(linked.program));
    result.report = nlohmann::ordered_json{{"nodes", asked.graph.nodes().size()}}.dump();
    return result;
  }

  const BuildRequest& m_request;
  // Of symbols.
  const Canonical m_canonical;
  const Graph m_settled;
  const RegionPartition m_partition;

  const BuildTarget& m_target;
  CandidateRunner& m_runner;
  const BuildEnvironment& m_environment;
  Published m_published;
};

}  // namespace

Expected<BuildResult> build_for_sizes(const BuildRequest& request, const Graph& graph,
                                      const BackendFinder& find_backend, const BuildEnvironment& environment) {
  if (request.sizes.size() != graph.symbols().size() || request.targets.size() != 1) {
    return invalid_argument("{} sizes for {} symbols and {} targets", request.sizes.size(), graph.symbols().size(),
                            request.targets.size());
  }
  if (request.sizes.size() > limits::k_many_sizes_symbols) {
    return error(StatusCode::unimplemented, "{} symbols, a program for many sizes has at most {}", request.sizes.size(),
                 limits::k_many_sizes_symbols);
  }
  const Target& target = request.targets.front();
  const CompileBackend* backend = find_backend(target.backend);
  if (!backend) return error(StatusCode::unimplemented, "this build has no backend {}", target.backend);
  KILN_ASSIGN_OR_RETURN(auto runner, environment.make_runner(target));
  const BuildTarget asked{*backend, target, Proof::verified, runner->machine()};
  auto result = SizedBuild(request, graph, asked, *runner, environment).run();
  environment.done_with(target, std::move(runner));
  return result;
}

}  // namespace kiln
