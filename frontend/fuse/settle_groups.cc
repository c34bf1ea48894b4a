/// From what shares a kernel to kernels that fit together.
///
/// While groups form, each is lowered with what is known then. What is decided later changes it: a value that gets a
/// buffer is loaded by kernels that computed it themselves, and what it is made of is no longer read by them. So once
/// all is decided every group is lowered again. That may ask for further buffers, and buffers may close a ring: a kernel
/// that needs in memory what another makes of its own result. The ring is cut where a kernel waits for itself: what
/// comes after the wait gets a kernel of its own. Each round adds a buffer or a group, so rounds end.
#include <algorithm>
#include <cassert>
#include <set>

#include "frontend/fuse/groups.h"

namespace kiln {

namespace {

/// Dependencies first, else by `first_node`. What waits for itself, and what waits for that, is not in it.
std::vector<GroupId> in_order(const std::vector<std::vector<GroupId>>& sources, const std::vector<Group>& groups) {
  std::vector<size_t> waiting(groups.size());
  std::vector<std::vector<GroupId>> feeds(groups.size());
  std::set<std::pair<NodeId, GroupId>> ready;
  for (GroupId id = 0; id < groups.size(); ++id) {
    waiting[id] = sources[id].size();
    for (const GroupId source : sources[id]) feeds[source].push_back(id);
    if (sources[id].empty() && !groups[id].is_empty()) ready.insert({groups[id].nodes.back(), id});
  }
  std::vector<GroupId> order;
  while (!ready.empty()) {
    const GroupId id = ready.begin()->second;
    ready.erase(ready.begin());
    order.push_back(id);
    for (const GroupId user : feeds[id]) {
      if (--waiting[user] == 0) ready.insert({groups[user].nodes.back(), user});
    }
  }
  return order;
}

/// The groups that need something of `group`, itself among them when it is in a ring.
std::vector<bool> dependents_of(GroupId group, const std::vector<std::vector<GroupId>>& sources) {
  std::vector<bool> depends(sources.size(), false);
  for (bool grows = true; grows;) {
    grows = false;
    for (GroupId id = 0; id < sources.size(); ++id) {
      if (depends[id]) continue;
      depends[id] = std::any_of(sources[id].begin(), sources[id].end(),
                                [&](GroupId source) { return source == group || depends[source]; });
      grows = grows || depends[id];
    }
  }
  return depends;
}

}  // namespace

Status Grouper::settle_all() {
  for (;;) {
    const size_t groups = m_groups.size();
    for (GroupId id = 0; id < m_groups.size(); ++id) {
      if (!m_groups[id].is_empty()) KILN_RETURN_IF_ERROR(settle_or_dissolve(id));
    }
    if (group_pinned_values() || m_groups.size() != groups) continue;
    m_order = in_order(sources(), m_groups);
    const auto live = std::count_if(m_groups.begin(), m_groups.end(), [](const Group& g) { return !g.is_empty(); });
    if (static_cast<ptrdiff_t>(m_order.size()) == live) return {};
    cut_a_ring();
  }
}

bool Grouper::group_pinned_values() {
  bool any = false;
  for (NodeId id = 0; id < graph().nodes().size(); ++id) {
    if (!m_state.is_virtual[id] || m_state.group_of[id] != k_no_group) continue;
    if (!m_state.is_pinned[graph().node(id).results[0]]) continue;
    add_group(GroupKind::loops, id);
    any = true;
  }
  return any;
}

Status Grouper::settle_or_dissolve(GroupId id) {
  const Status status = settle(id);
  if (status.ok() || m_groups[id].nodes.size() == 1) return status;
  dissolve(id);
  return settle(id);
}

void Grouper::dissolve(GroupId id) {
  const std::vector<NodeId> nodes = std::move(m_groups[id].nodes);
  const NodeId kept = m_groups[id].kind == GroupKind::loops ? nodes.front() : m_groups[id].anchor;
  m_groups[id].nodes = {kept};
  m_groups[id].anchor = kept;
  for (const NodeId node : nodes) {
    if (node != kept) add_group(GroupKind::loops, node);
  }
}

std::vector<std::vector<GroupId>> Grouper::sources() const {
  std::vector<std::vector<GroupId>> sources(m_groups.size());
  for (GroupId id = 0; id < m_groups.size(); ++id) {
    std::set<GroupId> found;
    for (const LoweredKernel& kernel : m_groups[id].kernels) {
      for (const KernelBuffers::Entry& entry : kernel.buffers) {
        if (entry.role != BufferRole::input || m_state.facts->is_input(entry.value)) continue;
        const GroupId source = m_state.group_of[graph().value(entry.value).producer];
        if (source != k_no_group && source != id) found.insert(source);
      }
    }
    sources[id].assign(found.begin(), found.end());
  }
  return sources;
}

void Grouper::cut_a_ring() {
  const std::vector<std::vector<GroupId>> from = sources();
  for (GroupId id = 0; id < from.size(); ++id) {
    const std::vector<bool> dependents = dependents_of(id, from);
    if (dependents[id] && cut(id, dependents)) return;
  }
  assert(false && "the group with the first node of a ring has a part that waits for nothing of the ring");
}

bool Grouper::cut(GroupId id, const std::vector<bool>& waits_for_group) {
  std::set<NodeId> after;
  const auto waits = [&](NodeId node) {
    std::vector<NodeId> pending{node};
    while (!pending.empty()) {
      const NodeId at = pending.back();
      pending.pop_back();
      for (const ValueId operand : graph().node(at).operands) {
        if (operand == k_none || m_state.facts->is_input(operand)) continue;
        const NodeId producer = graph().value(operand).producer;
        const GroupId group = m_state.group_of[producer];
        if (group == k_no_group) pending.push_back(producer);
        if (group == id ? after.contains(producer) : group != k_no_group && waits_for_group[group]) return true;
      }
    }
    return false;
  };
  for (const NodeId node : m_groups[id].nodes) {  // ascending
    if (waits(node)) after.insert(node);
  }
  std::vector<NodeId>& nodes = m_groups[id].nodes;
  if (after.empty() || after.size() == nodes.size()) return false;
  const bool keeps_after = m_groups[id].kind != GroupKind::loops && after.contains(m_groups[id].anchor);
  std::vector<NodeId> moved;
  std::erase_if(nodes, [&](NodeId node) {
    if (after.contains(node) == keeps_after) return false;
    moved.push_back(node);
    return true;
  });
  if (m_groups[id].kind == GroupKind::loops) m_groups[id].anchor = nodes.back();
  const GroupId split = add_group(GroupKind::loops, moved.back());
  m_groups[split].nodes = moved;
  for (const NodeId node : moved) m_state.group_of[node] = split;
  return true;
}

}  // namespace kiln
