#include "client/sized_graph.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/limits.h"
#include "frontend/infer/bind_symbols.h"

namespace kiln {

namespace {

bool serves(const Resolver::ForSizes& found, std::span<const int64_t> sizes) {
  return std::ranges::equal(found.ranges, sizes, [](const SizeRange& range, int64_t size) {
    return range.first <= size && size <= range.last;
  });
}

/// The two symbols that a guard says are equal.
std::optional<std::pair<SymbolId, SymbolId>> equal_symbols(const Guard& guard) {
  const std::vector<Dim::Term>& terms = guard.dim.terms();
  const auto is_symbol = [](const Dim::Term& term) { return term.symbols.size() == 1; };
  const bool is_difference = guard.relation == Guard::Relation::equal && terms.size() == 2 &&
                             std::ranges::all_of(terms, is_symbol) && terms[0].coefficient == -terms[1].coefficient;
  if (!is_difference) return std::nullopt;
  return std::minmax(terms[0].symbols[0], terms[1].symbols[0]);
}

std::vector<SymbolId> first_equals(const Graph& graph) {
  std::vector<SymbolId> first(graph.symbols().size());
  std::iota(first.begin(), first.end(), SymbolId{0});
  for (const Guard& guard : graph.guards()) {
    const auto pair = equal_symbols(guard);
    if (!pair) continue;
    const auto [kept, gone] = std::minmax(first[pair->first], first[pair->second]);
    const SymbolId from = gone, to = kept;
    std::ranges::replace(first, from, to);
  }
  return first;
}

}  // namespace

SizedGraph::SizedGraph(Client& client, Graph graph)
    : m_client(client), m_graph(std::move(graph)), m_same(first_equals(m_graph)) {}

Expected<std::unique_ptr<SizedGraph>> SizedGraph::create(Client& client, Graph graph) {
  KILN_RETURN_IF_ERROR(check_outputs(graph));
  return std::unique_ptr<SizedGraph>(new SizedGraph(client, std::move(graph)));
}

SizedGraph::Sizes SizedGraph::merged_sizes(std::span<const int64_t> sizes) const {
  Sizes merged;
  size_t distinct = 0;
  for (SymbolId symbol = 0; symbol < sizes.size(); ++symbol) distinct += m_same[symbol] == symbol ? 1 : 0;
  const bool merges = distinct > limits::k_many_sizes_symbols;
  for (SymbolId symbol = 0; symbol < sizes.size(); ++symbol) {
    if (m_same[symbol] != symbol) {
      merged.into.push_back(merged.into[m_same[symbol]]);
      continue;
    }
    const auto same = merges ? std::ranges::find(merged.sizes, sizes[symbol]) : merged.sizes.end();
    merged.into.push_back(static_cast<SymbolId>(same - merged.sizes.begin()));
    if (same == merged.sizes.end()) merged.sizes.push_back(sizes[symbol]);
  }
  return merged;
}

SizedGraph::Merged& SizedGraph::merged(const std::vector<SymbolId>& into) {
  const auto known = m_merged.find(into);
  if (known != m_merged.end()) return known->second;
  return m_merged.emplace(into, Merged{canonicalise(merge_symbols(m_graph, into))}).first->second;
}

std::optional<Resolver::ForSizes> SizedGraph::find(const Sizes& sizes) {
  const std::scoped_lock lock(m_mutex);
  if (m_merged.size() >= limits::k_many_sizes_graphs && !m_merged.contains(sizes.into)) return std::nullopt;
  Merged& graph = merged(sizes.into);
  const auto known = std::ranges::find_if(graph.found, [&](const auto& found) { return serves(found, sizes.sizes); });
  if (known != graph.found.end()) return *known;
  auto found = m_client.find_for_sizes(graph.canonical.digest, sizes.sizes);
  if (found) graph.found.push_back(*found);
  return found;
}

size_t SizedGraph::known() {
  const std::scoped_lock lock(m_mutex);
  size_t count = 0;
  for (const auto& [into, graph] : m_merged) count += graph.found.size();
  return count;
}

Expected<std::optional<Client::Compiled>> SizedGraph::program(std::span<const int64_t> sizes) {
  KILN_RETURN_IF_ERROR(check_guards(m_graph, sizes));
  const std::optional<Client::Compiled> none;
  if (!m_client.serves_many_sizes()) return none;
  const Sizes merged = merged_sizes(sizes);
  const auto found = find(merged);
  if (!found) return none;
  auto compiled = m_client.load(*found, merged.sizes);
  if (!compiled.ok())
    return none;  // a kernel is gone from the cache: the build that the caller then asks for makes it anew
  return std::optional(std::move(*compiled));
}

Status SizedGraph::build(const Client::CompileOptions& options) {
  KILN_RETURN_IF_ERROR(check_guards(m_graph, options.symbol_values));
  const Sizes merged = merged_sizes(options.symbol_values);
  Client::CompileOptions asked = options;
  asked.symbol_values = merged.sizes;
  return m_client.build_for_sizes(canonicalise(merge_symbols(m_graph, merged.into)), asked);
}

}  // namespace kiln
