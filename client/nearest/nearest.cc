#include "client/nearest/nearest.h"

#include <algorithm>

#include "base/digest.h"
#include "base/hex.h"
#include "client/nearest/graph_difference.h"
#include "frontend/wire/wire.h"

namespace kiln {

namespace {

using Json = nlohmann::ordered_json;

// Of keys that differ by their graph alone; more of them than these differ in other ways, too.
constexpr size_t k_graphs_looked_at = 64;

std::vector<PartDifference> differing_parts(const KnownKey& ours, const KnownKey& theirs) {
  std::vector<PartDifference> result;
  for (const auto& [name, value] : ours.parts) {
    if (const std::string other = theirs.part(name); other != value) result.push_back({name, value, other});
  }
  for (const auto& [name, value] : theirs.parts) {
    if (ours.part(name).empty() && !value.empty()) result.push_back({name, "", value});
  }
  return result;
}

}  // namespace

KeyParts parts_of(const Json& head) {
  KeyParts parts;
  const auto found = head.find("key_parts");
  if (found == head.end() || !found->is_object()) return parts;
  for (const auto& [name, value] : found->items()) {
    parts.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
  }
  return parts;
}

std::string KnownKey::part(std::string_view name) const {
  const auto found = std::ranges::find(parts, name, &KeyParts::value_type::first);
  return found == parts.end() ? "" : found->second;
}

std::string_view PartDifference::meaning() const {
  struct Row {
    std::string_view part, sentence;
  };
  constexpr Row k_rows[] = {
      {"graph", "another computation: ops, attributes, shapes, strides or dtypes"},
      {"region", "another computation: ops, attributes, shapes, strides or dtypes"},
      {"spec", "another kernel: its loops, body, shapes, strides or dtypes"},
      {"family", "other kernels: their kind, dtypes, layouts, or what is computed beside"},
      {"sizes", "kernels of other sizes"},
      {"machine", "raced on another machine"},
      {"capture", "another module, source, or version of torch or Python"},
      {"backend", "made for another kind of device"},
      {"target", "made for another instruction set"},
      {"generator", "made by another build of Kiln's compiler"},
      {"program_version", "made for another version of the program format"},
      {"level", "another kind of key"},
  };
  const auto row = std::ranges::find(k_rows, part, &Row::part);
  return row == std::end(k_rows) ? "" : row->sentence;
}

Json Difference::to_json() const {
  Json list = Json::array();
  for (const PartDifference& each : parts) {
    list.push_back({{"part", each.part}, {"ours", each.ours}, {"theirs", each.theirs}, {"meaning", each.meaning()}});
  }
  return {{"key", key}, {"name", name}, {"differs", list}, {"graph", in_graphs}};
}

Expected<KnownKeys> KnownKeys::list(Ask ask) {
  KnownKeys keys(std::move(ask));
  KILN_ASSIGN_OR_RETURN(const Json listed, keys.m_ask({.verb = protocol::Verb::list}));
  for (const Json& entry : listed.value("entries", Json::array())) {
    for (const Json& head : entry.value("heads", Json::array())) {
      keys.m_all.push_back(
          {head.value("key", ""), head.value("name", ""), parts_of(head), head.value("created_ms", uint64_t{0}), {}});
    }
  }
  return keys;
}

const Graph* KnownKeys::graph_of(const KnownKey& key) {
  if (key.graph) return &*key.graph;
  const auto digest = Digest::from_hex(key.key);
  if (!digest || key.part("level") != "program") return nullptr;
  const auto [place, is_new] = m_graphs.try_emplace(key.key);
  if (is_new) {
    const auto answer = m_ask({.verb = protocol::Verb::content, .key = *digest});
    const auto wire = from_hex(answer.ok() ? answer->value("content", "") : "");
    if (auto graph = from_wire(wire.value_or(std::vector<uint8_t>())); graph.ok()) {
      place->second = std::move(graph).value();
    }
  }
  return place->second ? &*place->second : nullptr;
}

const KnownKey* KnownKeys::nearest_graph(const KnownKey& ours) {
  const Graph* graph = graph_of(ours);
  if (graph == nullptr) return nullptr;
  std::vector<const KnownKey*> candidates;
  for (const KnownKey& other : m_all) {
    if (other.key == ours.key || other.part("level") != "program") continue;
    const auto differing = differing_parts(ours, other);
    if (differing.size() == 1 && differing.front().part == "graph") candidates.push_back(&other);
  }
  std::ranges::sort(candidates, std::ranges::greater(), &KnownKey::created_ms);
  if (candidates.size() > k_graphs_looked_at) candidates.resize(k_graphs_looked_at);
  const KnownKey* best = nullptr;
  size_t fewest = SIZE_MAX;
  for (const KnownKey* other : candidates) {
    const Graph* theirs = graph_of(*other);
    if (theirs == nullptr) continue;
    const size_t count = graph_differences(*graph, *theirs).size();
    if (count < fewest) best = other, fewest = count;
  }
  return best;
}

const KnownKey* KnownKeys::nearest_parts(const KnownKey& ours) const {
  const KnownKey* best = nullptr;
  size_t fewest = SIZE_MAX;
  for (const KnownKey& other : m_all) {
    if (other.key == ours.key || other.part("level") != ours.part("level")) continue;
    const size_t count = differing_parts(ours, other).size();
    if (best == nullptr || count < fewest || (count == fewest && other.created_ms > best->created_ms)) {
      best = &other, fewest = count;
    }
  }
  return best;
}

std::optional<Difference> KnownKeys::nearest(const KnownKey& key) {
  const KnownKey* theirs = nearest_graph(key);
  if (theirs == nullptr) theirs = nearest_parts(key);
  if (theirs == nullptr) return std::nullopt;
  return compare(key, *theirs);
}

Difference KnownKeys::compare(const KnownKey& ours, const KnownKey& theirs) {
  Difference difference{theirs.key, theirs.name, differing_parts(ours, theirs), {}};
  const Graph* mine = graph_of(ours);
  const Graph* other = graph_of(theirs);
  if (mine != nullptr && other != nullptr) difference.in_graphs = graph_differences(*mine, *other);
  return difference;
}

}  // namespace kiln
