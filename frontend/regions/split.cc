#include <bit>

#include "frontend/regions/copies.h"

namespace kiln {
namespace {

/// A set of copies for each node, as rows of 64-bit words.
class CopySets {
 public:
  CopySets(size_t nodes, size_t copies) : m_words((copies + 63) / 64), m_bits(nodes * m_words) {}

  bool has(NodeId node, uint32_t copy) const { return (row(node)[copy / 64] >> (copy % 64)) & 1; }
  void insert(NodeId node, uint32_t copy) { row(node)[copy / 64] |= uint64_t{1} << (copy % 64); }
  void include(NodeId node, NodeId other) {
    for (size_t word = 0; word < m_words; ++word) row(node)[word] |= row(other)[word];
  }

 private:
  uint64_t* row(NodeId node) { return &m_bits[node * m_words]; }
  const uint64_t* row(NodeId node) const { return &m_bits[node * m_words]; }

  size_t m_words;
  std::vector<uint64_t> m_bits;
};

/// Whether a path leaves a copy and comes back to the node of each index, or to one it depends on within the copy.
std::vector<bool> find_returns(const Wiring& wiring, const Copies& copies, const Places& places) {
  CopySets left(wiring.size(),
                copies.count());  // the copies from which a path leads here that was outside since
  std::vector<bool> returns(copies.size());
  for (NodeId node = 0; node < wiring.size(); ++node) {
    for (size_t slot = 0; slot < wiring.graph().node(node).operands.size(); ++slot) {
      const NodeId from = wiring.producer(node, slot);
      if (from == k_none) continue;
      left.include(node, from);
      if (places.holds(from) && places.copy(from) != places.copy(node)) left.insert(node, places.copy(from));
    }
    if (places.holds(node) && left.has(node, places.copy(node))) returns[places.index(node)] = true;
  }
  return returns;
}

/// Closes the set under what follows within a copy; the wiring is the same in all copies, so one is enough.
void include_dependents(const Wiring& wiring, const std::vector<NodeId>& copy, const Places& places,
                        std::vector<bool>& returns) {
  std::vector<NodeId> pending;
  for (NodeId node : copy) {
    if (returns[places.index(node)]) pending.push_back(node);
  }
  while (!pending.empty()) {
    const NodeId node = pending.back();
    pending.pop_back();
    for (const Wiring::Use& use : wiring.uses(node)) {
      if (!places.holds(use.user) || places.copy(use.user) != places.copy(node)) continue;
      if (returns[places.index(use.user)]) continue;
      returns[places.index(use.user)] = true;
      pending.push_back(use.user);
    }
  }
}

Copies select(const Copies& copies, const std::vector<bool>& mask, bool wanted) {
  Copies selected;
  for (const std::vector<NodeId>& copy : copies.nodes) {
    std::vector<NodeId>& nodes = selected.nodes.emplace_back();
    for (size_t index = 0; index < copy.size(); ++index) {
      if (mask[index] == wanted) nodes.push_back(copy[index]);
    }
  }
  return selected;
}

}  // namespace

std::vector<Copies> split_at_returns(const Wiring& wiring, Copies copies, Places& places) {
  std::vector<Copies> pieces;
  while (copies.size() > 0) {
    places.set(copies);
    std::vector<bool> returns = find_returns(wiring, copies, places);
    include_dependents(wiring, copies.nodes[0], places, returns);
    places.clear(copies);
    Copies before = select(copies, returns, false);
    Copies after = select(copies, returns, true);
    if (before.size() == 0) break;  // copies that depend on each other in a ring: no order would run them
    pieces.push_back(std::move(before));
    copies = std::move(after);
  }
  return pieces;
}

}  // namespace kiln
