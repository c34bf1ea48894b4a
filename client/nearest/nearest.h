#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/expected.h"
#include "frontend/ir/graph.h"
#include "jit/resolve/key.h"
#include "service/protocol/message.h"

namespace kiln {

/// Parts of a key, in their order; of an entry's head as the daemon lists it, none when they are no object.
using KeyParts = std::vector<std::pair<std::string, std::string>>;
KeyParts parts_of(const nlohmann::ordered_json& head);

/// A key with its parts: one of the cache, or one that a graph would have.
struct KnownKey {
  std::string key;
  std::string name = {};  // what people know it by; empty where nobody said
  KeyParts parts;
  uint64_t created_ms = 0;
  std::optional<Graph> graph;  // of a program, where it is known

  std::string part(std::string_view name) const;
  /// Target::threads of the key.
  uint32_t threads() const { return threads_in(part("threads")); }
};

struct PartDifference {
  std::string part, ours, theirs;
  /// What it means that this part differs; docs/keys.md has the long form.
  std::string_view meaning() const;
};

/// What one key has otherwise than another.
struct Difference {
  std::string key, name;  // the other one's
  std::vector<PartDifference> parts;
  std::vector<std::string> in_graphs;  // graph_differences(), where both graphs are known

  nlohmann::ordered_json to_json() const;
};

/// The keys of a cache, and the graphs of its programs, as the daemon knows them; a graph is asked for once.
class KnownKeys {
 public:
  /// Gives the daemon's answer.
  using Ask = std::function<Expected<nlohmann::ordered_json>(protocol::Command)>;

  static Expected<KnownKeys> list(Ask ask);

  const std::vector<KnownKey>& all() const { return m_all; }
  /// Against the nearest other key: of programs that differ by their graph alone, the one whose graph differs least; else, of
  /// the same level, the one with fewest differing parts, of several the newest. Nothing where there is no other.
  std::optional<Difference> nearest(const KnownKey& key);
  Difference compare(const KnownKey& ours, const KnownKey& theirs);
  /// Null where the daemon keeps none.
  const Graph* graph_of(const KnownKey& key);

 private:
  explicit KnownKeys(Ask ask) : m_ask(std::move(ask)) {}
  const KnownKey* nearest_graph(const KnownKey& ours);
  const KnownKey* nearest_parts(const KnownKey& ours) const;

  Ask m_ask;
  std::vector<KnownKey> m_all;
  std::map<std::string, std::optional<Graph>> m_graphs;  // by key, those that were asked for
};

}  // namespace kiln
