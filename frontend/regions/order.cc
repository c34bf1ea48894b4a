#include "frontend/regions/order.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <queue>

namespace kiln {
namespace {

/// Groups of nodes and who waits for whom.
class Condensed {
 public:
  Condensed(const Graph& graph, const std::vector<uint32_t>& group_of, size_t groups)
      : m_successors(groups), m_waiting(groups), m_first(groups, k_none) {
    for (NodeId id = 0; id < graph.nodes().size(); ++id) {
      m_first[group_of[id]] = std::min(m_first[group_of[id]], id);
      for (ValueId operand : graph.node(id).operands) {
        const NodeId from = operand == k_none ? k_none : graph.value(operand).producer;
        if (from == k_none || group_of[from] == group_of[id]) continue;
        m_successors[group_of[from]].push_back(group_of[id]);
        ++m_waiting[group_of[id]];
      }
    }
  }

  /// Groups in executable order, the earliest node first; those on a cycle, or behind one, are missing.
  std::vector<uint32_t> order() const {
    std::vector<uint32_t> order, waiting = m_waiting;
    std::priority_queue<std::pair<NodeId, uint32_t>, std::vector<std::pair<NodeId, uint32_t>>, std::greater<>>
        ready;
    for (uint32_t group = 0; group < waiting.size(); ++group) {
      if (waiting[group] == 0) ready.push({m_first[group], group});
    }
    while (!ready.empty()) {
      const uint32_t group = ready.top().second;
      ready.pop();
      order.push_back(group);
      for (uint32_t next : m_successors[group]) {
        if (--waiting[next] == 0) ready.push({m_first[next], next});
      }
    }
    return order;
  }

  const std::vector<uint32_t>& successors(uint32_t group) const { return m_successors[group]; }

 private:
  std::vector<std::vector<uint32_t>> m_successors;  // once for each edge
  std::vector<uint32_t> m_waiting;
  std::vector<NodeId> m_first;
};

/// Copies are groups, and so is each node in no copy.
struct Grouping {
  std::vector<uint32_t> group_of;
  std::vector<size_t> part_of;  // by group; the number of parts for single nodes

  Grouping(size_t nodes, const std::vector<Copies>& parts) : group_of(nodes, k_none) {
    for (size_t part = 0; part < parts.size(); ++part) {
      for (const std::vector<NodeId>& copy : parts[part].nodes) {
        for (NodeId node : copy) group_of[node] = static_cast<uint32_t>(part_of.size());
        part_of.push_back(part);
      }
    }
    for (uint32_t& group : group_of) {
      if (group != k_none) continue;
      group = static_cast<uint32_t>(part_of.size());
      part_of.push_back(parts.size());
    }
  }
};

/// Removes the smallest of the parts that could never start.
void give_up_one(std::vector<Copies>& parts, const Grouping& grouping, const std::vector<uint32_t>& order) {
  std::vector<bool> runs(grouping.part_of.size());
  for (uint32_t group : order) runs[group] = true;
  size_t smallest = parts.size();
  for (uint32_t group = 0; group < runs.size(); ++group) {
    const size_t part = grouping.part_of[group];
    if (runs[group] || part == parts.size()) continue;
    auto covered = [&](size_t p) { return parts[p].count() * parts[p].size(); };
    if (smallest == parts.size() || covered(part) < covered(smallest)) smallest = part;
  }
  assert(smallest < parts.size() && "a cycle goes through a copy, since the graph has none");
  parts.erase(parts.begin() + static_cast<ptrdiff_t>(smallest));
}

/// Nodes in no copy, by how often the way to them enters and leaves copies. Those of one level can run
/// together: what they need from copies belongs to lower levels, and no copy between them reads what they
/// make and is read by them.
std::vector<Copies> gather_rest(const Condensed& condensed, const Grouping& grouping, size_t part_count,
                                const std::vector<uint32_t>& order) {
  auto is_copy = [&](uint32_t group) { return grouping.part_of[group] != part_count; };
  std::vector<uint32_t> levels(order.size());
  uint32_t level_count = 0;
  for (uint32_t group : order) {
    if (!is_copy(group)) level_count = std::max(level_count, levels[group] + 1);
    for (uint32_t next : condensed.successors(group)) {
      const bool leaves = is_copy(group) && !is_copy(next);
      levels[next] = std::max(levels[next], levels[group] + (leaves ? 1 : 0));
    }
  }
  std::vector<Copies> gathered(level_count);
  for (NodeId node = 0; node < grouping.group_of.size(); ++node) {
    const uint32_t group = grouping.group_of[node];
    if (is_copy(group)) continue;
    Copies& part = gathered[levels[group]];
    part.nodes.resize(1);
    part.nodes[0].push_back(node);
  }
  std::erase_if(gathered, [](const Copies& part) { return part.size() == 0; });
  return gathered;
}

}  // namespace

std::vector<Copies> order_parts(const Wiring& wiring, std::vector<Copies> repeated) {
  while (true) {
    const Grouping grouping(wiring.size(), repeated);
    const Condensed condensed(wiring.graph(), grouping.group_of, grouping.part_of.size());
    const std::vector<uint32_t> order = condensed.order();
    if (order.size() < grouping.part_of.size()) {
      give_up_one(repeated, grouping, order);
      continue;
    }
    std::ranges::move(gather_rest(condensed, grouping, repeated.size(), order), std::back_inserter(repeated));
    return repeated;
  }
}

std::vector<size_t> executable_order(const Graph& graph, const std::vector<Region>& regions) {
  std::vector<uint32_t> group_of(graph.nodes().size(), k_none);
  for (uint32_t index = 0; index < regions.size(); ++index) {
    for (NodeId node : regions[index].nodes) group_of[node] = index;
  }
  const std::vector<uint32_t> order = Condensed(graph, group_of, regions.size()).order();
  assert(order.size() == regions.size() && "regions wait for each other");
  return {order.begin(), order.end()};
}

}  // namespace kiln
