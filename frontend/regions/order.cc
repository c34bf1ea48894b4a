#include "frontend/regions/order.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <queue>

#include "frontend/ops/op.h"

namespace kiln {
namespace {

/// Views and constants.
bool is_free(const Node& node) { return node.op->kind == OpKind::view || node.op->kind == OpKind::creation; }

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
    std::priority_queue<std::pair<NodeId, uint32_t>, std::vector<std::pair<NodeId, uint32_t>>, std::greater<>> ready;
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
  size_t part_count;

  bool is_copy(uint32_t group) const { return part_of[group] != part_count; }

  Grouping(size_t nodes, const std::vector<Copies>& parts) : group_of(nodes, k_none), part_count(parts.size()) {
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
    if (runs[group] || !grouping.is_copy(group)) continue;
    auto covered = [&](size_t p) { return parts[p].count() * parts[p].size(); };
    if (smallest == parts.size() || covered(part) < covered(smallest)) smallest = part;
  }
  assert(smallest < parts.size() && "a cycle goes through a copy, since the graph has none");
  parts.erase(parts.begin() + static_cast<ptrdiff_t>(smallest));
}

/// How often the way to each group left a copy for a node in none. What one level holds can run together: what
/// it needs from copies needs lower levels only.
std::vector<uint32_t> levels_of(const Condensed& condensed, const Grouping& grouping,
                                const std::vector<uint32_t>& order) {
  std::vector<uint32_t> levels(order.size());
  for (uint32_t group : order) {
    for (uint32_t next : condensed.successors(group)) {
      const bool leaves = grouping.is_copy(group) && !grouping.is_copy(next);
      levels[next] = std::max(levels[next], levels[group] + (leaves ? 1 : 0));
    }
  }
  return levels;
}

/// Moves views and constants to the level that reads them: the transposed weight of the last layer belongs there.
void delay_free_nodes(const Graph& graph, const Condensed& condensed, const Grouping& grouping,
                      std::vector<uint32_t>& levels) {
  for (NodeId node = static_cast<NodeId>(graph.nodes().size()); node-- > 0;) {
    const uint32_t group = grouping.group_of[node];
    const std::vector<uint32_t>& readers = condensed.successors(group);
    if (grouping.is_copy(group) || !is_free(graph.node(node)) || readers.empty()) continue;
    uint32_t earliest = UINT32_MAX;
    for (uint32_t reader : readers) earliest = std::min(earliest, levels[reader]);
    levels[group] = earliest;
  }
}

/// The nodes in no copy, by level.
std::vector<Copies> gather_rest(const Graph& graph, const Condensed& condensed, const Grouping& grouping,
                                const std::vector<uint32_t>& order) {
  std::vector<uint32_t> levels = levels_of(condensed, grouping, order);
  delay_free_nodes(graph, condensed, grouping, levels);
  std::map<uint32_t, Copies> gathered;
  for (NodeId node = 0; node < grouping.group_of.size(); ++node) {
    const uint32_t group = grouping.group_of[node];
    if (grouping.is_copy(group)) continue;
    Copies& part = gathered[levels[group]];
    part.nodes.resize(1);
    part.nodes[0].push_back(node);
  }
  std::vector<Copies> parts;
  for (auto& [level, part] : gathered) parts.push_back(std::move(part));
  return parts;
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
    std::ranges::move(gather_rest(wiring.graph(), condensed, grouping, order), std::back_inserter(repeated));
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
