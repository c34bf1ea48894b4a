// kiln explain: why a key is a new one. A key is the digest of named parts (docs/keys.md); of all keys of its level the
// nearest is the one with most equal parts, and what differs from it is the reason for the miss.

#include <fmt/format.h>

#include <filesystem>

#include "cli/command.h"
#include "cli/entries.h"
#include "cli/graph_file.h"
#include "client/client.h"
#include "client/nearest/nearest.h"
#include "frontend/canonical/canonical.h"
#include "frontend/text/summary.h"

namespace kiln::cli {
namespace {

/// Of what graphs have otherwise, for people; --json has all.
constexpr size_t k_lines = 12;

struct ExplainOptions {
  std::string first, second;
  std::vector<std::string> symbols;
};

/// What is asked about: a key of the cache, or one that a graph would have.
struct Subject {
  KnownKey key;
  bool cached = true;
  std::string miss;  // why a graph's key was not found in the mapped cache; empty when it was
};

Expected<Subject> subject_of_graph(const Session& session, const ExplainOptions& options) {
  KILN_ASSIGN_OR_RETURN(const auto symbols, parse_symbols(options.symbols));
  KILN_ASSIGN_OR_RETURN(const Graph graph, read_bound_graph(options.first, symbols));
  KILN_ASSIGN_OR_RETURN(const auto client, Client::create(session.loaded()));
  KILN_ASSIGN_OR_RETURN(const auto lookup, client->look_up(graph));
  Subject subject{.key = {.key = lookup.key.to_hex(),
                          .name = summary(graph),
                          .parts = parts_of({{"key_parts", Json::parse(lookup.key_parts)}}),
                          .graph = canonicalise(graph).graph},
                  .cached = lookup.program != nullptr};
  if (!subject.cached) subject.miss = lookup.detail;
  return subject;
}

Expected<KnownKey> key_called(Session& session, const std::string& name, const std::vector<KnownKey>& all) {
  KILN_ASSIGN_OR_RETURN(const Json entry, session.find_entry(name));
  const std::string first = name_of(entry);
  for (const KnownKey& known : all) {
    const Json heads = entry.value("heads", Json::array());
    for (const Json& head : heads) {
      if (known.key == head.value("key", "") && (known.key.starts_with(name) || known.key == first)) return known;
    }
  }
  return error(StatusCode::not_found, "no key leads to {}", name);
}

/// A graph's file, a key, or else the newest program.
Expected<Subject> first_subject(Session& session, const ExplainOptions& options, const std::vector<KnownKey>& all) {
  std::error_code failure;
  if (std::filesystem::exists(options.first, failure)) return subject_of_graph(session, options);
  if (!options.first.empty()) {
    KILN_ASSIGN_OR_RETURN(KnownKey key, key_called(session, options.first, all));
    return Subject{.key = std::move(key)};
  }
  const KnownKey* newest = nullptr;
  for (const KnownKey& known : all) {
    if (known.part("level") == "program" && (newest == nullptr || known.created_ms > newest->created_ms)) {
      newest = &known;
    }
  }
  if (newest == nullptr) return error(StatusCode::not_found, "the cache has no program yet; kiln warm makes one");
  return Subject{.key = *newest};
}

/// The first few; the last line counts the others.
std::vector<std::string> first_of(std::vector<std::string> lines, size_t count) {
  if (lines.size() <= count) return lines;
  const size_t rest = lines.size() - count;
  lines.resize(count);
  lines.push_back(fmt::format("and {} more", rest));
  return lines;
}

std::string titled(const Difference& other) {
  return other.name.empty() ? other.key : fmt::format("{} ({})", other.key, other.name);
}

void print(const Output& out, const Subject& subject, const std::optional<Difference>& nearest) {
  const KnownKey& ours = subject.key;
  if (out.json) {
    Json answer{{"key", ours.key},
                {"name", ours.name},
                {"cached", subject.cached},
                {"parts", Json::object()},
                {"nearest", nullptr}};
    if (!subject.miss.empty()) answer["miss"] = subject.miss;
    for (const auto& [name, value] : ours.parts) answer["parts"][name] = value;
    if (nearest) answer["nearest"] = nearest->to_json();
    return out.print_json(std::move(answer));
  }
  std::vector<std::pair<std::string, std::string>> pairs = {
      {"key", ours.key}, {"level", ours.part("level")}, {"name", ours.name.empty() ? "-" : ours.name}};
  pairs.emplace_back("in the cache", subject.cached ? "yes" : "no, " + subject.miss);
  pairs.emplace_back("nearest", nearest ? titled(*nearest) : "none: it is the only key of its level");
  out.print_pairs(pairs);
  if (!nearest) return;
  if (nearest->parts.empty()) return out.line("no part differs");
  Table table({"DIFFERS", "HERE", "THERE", "WHICH MEANS"});
  for (const PartDifference& each : nearest->parts) {
    table.add({each.part, each.ours.substr(0, 24), each.theirs.substr(0, 24), std::string(each.meaning())});
  }
  out.print_table(table);
  for (const std::string& each : first_of(nearest->in_graphs, k_lines)) out.line(each);
}

ExitCode explain(Session& session, const ExplainOptions& options) {
  const auto ask = [&](protocol::Command command) { return session.ask(std::move(command)); };
  KILN_CLI_ASSIGN(session, KnownKeys keys, KnownKeys::list(ask));
  KILN_CLI_ASSIGN(session, const Subject subject, first_subject(session, options, keys.all()));
  std::optional<Difference> nearest;
  if (!options.second.empty()) {
    KILN_CLI_ASSIGN(session, const KnownKey other, key_called(session, options.second, keys.all()));
    nearest = keys.compare(subject.key, other);
  } else {
    nearest = keys.nearest(subject.key);
  }
  print(session.out(), subject, nearest);
  return ExitCode::ok;
}

}  // namespace

Action add_explain(CommandLine& line) {
  auto options = std::make_shared<ExplainOptions>();
  line.option("KEY", options->first,
              "First digits of a key or digest, or a graph's file; the newest program if not given");
  line.option("OTHER", options->second, "The key to compare with; the nearest if not given", {.check = entry_name()});
  line.option("--symbols", options->symbols, "Extents of the graph's symbolic dimensions", {.name = "s0=N,…"});
  return [options](Session& session) { return explain(session, *options); };
}

}  // namespace kiln::cli
