#pragma once

#include <span>
#include <vector>

#include "frontend/regions/wiring.h"

namespace kiln {

/// Copies of one region: nodes[copy][index]. Nodes of equal index correspond: same op and types, and operands
/// that correspond too where they lie inside.
struct Copies {
  std::vector<std::vector<NodeId>> nodes;

  size_t count() const { return nodes.size(); }
  size_t size() const { return nodes.empty() ? 0 : nodes[0].size(); }
};

/// Where each node lies: in which copy at which index. k_none for nodes outside.
class Places {
 public:
  explicit Places(size_t node_count) : m_places(node_count) {}

  uint32_t copy(NodeId node) const { return m_places[node].copy; }
  uint32_t index(NodeId node) const { return m_places[node].index; }
  bool holds(NodeId node) const { return m_places[node].copy != k_none; }
  void set(NodeId node, uint32_t copy, uint32_t index) { m_places[node] = {copy, index}; }
  void set(const Copies& copies);
  void clear(const Copies& copies);

 private:
  struct Place {
    uint32_t copy = k_none;
    uint32_t index = k_none;
  };
  std::vector<Place> m_places;
};

/// Grows copies from seeds, in lockstep, as far as every copy agrees and all stay disjoint. `taken` nodes are
/// left alone; `hashes` tell users apart; `places` is scratch, empty before and after.
Copies grow(const Wiring& wiring, std::span<const uint64_t> hashes, std::span<const NodeId> seeds,
            const std::vector<bool>& taken, Places& places);

/// Splits copies such that no path leaves a copy and comes back to it. Forward and backward of a layer, grown
/// together through what the backward pass reads, part here. Pieces are in the order in which a path visits
/// them.
std::vector<Copies> split_at_returns(const Wiring& wiring, Copies copies, Places& places);

}  // namespace kiln
