#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "client/client.h"
#include "frontend/canonical/canonical.h"

namespace kiln {

/// A graph of symbols, of which one process wants programs for ever other sizes: those that programs for many sizes give.
/// Symbols that a guard says are equal are taken for one; where the graph has more than these programs have, those of equal
/// sizes are, too.
/// The client must outlive it. Threading: any thread at once.
class SizedGraph {
 public:
  /// Errors: as of Client::compile, for the graph.
  static Expected<std::unique_ptr<SizedGraph>> create(Client& client, Graph graph);

  /// The program for these sizes, one for each symbol; nothing where no program in the cache serves them. Nobody is asked.
  /// Errors: failed_precondition for a guard that does not hold; invalid_argument for another number of sizes.
  Expected<std::optional<Client::Compiled>> program(std::span<const int64_t> sizes);
  /// How many programs for many sizes have served so far.
  size_t known();
  /// Waits until the daemon has built what serves options.symbol_values. Errors: as of Client::build_for_sizes.
  Status build(const Client::CompileOptions& options);

 private:
  /// The graph with some of its symbols taken for one.
  struct Merged {
    Canonical canonical;
    std::vector<Resolver::ForSizes> found = {};  // few, since their ranges do not overlap much
  };
  /// Which of the graph's symbols are one, and the sizes of what is left.
  struct Sizes {
    std::vector<SymbolId> into;
    std::vector<int64_t> sizes;
  };

  SizedGraph(Client& client, Graph graph);
  Sizes merged_sizes(std::span<const int64_t> sizes) const;
  /// Call with m_mutex held.
  Merged& merged(const std::vector<SymbolId>& into);
  std::optional<Resolver::ForSizes> find(const Sizes& sizes);

  Client& m_client;
  const Graph m_graph;
  const std::vector<SymbolId> m_same;  // by symbol: the first that guards say it is equal to, or itself
  std::mutex m_mutex;
  std::map<std::vector<SymbolId>, Merged> m_merged;  // m_mutex guards it; a few: sizes are equal for a reason
};

}  // namespace kiln
