/// What shares a kernel.
///
/// First attention takes the expression that its scores are made by, and every matrix product claims its epilogue, going
/// forward. Then all other nodes are placed going backward, each
/// after everything that uses it, so that its users' kernels are known:
///  - one user kernel: join it. That never makes a cycle, since the node's only way out leads into that kernel. A product
///    does not take in what is made of something heavy without it: that is stored once, where each heavy value would be,
///    in a wider dtype perhaps. It does where that was chosen (FuseChoices::heavy_factors_inside).
///  - several user kernels and cheap: virtual, computed again in each; in more than a few only a cast to a wider dtype,
///    whose copy would take longer to read.
///  - several, and one of them can host it as one more stored value without waiting for another: join that.
///  - otherwise a kernel of its own.
/// Whether a kernel can host a node is not guessed: the kernel is lowered with it, and the node stays if that worked and
/// the kernel does not compute it over and over (repeats.h).
/// A view that stands in the way of lowering (a reshape that cuts across a permutation, an operand with too many
/// dims) gets a buffer, and a kernel that copies it there.
/// Then kernels that read the same values in the same iteration space and do not wait for one another are merged: the
/// gradients of a norm's weight and bias.
/// Last, all kernels are lowered from what is decided then (settle_groups.cc): what was lowered on the way only tells
/// what can be lowered.
#include "frontend/fuse/groups.h"

#include <algorithm>
#include <map>
#include <set>

#include "frontend/fuse/repeats.h"
#include "frontend/fuse/score_path.h"
#include "frontend/kernel/expensive.h"
#include "frontend/ops/attributes.h"

