#include <algorithm>
#include <optional>
#include <unordered_set>

#include "frontend/regions/copies.h"

namespace kiln {
namespace {

/// A node with more users than this is not grown over towards its users: it is shared, or the search would be
/// long.
constexpr size_t k_followed_users = 32;

class Growth {
 public:
  Growth(const Wiring& wiring, std::span<const uint64_t> hashes, const std::vector<bool>& taken, Places& places)
      : m_wiring(wiring), m_hashes(hashes), m_taken(taken), m_places(places) {}

  Copies run(std::span<const NodeId> seeds) {
    m_copies.nodes.resize(seeds.size());
    add(std::vector<NodeId>(seeds.begin(), seeds.end()));
    for (size_t index = 0; index < m_copies.size(); ++index) {
      grow_to_producers(index);
      grow_to_users(index);
    }
    while (drop_inconsistent()) {
    }
    m_places.clear(m_copies);
    return std::move(m_copies);
  }

 private:
  bool is_free(NodeId node) const { return node != k_none && !m_taken[node] && !m_places.holds(node); }

  /// Adds one node to each copy when they are free, distinct and alike.
  void add(std::vector<NodeId> nodes) {
    const uint64_t label = m_wiring.loose_label(nodes[0]);
    for (NodeId node : nodes) {
      if (!is_free(node) || m_wiring.loose_label(node) != label) return;
    }
    if (std::unordered_set<NodeId>(nodes.begin(), nodes.end()).size() != nodes.size()) return;
    const auto index = static_cast<uint32_t>(m_copies.size());
    for (uint32_t copy = 0; copy < nodes.size(); ++copy) {
      m_copies.nodes[copy].push_back(nodes[copy]);
      m_places.set(nodes[copy], copy, index);
    }
  }

  void grow_to_producers(size_t index) {
    const size_t slots = m_wiring.graph().node(m_copies.nodes[0][index]).operands.size();
    for (size_t slot = 0; slot < slots; ++slot) {
      std::vector<NodeId> producers;
      for (const std::vector<NodeId>& copy : m_copies.nodes) {
        const NodeId producer = m_wiring.producer(copy[index], slot);
        if (!is_free(producer) || m_wiring.port(copy[index], slot) != m_wiring.port(m_copies.nodes[0][index], slot)) {
          break;
        }
        producers.push_back(producer);
      }
      if (producers.size() == m_copies.count()) add(std::move(producers));
    }
  }

  void grow_to_users(size_t index) {
    for (const std::vector<NodeId>& copy : m_copies.nodes) {
      if (m_wiring.uses(copy[index]).size() > k_followed_users) return;
    }
    std::vector<Wiring::Use> wanted = m_wiring.uses(m_copies.nodes[0][index]);
    // In an order that follows from structure; uses come in the order of the graph.
    std::ranges::sort(wanted, {}, [&](const Wiring::Use& use) { return std::pair(use.port, m_hashes[use.user]); });
    for (const Wiring::Use& use : wanted) {
      if (!is_free(use.user)) continue;
      std::vector<NodeId> users;
      for (const std::vector<NodeId>& copy : m_copies.nodes) {
        const std::optional<NodeId> user = matching_user(copy[index], use);
        if (!user) break;
        users.push_back(*user);
      }
      if (users.size() == m_copies.count()) add(std::move(users));
    }
  }

  /// The one free user through the same port with the same neighbourhood; else with the same attributes; else
  /// with the same op and types. Nothing when several are alike.
  std::optional<NodeId> matching_user(NodeId node, const Wiring::Use& wanted) const {
    auto only = [&](auto&& alike) -> std::optional<NodeId> {
      std::optional<NodeId> found;
      for (const Wiring::Use& use : m_wiring.uses(node)) {
        if (use.port != wanted.port || !is_free(use.user) || !alike(use.user)) continue;
        if (found && *found != use.user) return std::nullopt;
        found = use.user;
      }
      return found;
    };
    auto same = [&](auto&& hash_of) {
      return only([&](NodeId user) { return hash_of(user) == hash_of(wanted.user); });
    };
    if (auto found = same([&](NodeId user) { return m_hashes[user]; })) return found;
    if (auto found = same([&](NodeId user) { return m_wiring.strict_label(user); })) return found;
    return same([&](NodeId user) { return m_wiring.loose_label(user); });
  }

  /// Whether operand `slot` lies inside each copy at one index, or outside each.
  bool is_consistent(size_t index, size_t slot) const {
    auto inside = [&](size_t copy) {
      const NodeId producer = m_wiring.producer(m_copies.nodes[copy][index], slot);
      const bool same_copy = producer != k_none && m_places.copy(producer) == copy;
      return same_copy ? std::pair(m_places.index(producer), m_wiring.port(m_copies.nodes[copy][index], slot))
                       : std::pair(k_none, uint64_t{0});
    };
    for (size_t copy = 1; copy < m_copies.count(); ++copy) {
      if (inside(copy) != inside(0)) return false;
    }
    return true;
  }

  /// Removes nodes whose operands lie at different places in different copies; whether any was.
  bool drop_inconsistent() {
    std::vector<bool> dropped(m_copies.size());
    for (size_t index = 0; index < m_copies.size(); ++index) {
      const size_t slots = m_wiring.graph().node(m_copies.nodes[0][index]).operands.size();
      for (size_t slot = 0; slot < slots && !dropped[index]; ++slot) dropped[index] = !is_consistent(index, slot);
    }
    if (std::ranges::find(dropped, true) == dropped.end()) return false;
    m_places.clear(m_copies);
    for (std::vector<NodeId>& copy : m_copies.nodes) {
      size_t index = 0;
      std::erase_if(copy, [&](NodeId) { return dropped[index++]; });
    }
    m_places.set(m_copies);
    return true;
  }

  const Wiring& m_wiring;
  const std::span<const uint64_t> m_hashes;
  const std::vector<bool>& m_taken;
  Places& m_places;
  Copies m_copies;
};

}  // namespace

void Places::set(const Copies& copies) {
  for (uint32_t copy = 0; copy < copies.count(); ++copy) {
    for (uint32_t index = 0; index < copies.size(); ++index) set(copies.nodes[copy][index], copy, index);
  }
}

void Places::clear(const Copies& copies) {
  for (const std::vector<NodeId>& copy : copies.nodes) {
    for (NodeId node : copy) m_places[node] = {};
  }
}

Copies grow(const Wiring& wiring, std::span<const uint64_t> hashes, std::span<const NodeId> seeds,
            const std::vector<bool>& taken, Places& places) {
  return Growth(wiring, hashes, taken, places).run(seeds);
}

}  // namespace kiln
