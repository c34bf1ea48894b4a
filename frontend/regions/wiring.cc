#include "frontend/regions/wiring.h"

#include "base/bytes.h"
#include "base/digest.h"
#include "frontend/canonical/canonical.h"
#include "frontend/ops/op.h"

namespace kiln {
namespace {

/// Where a value lies says nothing about what repeats: the last layer's result is the caller's.
TensorType without_layout(const TensorType& type) { return {type.dtype, type.shape, {}}; }

/// A mask that all layers read says nothing about a layer, and its number of users only tells how many layers
/// there are. Beyond this many users a node counts with its label alone.
constexpr size_t k_local_users = 8;

uint64_t loose_label_of(const Graph& graph, const Node& node) {
  ByteWriter bytes;
  bytes.write(node.op->name);
  for (ValueId operand : node.operands) {
    bytes.write(operand == k_none);
    if (operand == k_none) continue;
    append_type(bytes, without_layout(graph.type(operand)));
  }
  for (ValueId result : node.results) append_type(bytes, without_layout(graph.type(result)));
  return checksum_of(bytes.bytes());
}

uint64_t attributes_hash(const Node& node) {
  if (node.attributes.empty()) return 0;
  ByteWriter bytes;
  append_attributes(bytes, node.attributes);
  return checksum_of(bytes.bytes());
}

}  // namespace

Wiring::Wiring(const Graph& graph) : m_graph(graph), m_uses(graph.nodes().size()) {
  m_loose.reserve(size());
  m_strict.reserve(size());
  for (NodeId id = 0; id < size(); ++id) {
    const Node& node = graph.node(id);
    m_loose.push_back(loose_label_of(graph, node));
    m_strict.push_back(mix(m_loose.back(), attributes_hash(node)));
    for (size_t slot = 0; slot < node.operands.size(); ++slot) {
      if (const NodeId from = producer(id, slot); from != k_none) m_uses[from].push_back({id, port(id, slot)});
    }
  }
}

uint64_t Wiring::port(NodeId node, size_t slot) const {
  return mix(slot, m_graph.value(m_graph.node(node).operands[slot]).result_index);
}

std::vector<std::vector<uint64_t>> Wiring::neighbourhoods(size_t rounds) const {
  std::vector<std::vector<uint64_t>> hashes;
  const std::vector<uint64_t>* previous = &m_loose;
  auto is_local = [&](NodeId node) { return m_uses[node].size() <= k_local_users; };
  hashes.reserve(rounds);
  for (size_t round = 0; round < rounds; ++round) {
    std::vector<uint64_t> next(size());
    for (NodeId id = 0; id < size(); ++id) {
      uint64_t hash = (*previous)[id];
      for (size_t slot = 0; slot < m_graph.node(id).operands.size(); ++slot) {
        const NodeId from = producer(id, slot);
        if (from == k_none)
          hash = mix(hash, slot);  // its type is in the label
        else
          hash = mix(hash, is_local(from) ? (*previous)[from] : m_loose[from]);
      }
      uint64_t users = is_local(id) ? 0 : 1;
      if (is_local(id)) {
        for (const Use& use : m_uses[id]) users += mix(use.port, (*previous)[use.user]);  // a set: order is chance
      }
      next[id] = mix(hash, users);
    }
    hashes.push_back(std::move(next));
    previous = &hashes.back();
  }
  return hashes;
}

}  // namespace kiln
