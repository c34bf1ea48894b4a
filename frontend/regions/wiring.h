#pragma once

#include <cstdint>
#include <vector>

#include "frontend/ir/graph.h"

namespace kiln {

/// Order matters: mix(mix(0, a), b) differs from mix(mix(0, b), a). Never depends on addresses or the
/// platform.
inline uint64_t mix(uint64_t hash, uint64_t value) {
  uint64_t x = (hash ^ 0x9e3779b97f4a7c15ULL) * 0xff51afd7ed558ccdULL + value;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 29);
}

/// A graph seen as nodes joined by ports, with hashed labels.
class Wiring {
 public:
  struct Use {
    NodeId user;
    uint64_t port;  // which operand of the user reads which result
  };

  explicit Wiring(const Graph& graph);

  const Graph& graph() const { return m_graph; }
  size_t size() const { return m_uses.size(); }
  /// The producer of operand `slot`; k_none when it is absent or a graph input.
  NodeId producer(NodeId node, size_t slot) const {
    const ValueId operand = m_graph.node(node).operands[slot];
    return operand == k_none ? k_none : m_graph.value(operand).producer;
  }
  /// Hash of (slot, result index of the operand's producer), for operands that a node produces.
  uint64_t port(NodeId node, size_t slot) const;
  const std::vector<Use>& uses(NodeId node) const { return m_uses[node]; }

  /// The op with the types of its operands and results, and with its attributes too.
  uint64_t loose_label(NodeId node) const { return m_loose[node]; }
  uint64_t strict_label(NodeId node) const { return m_strict[node]; }

  /// neighbourhoods(r)[k][node]: hash of the loose labels within k + 1 steps, in both directions.
  std::vector<std::vector<uint64_t>> neighbourhoods(size_t rounds) const;

 private:
  const Graph& m_graph;
  std::vector<std::vector<Use>> m_uses;
  std::vector<uint64_t> m_loose;
  std::vector<uint64_t> m_strict;
};

}  // namespace kiln
