#include "client/sized_graph.h"

#include <algorithm>

#include "frontend/infer/bind_symbols.h"

namespace kiln {

namespace {

bool serves(const Resolver::ForSizes& found, std::span<const int64_t> sizes) {
  return std::ranges::equal(found.ranges, sizes, [](const SizeRange& range, int64_t size) {
    return range.first <= size && size <= range.last;
  });
}

}  // namespace

Expected<std::unique_ptr<SizedGraph>> SizedGraph::create(Client& client, const Graph& graph) {
  KILN_RETURN_IF_ERROR(check_outputs(graph));
  return std::unique_ptr<SizedGraph>(new SizedGraph(client, graph));
}

std::optional<Resolver::ForSizes> SizedGraph::find(std::span<const int64_t> sizes) {
  {
    const std::scoped_lock lock(m_mutex);
    const auto known = std::ranges::find_if(m_found, [&](const auto& found) { return serves(found, sizes); });
    if (known != m_found.end()) return *known;
  }
  auto found = m_client.find_for_sizes(m_canonical.digest, sizes);
  const std::scoped_lock lock(m_mutex);
  if (found) m_found.push_back(*found);
  return found;
}

size_t SizedGraph::known() {
  const std::scoped_lock lock(m_mutex);
  return m_found.size();
}

Expected<std::optional<Client::Compiled>> SizedGraph::program(std::span<const int64_t> sizes) {
  KILN_RETURN_IF_ERROR(check_guards(m_canonical.graph, sizes));
  const std::optional<Client::Compiled> none;
  if (!m_client.serves_many_sizes()) return none;
  const auto found = find(sizes);
  if (!found) return none;
  auto compiled = m_client.load(*found, sizes);
  if (!compiled.ok())
    return none;  // a kernel is gone from the cache: the build that the caller then asks for makes it anew
  return std::optional(std::move(*compiled));
}

}  // namespace kiln
