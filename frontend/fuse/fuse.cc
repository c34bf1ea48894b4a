/// From a region to a plan: decompose, find out where values lie, decide what shares a kernel, write the kernels down.
#include <algorithm>
#include <map>
#include <set>

#include "frontend/decompose/decompose.h"
#include "frontend/fuse/check_plan.h"
#include "frontend/fuse/copy_points.h"
#include "frontend/fuse/groups.h"
#include "frontend/fuse/homes.h"
#include "frontend/fuse/merge_products.h"
#include "frontend/fuse/plan.h"
#include "frontend/fuse/score_path.h"
#include "frontend/fuse/split_reductions.h"
#include "frontend/kernel/affine.h"
#include "frontend/ops/op.h"

namespace kiln {

namespace {

class PlanWriter {
 public:
  PlanWriter(const GraphFacts& facts, FusionState& state, Plan& plan) : m_facts(facts), m_state(state), m_plan(plan) {}

  void write(const LoweredKernel& kernel) {
    Launch launch;
    launch.spec = spec_index(kernel.spec);
    for (const KernelBuffers::Entry& entry : kernel.buffers) {
      launch.buffers.push_back(buffer_of(entry.value, entry.home));
      launch.values.push_back(entry.holds == k_none ? entry.value : entry.holds);
      launch.initial.push_back(entry.initial);
    }
    launch.nodes = nodes_between(kernel, launch);
    m_plan.launches.push_back(std::move(launch));
  }

 private:
  uint32_t spec_index(const KernelSpec& spec) {
    const auto [found, is_new] = m_specs.try_emplace(canonical_bytes(spec), static_cast<uint32_t>(m_plan.specs.size()));
    if (is_new) {
      m_plan.specs.push_back(spec);
      m_plan.digests.push_back(digest_of(found->first));
    }
    return found->second;
  }

  uint32_t buffer_of(ValueId value, uint32_t home) {
    std::vector<Home>& homes = m_state.homes[value];
    if (homes.empty()) homes.push_back({UINT32_MAX, dense_strides(m_facts.extents[value])});
    Home& place = homes[home];
    if (place.buffer == UINT32_MAX) {
      place.buffer = static_cast<uint32_t>(m_plan.buffers.size());
      m_plan.buffers.push_back({BufferKind::temporary, 0, m_facts.dtype(value),
                                footprint(m_facts.extents[value], place.strides), place.strides});
    }
    return place.buffer;
  }

  // What lies between the values the kernel reads and those it writes.
  std::vector<NodeId> nodes_between(const LoweredKernel& kernel, const Launch& launch) const {
    std::set<ValueId> given;
    std::vector<ValueId> pending;
    for (size_t i = 0; i < launch.values.size(); ++i) {
      const BufferRole role = kernel.spec.buffers[i].role;
      if (role == BufferRole::input) given.insert(launch.values[i]);
      if (role == BufferRole::inout) given.insert(launch.initial[i]);
      if (role != BufferRole::input) pending.push_back(launch.values[i]);
    }
    std::set<NodeId> nodes;
    while (!pending.empty()) {
      const ValueId value = pending.back();
      pending.pop_back();
      if (given.contains(value) || m_facts.is_input(value)) continue;
      if (!nodes.insert(m_facts.graph->value(value).producer).second) continue;
      for (const ValueId operand : m_facts.producer(value).operands) {
        if (operand != k_none) pending.push_back(operand);
      }
    }
    return {nodes.begin(), nodes.end()};
  }

  const GraphFacts& m_facts;
  FusionState& m_state;
  Plan& m_plan;
  std::map<std::vector<uint8_t>, uint32_t> m_specs;
};

// Outputs that have the same value as another one, or as an input.
Status write_copies(const GraphFacts& facts, const FusionState& state, const std::vector<Group>& groups,
                    PlanWriter& writer) {
  for (ValueId value = 0; value < state.homes.size(); ++value) {
    if (state.homes[value].size() < 2 || facts.elements[value] == 0) continue;
    if (!facts.is_input(value)) {
      const GroupKind kind = groups[state.group_of[facts.graph->value(value).producer]].kind;
      if (kind == GroupKind::loops || kind == GroupKind::gemm) continue;  // stores to all homes by itself
    }
    for (uint32_t home = 1; home < state.homes[value].size(); ++home) {
      const LoweringResult result = lower_copy(state, value, home);
      if (!result.ok()) return error(StatusCode::internal, "copy of an output: {}", result.failure->why);
      writer.write(result.kernels.front());
    }
  }
  return {};
}

}  // namespace

namespace {

bool is_of_scores(const Node& node) {
  return node.op->name == "attention_scores" || node.op->name == "attention_of_scores";
}

/// Attention over nothing is no kernel, but what its decomposition gives: zeros. Attention of scores is one with what makes them.
bool has_own_kernel(const Graph& graph, const Node& node) {
  if (node.op->kind != OpKind::attention) return false;
  if (is_of_scores(node) && score_path(graph, graph.value(node.results[0]).producer).empty()) return false;
  return std::all_of(node.operands.begin(), node.operands.end(), [&](ValueId operand) {
    return operand == k_none || product(constants_of(graph.type(operand).shape)) > 0;
  });
}

/// As has_own_kernel, but of no scores: where that is too much for one kernel, all scores are values of their own.
bool has_kernel_without_scores(const Graph& graph, const Node& node) {
  return !is_of_scores(node) && has_own_kernel(graph, node);
}

using KeepWhole = bool (*)(const Graph&, const Node&);

Expected<Plan> fuse_keeping(KeepWhole keep_whole, const Graph& region, const FuseChoices& choices) {
  Plan plan;
  plan.region = region;
  plan.choices = choices;
  KILN_ASSIGN_OR_RETURN(Graph primitives, decompose(region, keep_whole, nullptr, &plan.values));
  if (choices.products_merged) primitives = merge_products(primitives, plan.values);
  KILN_ASSIGN_OR_RETURN(const GraphFacts before, gather_facts(primitives));
  plan.graph = place_copy_points(split_reductions(primitives, before, plan.values), plan.values);
  KILN_ASSIGN_OR_RETURN(GraphFacts facts, gather_facts(plan.graph));
  FusionState state;
  state.facts = &facts;
  settle_homes(plan.graph, facts, state, plan);
  // Where outputs go is fixed; nothing is computed yet.

  Grouper grouper(state, choices);
  KILN_RETURN_IF_ERROR(grouper.run());
  const std::vector<Group> groups = grouper.take_groups();
  // Every node has its kernel; no grouping beyond this point.

  PlanWriter writer(facts, state, plan);
  for (const GroupId id : grouper.execution_order()) {
    for (const LoweredKernel& kernel : groups[id].kernels) writer.write(kernel);
  }
  KILN_RETURN_IF_ERROR(write_copies(facts, state, groups, writer));
  KILN_RETURN_IF_ERROR(check_plan(plan));
  return plan;
}

}  // namespace

Expected<Plan> fuse(const Graph& region, const FuseChoices& choices) {
  Expected<Plan> plan = fuse_keeping(has_own_kernel, region, choices);
  if (plan.ok() || std::ranges::none_of(region.nodes(), is_of_scores)) return plan;
  return fuse_keeping(has_kernel_without_scores, region, choices);
}

}  // namespace kiln
