#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client/client.h"
#include "frontend/canonical/canonical.h"

namespace kiln {

/// A graph of symbols, of which one process wants programs for ever other sizes: those that programs for many sizes give.
/// The client must outlive it. Threading: any thread at once.
class SizedGraph {
 public:
  /// Errors: as of Client::compile, for the graph.
  static Expected<std::unique_ptr<SizedGraph>> create(Client& client, const Graph& graph);

  /// The program for these sizes, one for each symbol; nothing where no program in the cache serves them. Nobody is asked.
  /// Errors: failed_precondition for a guard that does not hold; invalid_argument for another number of sizes.
  Expected<std::optional<Client::Compiled>> program(std::span<const int64_t> sizes);
  /// How many programs for many sizes have served so far.
  size_t known();
  /// Waits until the daemon has built what serves options.symbol_values. Errors: as of Client::build_for_sizes.
  Status build(const Client::CompileOptions& options) { return m_client.build_for_sizes(m_canonical, options); }

 private:
  SizedGraph(Client& client, const Graph& graph) : m_client(client), m_canonical(canonicalise(graph)) {}
  std::optional<Resolver::ForSizes> find(std::span<const int64_t> sizes);

  Client& m_client;
  const Canonical m_canonical;
  std::mutex m_mutex;
  std::vector<Resolver::ForSizes> m_found;  // m_mutex guards it; few, since their ranges do not overlap much
};

}  // namespace kiln