namespace kiln {

namespace {

// A cheap value may be computed again through this many virtual nodes.
constexpr uint32_t k_virtual_depth = 6;
// How far to look for a dependency before assuming there is one.
constexpr size_t k_search_nodes = 4096;
// How far to look for heavy nodes that values are made of.
constexpr size_t k_beside_nodes = 64;

bool is_scatter(const Node& node) {
  const std::string_view name = node.op->name;
  if (name == "slice_scatter") return integer_of(node.attributes, "step") != 1;
  return name == "index_add" || name == "scatter" || name == "scatter_add";
}

/// Whether a kernel wants the value as a tensor with strides: operands of products, of sorting, and of attention, but not what
/// is part of the score expression.
bool is_laid_out_in(const Node& user, ValueId value) {
  if (user.op->kind == OpKind::contraction || user.op->kind == OpKind::ordering) return true;
  if (user.op->kind != OpKind::attention) return false;
  for (size_t i = 0; i < user.operands.size(); ++i) {
    const std::string_view name = user.op->operands[i].name;
    if (user.operands[i] == value && name != "bias" && name != "scores") return true;
  }
  return false;
}

bool is_default_virtual(const OpDef& op) { return op.kind == OpKind::view || op.kind == OpKind::creation; }

}  // namespace

bool is_expensive(const OpDef& op) { return op.kind != OpKind::pointwise || is_expensive(op.scalar); }

Grouper::Grouper(FusionState& state, const FuseChoices& choices)
    : m_state(state), m_choices(choices), m_virtual_depth(state.facts->graph->nodes().size(), 0) {
  const GraphFacts& facts = *state.facts;
  m_state.group_of.assign(graph().nodes().size(), k_no_group);
  m_state.is_virtual.assign(graph().nodes().size(), false);
  m_state.is_pinned.resize(graph().values().size(), false);
  for (NodeId id = 0; id < graph().nodes().size(); ++id) {
    m_state.is_virtual[id] = facts.is_live[id] && is_default_virtual(*graph().node(id).op);
  }
}

Status Grouper::run() {
  KILN_RETURN_IF_ERROR(claim_scores());
  KILN_RETURN_IF_ERROR(grow_epilogues());
  KILN_RETURN_IF_ERROR(place_backwards());
  merge_siblings();
  return settle_all();
}

GroupId Grouper::add_group(GroupKind kind, NodeId node) {
  m_groups.push_back({kind, node, {node}, {}});
  const auto group = static_cast<GroupId>(m_groups.size() - 1);
  m_state.group_of[node] = group;
  return group;
}

void Grouper::collect_uses(ValueId value, Uses& uses) const {
  for (const NodeId user : m_state.facts->users[value]) {
    const GroupId group = m_state.group_of[user];
    if (group == k_no_group) {
      if (!m_state.is_virtual[user]) {
        uses.is_undecided = true;
        continue;
      }
      for (const ValueId result : graph().node(user).results) collect_uses(result, uses);
      continue;
    }
    if (is_laid_out_in(graph().node(user), value)) uses.is_operand = true;
    if (std::find(uses.groups.begin(), uses.groups.end(), group) == uses.groups.end()) uses.groups.push_back(group);
  }
}

Grouper::Uses Grouper::uses_of(ValueId value) const {
  Uses uses;
  collect_uses(value, uses);
  std::sort(uses.groups.begin(), uses.groups.end());
  return uses;
}

std::vector<ValueId> Grouper::roots_of(GroupId id) const {
  const Group& group = m_groups[id];
  std::vector<ValueId> roots;
  for (const NodeId node : group.nodes) {
    for (const ValueId result : graph().node(node).results) {
      const Uses uses = uses_of(result);
      const bool is_read = std::any_of(uses.groups.begin(), uses.groups.end(), [&](GroupId g) { return g != id; });
      if (is_read || uses.is_undecided || is_stored(result)) roots.push_back(result);
    }
  }
  std::sort(roots.rbegin(), roots.rend());
  return roots;
}

LoweringResult Grouper::lower(GroupId id) const {
  const Group& group = m_groups[id];
  const std::vector<ValueId>& results = graph().node(group.nodes.back()).results;
  if (std::all_of(results.begin(), results.end(), [&](ValueId v) { return m_state.facts->elements[v] == 0; }) &&
      group.nodes.size() == 1) {
    return {};
  }
  switch (group.kind) {
    case GroupKind::attention:
      return lower_attention(m_state, id, group.anchor);
    case GroupKind::sort:
      return lower_sort(m_state, id, group.anchor);
    case GroupKind::scatter:
      return lower_scatter(m_state, id, group.anchor);
    default:
      break;
  }
  std::vector<ValueId> roots = roots_of(id);
  // A kernel whose result nobody wants stores it nevertheless: attention's unused lse has such users.
  if (roots.empty()) roots.push_back(graph().node(group.nodes.back()).results[0]);
  std::erase_if(roots, [&](ValueId root) { return m_state.facts->elements[root] == 0; });
  if (roots.empty()) return {};
  return group.kind == GroupKind::gemm ? lower_gemm(m_state, id, group.anchor, roots) : lower_loops(m_state, id, roots);
}

bool Grouper::relower(GroupId id) {
  LoweringResult result = lower(id);
  if (!result.ok()) return false;
  m_groups[id].kernels = std::move(result.kernels);
  return true;
}

Status Grouper::settle(GroupId id) {
  for (;;) {
    LoweringResult result = lower(id);
    if (result.ok()) {
      m_groups[id].kernels = std::move(result.kernels);
      return {};
    }
    ValueId value = result.failure->materialise;
    const bool helps = value != k_none && !m_state.facts->is_input(value) && m_state.is_inline(value, id) &&
                       m_state.group_of[graph().value(value).producer] == k_no_group;
    if (!helps) value = m_groups[id].nodes.size() == 1 ? nearest_inline(m_groups[id].anchor) : k_none;
    if (value == k_none) {
      const Node& node = graph().node(m_groups[id].anchor);
      return error(StatusCode::unimplemented, "{}: {}", node.op->name, result.failure->why);
    }
    m_state.is_pinned[value] = true;
  }
}

ValueId Grouper::nearest_inline(NodeId node) const {
  for (const ValueId operand : graph().node(node).operands) {
    if (operand == k_none || m_state.facts->is_input(operand)) continue;
    const NodeId producer = graph().value(operand).producer;
    const bool is_open = m_state.group_of[producer] == k_no_group && m_state.is_virtual[producer];
    if (is_open && !m_state.is_pinned[operand] && graph().node(producer).op->kind != OpKind::creation) return operand;
  }
  return k_none;
}

bool Grouper::try_join(NodeId node, GroupId id) {
  Group& group = m_groups[id];
  m_state.group_of[node] = id;
  group.nodes.insert(std::upper_bound(group.nodes.begin(), group.nodes.end(), node), node);
  LoweringResult result = lower(id);
  if (result.ok() && !repeats_more(result.kernels, group.kernels)) {
    group.kernels = std::move(result.kernels);
    return true;
  }
  group.nodes.erase(std::find(group.nodes.begin(), group.nodes.end(), node));
  m_state.group_of[node] = k_no_group;
  return false;
}

bool Grouper::try_virtual(NodeId node, const std::vector<GroupId>& groups) {
  m_state.is_virtual[node] = true;
  std::vector<LoweringResult> results;
  for (const GroupId id : groups) {
    results.push_back(lower(id));
    if (results.back().ok() && !repeats_more(results.back().kernels, m_groups[id].kernels)) continue;
    m_state.is_virtual[node] = false;
    return false;
  }
  for (size_t i = 0; i < groups.size(); ++i) m_groups[groups[i]].kernels = std::move(results[i].kernels);
  return true;
}

Status Grouper::claim_scores() {
  for (NodeId id = 0; id < graph().nodes().size(); ++id) {
    if (!m_state.facts->is_live[id] || graph().node(id).op->name != "attention_of_scores") continue;
    const GroupId group = add_group(GroupKind::attention, id);
    m_groups[group].nodes = score_path(graph(), id);
    if (m_groups[group].nodes.empty()) return error(StatusCode::unimplemented, "attention of scores from elsewhere");
    for (const NodeId node : m_groups[group].nodes) m_state.group_of[node] = group;
    KILN_RETURN_IF_ERROR(settle(group));
  }
  return {};
}

Status Grouper::place_backwards() {
  for (auto id = static_cast<NodeId>(graph().nodes().size()); id-- > 0;) {
    if (!m_state.facts->is_live[id]) continue;
    const Node& node = graph().node(id);
    if (m_state.group_of[id] != k_no_group) {
      // A product: its users are known now, and with them what it stores.
      if (node.op->kind == OpKind::contraction) KILN_RETURN_IF_ERROR(settle_or_dissolve(m_state.group_of[id]));
      continue;
    }
    KILN_RETURN_IF_ERROR(place(id));
  }
  return {};
}

/// A product reads what is narrower in memory faster than what it was widened to.
bool Grouper::is_read_narrow(const Node& node) const { return !m_choices.widening_apart && is_widening(graph(), node); }

Grouper::Ingredients Grouper::ingredients_of(const std::vector<NodeId>& nodes, int64_t elements) const {
  Ingredients found{{nodes.begin(), nodes.end()}, {}};
  std::vector<NodeId> pending = nodes;
  while (!pending.empty() && found.nodes.size() < k_beside_nodes) {
    const NodeId at = pending.back();
    pending.pop_back();
    for (const ValueId operand : graph().node(at).operands) {
      if (operand == k_none || m_state.facts->is_input(operand) || is_stored(operand)) continue;
      const NodeId producer = graph().value(operand).producer;
      const OpDef& op = *graph().node(producer).op;
      const bool is_pointwise = op.kind == OpKind::pointwise;
      if ((!is_pointwise && op.kind != OpKind::view) || !found.nodes.insert(producer).second) continue;
      const bool is_heavy = is_pointwise && is_expensive(op);
      if (is_heavy && m_state.facts->elements[operand] == elements) found.heavy.push_back(operand);
      if (!is_heavy) pending.push_back(producer);
    }
  }
  return found;
}

bool Grouper::is_made_beside(NodeId id, GroupId product) const {
  const Node& node = graph().node(id);
  if (m_groups[product].kind != GroupKind::gemm || node.op->kind != OpKind::pointwise || is_widening(graph(), node))
    return false;
  const int64_t elements = m_state.facts->elements[node.results[0]];
  const std::vector<ValueId> heavy = ingredients_of({id}, elements).heavy;
  if (heavy.empty() || value_depends_on(node.results[0], product)) return false;
  if (!m_choices.heavy_factors_inside) return true;
  std::vector<NodeId> kernel = m_groups[product].nodes;
  kernel.push_back(id);
  const std::set<NodeId> all = ingredients_of(kernel, elements).nodes;
  const std::vector<NodeId> inside(all.begin(), all.end());
  return std::ranges::any_of(heavy, [&](ValueId value) { return has_outside_use(value, inside); });
}

bool Grouper::is_welcome(NodeId id, GroupId user) const {
  const OpDef& op = *graph().node(id).op;
  const bool is_inside = m_choices.heavy_factors_inside && m_groups[user].kind == GroupKind::gemm;
  const bool is_light = !is_expensive(op) || (is_inside && op.kind == OpKind::pointwise);
  return m_groups[user].kind == GroupKind::loops || (is_light && !is_made_beside(id, user));
}

Status Grouper::place(NodeId id) {
  const Node& node = graph().node(id);
  if (node.op->kind == OpKind::attention) return settle(add_group(GroupKind::attention, id));
  if (node.op->kind == OpKind::ordering) return settle(add_group(GroupKind::sort, id));
  if (is_scatter(node)) return settle(add_group(GroupKind::scatter, id));
  if (node.results.size() != 1) {
    return error(StatusCode::unimplemented, "{}: {} results", node.op->name, node.results.size());
  }
  const ValueId value = node.results[0];
  if (m_state.is_virtual[id]) {
    if (!m_state.is_pinned[value]) return {};
    return settle(add_group(GroupKind::loops, id));
  }
  const Uses uses = uses_of(value);
  const bool is_laid_out = uses.is_operand && !is_read_narrow(node);
  const bool in_memory = is_stored(value) || is_laid_out || m_state.is_pinned[value];
  const bool is_cheap = !is_expensive(*node.op);
  if (!in_memory && uses.groups.size() == 1) {
    const GroupId user = uses.groups.front();
    if (is_welcome(id, user) && try_join(id, user)) return {};
  }
  if (!in_memory && is_cheap && uses.groups.size() > 1) {
    uint32_t depth = 0;
    for (const NodeId user : m_state.facts->users[value]) {
      if (m_state.is_virtual[user]) depth = std::max(depth, m_virtual_depth[user]);
    }
    m_virtual_depth[id] = depth + 1;
    const bool is_free = is_widening(graph(), node);
    const bool is_near = depth < k_virtual_depth && uses.groups.size() <= 4;
    if ((is_free || is_near) && try_virtual(id, uses.groups)) return {};
  }
  for (const GroupId user : uses.groups) {
    if (m_groups[user].kind != GroupKind::loops) continue;
    const bool is_safe = std::none_of(uses.groups.begin(), uses.groups.end(),
                                      [&](GroupId other) { return other != user && depends_on(user, other); });
    if (is_safe && try_join(id, user)) return {};
  }
  return settle(add_group(GroupKind::loops, id));
}

bool Grouper::reaches(std::vector<NodeId> pending, GroupId other, NodeId skip) const {
  const NodeId first = m_groups[other].nodes.front();
  std::set<NodeId> seen;
  std::set<GroupId> seen_groups;
  const auto visit = [&](NodeId node) {
    for (const ValueId operand : graph().node(node).operands) {
      if (operand == k_none || m_state.facts->is_input(operand)) continue;
      const NodeId producer = graph().value(operand).producer;
      if (producer != skip && seen.insert(producer).second) pending.push_back(producer);
    }
  };
  std::vector<NodeId> start = std::move(pending);
  pending.clear();
  for (const NodeId node : start) visit(node);
  while (!pending.empty()) {
    const NodeId node = pending.back();
    pending.pop_back();
    const GroupId group = m_state.group_of[node];
    if (group == other) return true;
    if (seen.size() > k_search_nodes) return true;
    if (group == k_no_group) {
      if (node > first) visit(node);
      continue;
    }
    if (!seen_groups.insert(group).second || m_groups[group].nodes.back() < first) continue;
    for (const NodeId member : m_groups[group].nodes) visit(member);
  }
  return false;
}

bool Grouper::depends_on(GroupId group, GroupId other) const { return reaches(m_groups[group].nodes, other, k_none); }

bool Grouper::value_depends_on(ValueId value, GroupId other) const {
  if (m_state.facts->is_input(value)) return false;
  const NodeId producer = graph().value(value).producer;
  const GroupId group = m_state.group_of[producer];
  if (group == other) return true;
  return group == k_no_group ? reaches({producer}, other, k_none) : depends_on(group, other);
}

bool Grouper::try_merge(GroupId into, GroupId from) {
  Group& target = m_groups[into];
  Group& source = m_groups[from];
  const std::vector<NodeId> kept = target.nodes;
  target.nodes.insert(target.nodes.end(), source.nodes.begin(), source.nodes.end());
  std::sort(target.nodes.begin(), target.nodes.end());
  for (const NodeId node : source.nodes) m_state.group_of[node] = into;
  if (relower(into)) {
    source.nodes.clear();
    source.kernels.clear();
    return true;
  }
  target.nodes = kept;
  for (const NodeId node : source.nodes) m_state.group_of[node] = from;
  return false;
}

void Grouper::merge_siblings() {
  // (extents, parallel rank, a value that is read in full) → the groups that have them, in order.
  std::map<std::tuple<std::vector<int64_t>, uint32_t, ValueId>, std::vector<GroupId>> siblings;
  for (GroupId id = 0; id < m_groups.size(); ++id) {
    const Group& group = m_groups[id];
    if (group.kind != GroupKind::loops || group.kernels.size() != 1) continue;
    const KernelSpec& spec = group.kernels[0].spec;
    const LoopsSpec& loops = std::get<LoopsSpec>(spec.kernel);
    const int64_t points = product(loops.extents);
    for (size_t i = 0; i < spec.buffers.size(); ++i) {
      if (spec.buffers[i].role != BufferRole::input || spec.buffers[i].elements * 2 < points) continue;
      siblings[{loops.extents, loops.parallel_rank, group.kernels[0].buffers[i].value}].push_back(id);
    }
  }
  for (const auto& [key, groups] : siblings) {
    for (size_t i = 0; i < groups.size(); ++i) {
      for (size_t j = i + 1; j < groups.size(); ++j) {
        const GroupId into = groups[i], from = groups[j];
        if (m_groups[into].is_empty() || m_groups[from].is_empty()) continue;
        if (!depends_on(into, from) && !depends_on(from, into)) try_merge(into, from);
      }
    }
  }
}

}  // namespace kiln
