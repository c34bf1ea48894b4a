/// What a matrix product takes along.
///
/// Pointwise nodes that follow a product and have as many elements could be computed while the product is still in
/// registers. Those that do not depend on the product in another way (a mean over it, another product of it) are the
/// followers. Of these, the product takes everything up to one exit node, the furthest one for which no value in
/// between is also wanted by other kernels: such a value would have to be stored beside the exit. It may be when the
/// exit has to be stored in any case, because a product takes it as operand or the caller wants it; or when it is
/// itself an output. A cast to a wider dtype that the caller does not want is no exit: what it widens takes less memory,
/// and readers widen it for nothing. So a linear layer takes bias, activation and residual, while the gradient that
/// enters a norm's backward is left alone: three kernels want it, and none wants a product of it and the weight in
/// memory.
#include <algorithm>
#include <set>

#include "frontend/fuse/groups.h"

namespace kiln {

namespace {

constexpr size_t k_followers = 64;
constexpr size_t k_exits_tried = 8;

}  // namespace

Status Grouper::grow_epilogues() {
  for (NodeId id = 0; id < graph().nodes().size(); ++id) {
    if (!m_state.facts->is_live[id] || graph().node(id).op->kind != OpKind::contraction) continue;
    const GroupId group = add_group(GroupKind::gemm, id);
    KILN_RETURN_IF_ERROR(settle(group));
    KILN_RETURN_IF_ERROR(claim_epilogue(group));
  }
  return {};
}

Grouper::Epilogue Grouper::followers(GroupId group) const {
  const ValueId product = graph().node(m_groups[group].anchor).results[0];
  const int64_t elements = m_state.facts->elements[product];
  Epilogue epilogue{{}, std::vector<bool>(graph().values().size(), false)};
  std::set<NodeId> candidates;
  const auto enter = [&](ValueId value) {
    epilogue.is_inside[value] = true;
    candidates.insert(m_state.facts->users[value].begin(), m_state.facts->users[value].end());
  };
  enter(product);
  while (!candidates.empty() && epilogue.nodes.size() < k_followers) {
    const NodeId id = *candidates.begin();
    candidates.erase(candidates.begin());
    const Node& node = graph().node(id);
    if (m_state.group_of[id] != k_no_group || node.results.size() != 1) continue;
    if (m_state.facts->elements[node.results[0]] != elements) continue;
    if (node.op->kind == OpKind::view) {
      enter(node.results[0]);
      continue;
    }
    if (node.op->kind != OpKind::pointwise) continue;
    if (m_choices.heavy_epilogues_apart && is_expensive(*node.op)) continue;
    const bool is_ready = std::all_of(node.operands.begin(), node.operands.end(), [&](ValueId operand) {
      return epilogue.is_inside[operand] || !value_depends_on(operand, group);
    });
    if (!is_ready) continue;
    epilogue.nodes.push_back(id);
    enter(node.results[0]);
  }
  return epilogue;
}

std::vector<NodeId> Grouper::exit_set(const Epilogue& epilogue, GroupId group, NodeId exit) const {
  std::set<NodeId> inside;
  std::vector<NodeId> pending{exit};
  while (!pending.empty()) {
    const NodeId id = pending.back();
    pending.pop_back();
    if (id == m_groups[group].anchor || !inside.insert(id).second) continue;
    for (const ValueId operand : graph().node(id).operands) {
      if (operand != k_none && epilogue.is_inside[operand]) pending.push_back(graph().value(operand).producer);
    }
  }
  std::vector<NodeId> nodes;
  for (const NodeId id : inside) {
    if (!m_state.is_virtual[id]) nodes.push_back(id);
  }
  return nodes;
}

bool Grouper::has_outside_use(ValueId value, const std::vector<NodeId>& inside) const {
  for (const NodeId user : m_state.facts->users[value]) {
    if (m_state.is_virtual[user]) {
      if (has_outside_use(graph().node(user).results[0], inside)) return true;
    } else if (!std::binary_search(inside.begin(), inside.end(), user)) {
      return true;
    }
  }
  return false;
}

Status Grouper::claim_epilogue(GroupId id) {
  const Epilogue epilogue = followers(id);
  const NodeId anchor = m_groups[id].anchor;
  const auto is_operand = [&](ValueId value) {
    std::vector<ValueId> pending{value};
    while (!pending.empty()) {
      const ValueId at = pending.back();
      pending.pop_back();
      for (const NodeId user : m_state.facts->users[at]) {
        const OpKind kind = graph().node(user).op->kind;
        if (kind == OpKind::contraction || kind == OpKind::attention || kind == OpKind::ordering) return true;
        if (kind == OpKind::view) pending.push_back(graph().node(user).results[0]);
      }
    }
    return false;
  };
  size_t tried = 0;
  for (auto exit = epilogue.nodes.rbegin(); exit != epilogue.nodes.rend() && tried < k_exits_tried; ++exit) {
    const ValueId last = graph().node(*exit).results[0];
    if (is_widening(graph(), graph().node(*exit)) && !is_stored(last)) continue;
    std::vector<NodeId> nodes = exit_set(epilogue, id, *exit);
    const bool is_in_memory = is_stored(last) || is_operand(last);
    const auto stays_inside = [&](NodeId node) {
      const ValueId value = graph().node(node).results[0];
      return node == *exit || is_stored(value) || is_in_memory || !has_outside_use(value, nodes);
    };
    if (!stays_inside(anchor) || !std::all_of(nodes.begin(), nodes.end(), stays_inside)) continue;
    ++tried;
    m_groups[id].nodes.insert(m_groups[id].nodes.end(), nodes.begin(), nodes.end());
    std::sort(m_groups[id].nodes.begin(), m_groups[id].nodes.end());
    for (const NodeId node : nodes) m_state.group_of[node] = id;
    if (relower(id)) return {};
    m_groups[id].nodes = {anchor};
    for (const NodeId node : nodes) m_state.group_of[node] = k_no_group;
  }
  return {};
}

}  // namespace kiln
