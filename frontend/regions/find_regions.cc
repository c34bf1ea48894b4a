#include <algorithm>
#include <cassert>
#include <map>
#include <optional>
#include <ranges>
#include <tuple>
#include <unordered_map>

#include "frontend/canonical/canonical.h"
#include "frontend/ops/op.h"
#include "frontend/regions/copies.h"
#include "frontend/regions/extract.h"
#include "frontend/regions/interface.h"
#include "frontend/regions/order.h"
#include "frontend/regions/regions.h"

// Repetition is found without names, order or annotations.
//
// 1. Seeds. Every node is hashed with its neighbourhood of 1 to 6 steps in both directions (Weisfeiler and
//    Lehman's colour refinement, cut off early). Nodes of one hash are corresponding nodes of the copies of
//    something; which number of copies is the right one, and which radius, is left to what grows from them.
// 2. Growth. One node in each copy; then, in lockstep, producers and users, as long as all copies agree
//    (grow.cc). Ops and types must agree, attributes need not: a layer with another epsilon is found with its
//    siblings, and only the comparison of bytes at the end makes it a class of its own.
// 3. Splitting. Copies that a path leaves and comes back to are cut there (split.cc): forward and backward of
//    a layer.
// 4. The best copies are taken and the search goes on with the rest, until nothing repeats that is worth a
//    region.
// 5. Order. What remains is gathered between the copies into as few regions as the order allows (order.cc).
//
// Whatever is chosen must not depend on the depth of a model, else 12 and 48 layers would share nothing:
// counts only ever compare with counts, and sizes with sizes, see better().

namespace kiln {
namespace {

constexpr size_t k_rounds = 6;
/// How many numbers of copies are tried for each radius, and how many seeds for each of them.
constexpr size_t k_tried_counts = 3;
constexpr size_t k_tried_seeds = 3;
/// A region is worth its call with this much arithmetic in it, or when it belongs to something that repeats
/// deeply.
constexpr size_t k_least_work = 3;
constexpr size_t k_least_total_work = 8;
constexpr size_t k_deep_copies = 4;
/// What a cut through a copy costs, in nodes: one more call, and values that go through memory.
constexpr size_t k_cut_cost = 16;

/// Nodes that compute; views and constants are free.
size_t work_of(const Graph& graph, const std::vector<NodeId>& nodes) {
  return static_cast<size_t>(std::ranges::count_if(nodes, [&](NodeId id) {
    const OpKind kind = graph.node(id).op->kind;
    return kind != OpKind::view && kind != OpKind::creation;
  }));
}

/// What grew from one set of seeds, split where it must be.
struct Candidate {
  std::vector<Copies> pieces;
  size_t count = 0;  // of copies
  size_t worth = 0;  // nodes of one copy, less what cutting it costs
};

/// Whether `a` explains the graph better than `b`. More copies win over fewer larger ones unless they leave much out:
/// twelve layers over six pairs that also hold what the layers of a pair share, but not 24 norms over twelve layers.
/// Numbers as near as 12 and 11 differ by a layer that is unlike its siblings; there sizes are compared, since the
/// products would decide otherwise at 12 layers than at 48.
bool better(const Candidate& a, const Candidate& b) {
  if (a.count == b.count) return a.worth > b.worth;
  const bool a_more = a.count > b.count;
  const Candidate& more = a_more ? a : b;
  const Candidate& fewer = a_more ? b : a;
  const bool near = 2 * more.count < 3 * fewer.count;
  const bool more_wins =
      near ? 4 * more.worth >= 3 * fewer.worth : 10 * more.count * more.worth >= 9 * fewer.count * fewer.worth;
  return more_wins == a_more;
}

class Search {
 public:
  explicit Search(const Graph& graph)
      : m_wiring(graph),
        m_hashes(m_wiring.neighbourhoods(k_rounds)),
        m_taken(graph.nodes().size()),
        m_places(graph.nodes().size()) {
    for (NodeId id = 0; id < m_wiring.size(); ++id) ++m_rarity[m_wiring.loose_label(id)];
  }

  const Wiring& wiring() const { return m_wiring; }
  Places& places() { return m_places; }

  std::vector<Copies> run() {
    std::vector<Copies> found;
    while (std::optional<Candidate> best = find_best()) {
      for (Copies& piece : best->pieces) {
        if (work(piece) >= k_least_work) m_deepest = std::max(m_deepest, piece.count());
        for (const std::vector<NodeId>& copy : piece.nodes) {
          for (NodeId node : copy) m_taken[node] = true;
        }
        found.push_back(std::move(piece));
      }
    }
    return found;
  }

 private:
  size_t work(const Copies& copies) const { return work_of(m_wiring.graph(), copies.nodes[0]); }

