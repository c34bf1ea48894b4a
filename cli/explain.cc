// kiln explain: why a key is a new one. A key is the digest of named parts (docs/keys.md); of all keys of its level the
// nearest is the one with most equal parts, and what differs from it is the reason for the miss.

#include <fmt/format.h>

#include <filesystem>

#include "cli/command.h"
#include "cli/entries.h"
#include "cli/graph_difference.h"
#include "cli/graph_file.h"
#include "client/client.h"
#include "frontend/canonical/canonical.h"
#include "frontend/infer/bind_symbols.h"
#include "frontend/wire/wire.h"

namespace kiln::cli {
namespace {

/// Of what graphs have otherwise, for people; --json has all.
constexpr size_t k_lines = 12;

struct Options {
  std::string first, second;
  std::vector<std::string> symbols;
};

/// A key with its parts, from the cache or computed from a graph.
struct Subject {
  std::string key;
  std::vector<std::pair<std::string, std::string>> parts;
  uint64_t created_ms = 0;
  bool cached = true;
  std::optional<Graph> graph;  // of a program, where it is known
  std::string miss;            // why a graph's key was not found in the mapped cache; empty when it was

  std::string part(std::string_view name) const {
    for (const auto& [part, value] : parts) {
      if (part == name) return value;
    }
    return {};
  }
};

struct Difference {
  std::string part, ours, theirs;
};

/// What it means that a part differs; docs/keys.md has the long form.
std::string_view meaning(std::string_view part) {
  struct Row {
    std::string_view part, sentence;
  };
  constexpr Row k_rows[] = {
      {"graph", "another computation: ops, attributes, shapes, strides or dtypes"},
      {"region", "another computation: ops, attributes, shapes, strides or dtypes"},
      {"spec", "another kernel: its loops, body, shapes, strides or dtypes"},
      {"capture", "another module, source, or version of torch or Python"},
      {"backend", "made for another kind of device"},
      {"target", "made for another instruction set"},
      {"generator", "made by another build of Kiln's compiler"},
      {"program_version", "made for another version of the program format"},
      {"level", "another kind of key"},
  };
  for (const Row& row : k_rows) {
    if (row.part == part) return row.sentence;
  }
  return "";
}

std::vector<Subject> subjects_of(const Json& entries) {
  std::vector<Subject> subjects;
  for (const Json& entry : entries) {
    for (const Json& head : entry.value("heads", Json::array())) {
      subjects.push_back({head.value("key", ""), parts_of(head), head.value("created_ms", uint64_t{0}), true, {}});
    }
  }
  return subjects;
}

std::vector<Difference> differences(const Subject& ours, const Subject& theirs) {
  std::vector<Difference> result;
  for (const auto& [name, value] : ours.parts) {
    if (const std::string other = theirs.part(name); other != value) result.push_back({name, value, other});
  }
  for (const auto& [name, value] : theirs.parts) {
    if (ours.part(name).empty() && !value.empty()) result.push_back({name, "", value});
  }
  return result;
}

/// The other key of the same level with fewest differing parts; of several, the newest.
const Subject* nearest_to(const Subject& subject, const std::vector<Subject>& all) {
  const Subject* best = nullptr;
  size_t fewest = SIZE_MAX;
  for (const Subject& other : all) {
    if (other.key == subject.key || other.part("level") != subject.part("level")) continue;
    const size_t count = differences(subject, other).size();
    if (best == nullptr || count < fewest || (count == fewest && other.created_ms > best->created_ms)) {
      best = &other, fewest = count;
    }
  }
  return best;
}

/// The graph that the daemon keeps beside a program's key; nothing when it keeps none.
std::optional<Graph> graph_of(Session& session, const Subject& subject) {
  if (subject.graph) return subject.graph;
  const auto key = Digest::from_hex(subject.key);
  if (!key || subject.part("level") != "program") return std::nullopt;
  const auto answer = session.ask({.verb = protocol::Verb::graph, .key = *key});
  if (!answer.ok()) return std::nullopt;
  const std::string text = answer->value("graph", "");
  std::vector<uint8_t> wire;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    wire.push_back(static_cast<uint8_t>(std::stoul(text.substr(i, 2), nullptr, 16)));
  }
  auto graph = from_wire(wire);
  if (!graph.ok()) return std::nullopt;
  return std::move(graph).value();
}

/// Of the keys that differ from `ours` by their graph alone, the one whose graph differs least: more of them than are
/// looked at differ in other ways, too. Null when no graphs are known.
const Subject* nearest_graph(Session& session, const Subject& ours, std::vector<Subject>& all) {
  constexpr size_t k_looked_at = 64;
  const auto graph = graph_of(session, ours);
  if (!graph) return nullptr;
  std::vector<Subject*> candidates;
  for (Subject& other : all) {
    if (other.key == ours.key || other.part("level") != "program") continue;
    const auto differing = differences(ours, other);
    if (differing.size() == 1 && differing.front().part == "graph") candidates.push_back(&other);
  }
  std::ranges::sort(candidates, std::ranges::greater(), &Subject::created_ms);
  if (candidates.size() > k_looked_at) candidates.resize(k_looked_at);
  const Subject* best = nullptr;
  size_t fewest = SIZE_MAX;
  for (Subject* other : candidates) {
    other->graph = graph_of(session, *other);
    if (!other->graph) continue;
    const size_t count = graph_differences(*graph, *other->graph).size();
    if (count < fewest) best = other, fewest = count;
  }
  return best;
}

Expected<Subject> subject_of_graph(const Session& session, const Options& options) {
  KILN_ASSIGN_OR_RETURN(const Graph graph, read_graph(options.first));
  KILN_ASSIGN_OR_RETURN(const auto symbols, parse_symbols(options.symbols));
  KILN_ASSIGN_OR_RETURN(const auto extents, symbol_values(graph, symbols));
  KILN_ASSIGN_OR_RETURN(const auto client, Client::create(session.loaded()));
  KILN_ASSIGN_OR_RETURN(const auto lookup, client->look_up(graph, extents));
  Subject subject{.key = lookup.key.to_hex(), .parts = parts_of({{"key_parts", Json::parse(lookup.key_parts)}})};
  subject.cached = lookup.program != nullptr;
  KILN_ASSIGN_OR_RETURN(const Graph bound, bind_symbols(graph, extents));
  subject.graph = canonicalise(bound).graph;
  if (!subject.cached) subject.miss = lookup.detail;
  return subject;
}

Expected<Subject> subject_called(Session& session, const std::string& name, const std::vector<Subject>& all) {
  KILN_ASSIGN_OR_RETURN(const Json entry, session.find_entry(name));
  const std::string key = name_of(entry);
  for (const Subject& subject : all) {
    const Json heads = entry.value("heads", Json::array());
    for (const Json& head : heads) {
      if (subject.key == head.value("key", "") && (subject.key.starts_with(name) || subject.key == key)) return subject;
    }
  }
  return error(StatusCode::not_found, "no key leads to {}", name);
}

/// What was asked about: a graph's file, a key, or else the newest program.
Expected<Subject> first_subject(Session& session, const Options& options, const std::vector<Subject>& all) {
  std::error_code failure;
  if (std::filesystem::exists(options.first, failure)) return subject_of_graph(session, options);
  if (!options.first.empty()) return subject_called(session, options.first, all);
  const Subject* newest = nullptr;
  for (const Subject& subject : all) {
    if (subject.part("level") == "program" && (newest == nullptr || subject.created_ms > newest->created_ms)) {
      newest = &subject;
    }
  }
  if (newest == nullptr) return error(StatusCode::not_found, "the cache has no program yet; kiln warm makes one");
  return *newest;
}

void print(const Output& out, const Subject& ours, const Subject* theirs, const std::vector<Difference>& differing,
           const std::vector<std::string>& in_graphs) {
  if (out.json) {
    Json answer{{"key", ours.key}, {"cached", ours.cached}, {"parts", Json::object()}, {"nearest", nullptr}};
    if (!ours.miss.empty()) answer["miss"] = ours.miss;
    for (const auto& [name, value] : ours.parts) answer["parts"][name] = value;
    if (theirs != nullptr) {
      Json list = Json::array();
      for (const Difference& each : differing) {
        list.push_back(
            {{"part", each.part}, {"ours", each.ours}, {"theirs", each.theirs}, {"meaning", meaning(each.part)}});
      }
      answer["nearest"] = {{"key", theirs->key}, {"differs", list}, {"graph", in_graphs}};
    }
    return out.print_json(std::move(answer));
  }
  std::vector<std::pair<std::string, std::string>> pairs = {{"key", ours.key}, {"level", ours.part("level")}};
  pairs.emplace_back("in the cache", ours.cached ? "yes" : "no, " + ours.miss);
  pairs.emplace_back("nearest", theirs == nullptr ? "none: it is the only key of its level" : theirs->key);
  out.print_pairs(pairs);
  if (theirs == nullptr) return;
  if (differing.empty()) return out.line("no part differs");
  Table table({"DIFFERS", "HERE", "THERE", "WHICH MEANS"});
  for (const Difference& each : differing) {
    table.add({each.part, each.ours.substr(0, 24), each.theirs.substr(0, 24), std::string(meaning(each.part))});
  }
  out.print_table(table);
  for (const std::string& each : first_of(in_graphs, k_lines)) out.line(each);
}

ExitCode explain(Session& session, const Options& options) {
  KILN_CLI_ASSIGN(session, const Json listed, session.ask({.verb = protocol::Verb::list}));
  std::vector<Subject> all = subjects_of(listed["entries"]);
  KILN_CLI_ASSIGN(session, const Subject ours, first_subject(session, options, all));
  std::optional<Subject> second;
  if (!options.second.empty()) {
    KILN_CLI_ASSIGN(session, second, subject_called(session, options.second, all));
  }
  const Subject* theirs = second ? &*second : nearest_graph(session, ours, all);
  if (theirs == nullptr) theirs = nearest_to(ours, all);
  std::vector<std::string> in_graphs;
  if (theirs != nullptr) {
    const auto mine = graph_of(session, ours), other = graph_of(session, *theirs);
    if (mine && other) in_graphs = graph_differences(*mine, *other);
  }
  print(session.out(), ours, theirs, theirs == nullptr ? std::vector<Difference>{} : differences(ours, *theirs),
        in_graphs);
  return ExitCode::ok;
}

}  // namespace

Action add_explain(CommandLine& line) {
  auto options = std::make_shared<Options>();
  line.option("KEY", options->first,
              "First digits of a key or digest, or a graph's file; the newest program if not given");
  line.option("OTHER", options->second, "The key to compare with; the nearest if not given", {.check = entry_name()});
  line.option("--symbols", options->symbols, "Extents of the graph's symbolic dimensions", {.name = "s0=N,…"});
  return [options](Session& session) { return explain(session, *options); };
}

}  // namespace kiln::cli