  /// Small things that repeat as often as the layers do are taken too: left over, they would make a boundary
  /// region that grows with depth.
  bool is_worth_it(const Copies& copies) const {
    const size_t each = work(copies);
    if (each >= k_least_work && each * copies.count() >= k_least_total_work) return true;
    return m_deepest >= k_deep_copies && copies.count() + 1 >= m_deepest;
  }

  std::optional<Candidate> find_best() {
    std::optional<Candidate> best;
    std::map<size_t, std::vector<bool>> explained;  // by number of copies: nodes of what grew already
    for (size_t round = k_rounds; round-- > 0;) {
      for (const std::vector<NodeId>& seeds : seeds_of(m_hashes[round])) {
        std::vector<bool>& seen = explained[seeds.size()];
        seen.resize(m_wiring.size());
        if (std::ranges::all_of(seeds, [&](NodeId seed) { return seen[seed]; })) continue;
        Copies copies = grow(m_wiring, m_hashes[round], seeds, m_taken, m_places);
        for (const std::vector<NodeId>& copy : copies.nodes) {
          for (NodeId node : copy) seen[node] = true;
        }
        Candidate candidate = split(std::move(copies));
        if (!candidate.pieces.empty() && (!best || better(candidate, *best))) best = std::move(candidate);
      }
    }
    return best;
  }

  Candidate split(Copies copies) {
    Candidate candidate{.count = copies.count()};
    candidate.pieces = split_at_returns(m_wiring, std::move(copies), m_places);
    std::erase_if(candidate.pieces, [&](const Copies& piece) { return !is_worth_it(piece); });
    for (const Copies& piece : candidate.pieces) candidate.worth += piece.size();
    const size_t cuts = candidate.pieces.size() * k_cut_cost;
    candidate.worth = candidate.worth + k_cut_cost > cuts ? candidate.worth + k_cut_cost - cuts : 1;
    return candidate;
  }

  /// Sets of corresponding nodes, those of the numbers of copies that explain most first; in each the rarest
  /// op first.
  std::vector<std::vector<NodeId>> seeds_of(const std::vector<uint64_t>& hashes) const {
    std::unordered_map<uint64_t, std::vector<NodeId>> alike;
    for (NodeId id = 0; id < m_wiring.size(); ++id) {
      if (!m_taken[id]) alike[hashes[id]].push_back(id);
    }
    std::map<size_t, std::vector<const std::vector<NodeId>*>> by_count;
    for (const auto& [hash, nodes] : alike) {
      if (nodes.size() >= 2) by_count[nodes.size()].push_back(&nodes);
    }
    std::vector<size_t> counts;
    for (const auto& [count, sets] : by_count) counts.push_back(count);
    std::ranges::stable_sort(counts, std::greater{}, [&](size_t count) { return count * by_count[count].size(); });

    std::vector<std::vector<NodeId>> seeds;
    for (size_t count : counts | std::views::take(k_tried_counts)) {
      auto& sets = by_count[count];
      std::ranges::sort(sets, {}, [&](const std::vector<NodeId>* nodes) {
        const uint64_t label = m_wiring.loose_label(nodes->front());
        return std::tuple(m_rarity.at(label), label, hashes[nodes->front()]);
      });
      for (const std::vector<NodeId>* nodes : sets | std::views::take(k_tried_seeds)) seeds.push_back(*nodes);
    }
    return seeds;
  }

  Wiring m_wiring;
  std::vector<std::vector<uint64_t>> m_hashes;
  std::unordered_map<uint64_t, size_t> m_rarity;
  std::vector<bool> m_taken;
  Places m_places;
  size_t m_deepest = 0;  // the largest number of copies of a region that computes something
};

/// Puts regions whose graphs have equal bytes into one class.
class Classes {
 public:
  void add(const Graph& graph, Region region, RegionPartition& partition) {
    region.symbols = symbols_of(graph, region);
    Canonical part = extract(graph, region);
    const auto [known, is_new] = m_known.try_emplace(part.bytes, static_cast<uint32_t>(partition.classes.size()));
    if (is_new) partition.classes.push_back({std::move(part), {}});
    region.class_index = known->second;
    partition.classes[known->second].regions.push_back(static_cast<uint32_t>(partition.regions.size()));
    partition.regions.push_back(std::move(region));
  }

 private:
  std::map<std::vector<uint8_t>, uint32_t> m_known;
};

}  // namespace

RegionPartition find_regions(const Graph& graph) {
  assert(has_settled_layouts(graph) && "regions hand values on in one layout");
  Search search(graph);
  const std::vector<Copies> parts = order_parts(search.wiring(), search.run());

  // Every node is in one part now, and parts can be run one after another.
  std::vector<Region> regions;
  for (const Copies& part : parts) {
    std::ranges::move(make_regions(search.wiring(), part, search.places()), std::back_inserter(regions));
  }
  RegionPartition partition;
  Classes classes;
  for (size_t index : executable_order(graph, regions)) classes.add(graph, std::move(regions[index]), partition);
  return partition;
}

}  // namespace kiln
