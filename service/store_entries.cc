#include "service/store_entries.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "backends/devices.h"
#include "base/build_id.h"
#include "base/hex.h"
#include "base/json_schema.h"
#include "base/limits.h"
#include "cache/reader/reader.h"
#include "cache/store/store.h"
#include "jit/resolve/key.h"
#include "jit/run/named_artifacts.h"
#include "service/built_artifact.h"
#include "service/pack_entries.h"
#include "service/provenance.h"
#include "service/side_by_side.h"

namespace kiln {
namespace {

using nlohmann::json;
using protocol::Command;
using protocol::Verb;

std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

/// The parts are the key's canonical form for people and for comparison alike: equal keys have equal parts. What is known
/// of the artifact comes beside them in the provenance alone.
Head to_head(const BuiltHead& built) {
  Head head{.key = built.key,
            .artifact = built.artifact,
            .generation = built.generation,
            .canonical_key = {built.key_parts.begin(), built.key_parts.end()},
            .provenance = built.key_parts};
  json parts = json::parse(built.key_parts, nullptr, false);
  if (!parts.is_object()) return head;
  provenance::add_facts(built, parts);
  head.provenance = dump(parts);
  return head;
}

json head_json(const Head& head) {
  json shown = {{"key", head.key.to_hex()}, {"generation", head.generation}, {"created_ms", head.created_ms}};
  json parts = json::parse(head.provenance, nullptr, false);
  for (const char* fact : {provenance::k_name, provenance::k_not_judged, provenance::k_schedule}) {
    if (!parts.is_object() || !parts.contains(fact)) continue;
    shown[fact] = parts[fact];
    parts.erase(fact);
  }
  shown["key_parts"] = parts.is_discarded() ? json(head.provenance) : std::move(parts);
  return shown;
}

json entry_json(const Entry& entry) {
  json heads = json::array();
  for (const Head& head : entry.heads) heads.push_back(head_json(head));
  return {{"digest", entry.digest.to_hex()},
          {"kind", std::string(to_string(entry.kind))},
          {"payload_bytes", entry.payload_bytes},
          {"created_ms", entry.created_ms},
          {"pinned", entry.pinned},
          {"mapped", entry.mapped},
          {"heads", heads}};
}

/// Is `name` (a whole digest, or its first digits) the entry's digest or one of its keys?
bool is_called(const Entry& entry, std::string_view name) {
  if (entry.digest.to_hex().starts_with(name)) return true;
  for (const Head& head : entry.heads) {
    if (head.key.to_hex().starts_with(name)) return true;
  }
  return false;
}

/// What this build makes programs for under such a key; nothing where it makes none: another build's, or unchecked ones.
std::optional<Target> target_of(const Head& program) {
  const json parts = json::parse(program.provenance, nullptr, false);
  if (!parts.is_object() || parts.contains("proof")) return std::nullopt;
  Target target{parts.value("backend", ""), parts.value("target", ""), parts.value("driver", "")};
  target.threads = threads_in(parts.value("threads", ""));
  if (parts.value("generator", "") != generator_build_id(target.backend)) return std::nullopt;
  return target;
}

/// What an artifact is of no use without: a program its plans, a plan its code.
std::vector<Digest> named_by(ArtifactKind kind, std::span<const uint8_t> payload) {
  if (kind == ArtifactKind::program) return plans_named_by(payload);
  if (kind == ArtifactKind::plan) return codes_named_by(payload);
  return {};
}

Status no_such_artifact(const Digest& key, const Digest& artifact) {
  return error(StatusCode::internal, "key {} leads to artifact {}, which is neither in its batch nor kept",
               key.to_short(), artifact.to_short());
}

class StoreEntries final : public EntryStore {
 public:
  explicit StoreEntries(const Config& config)
      : m_directory(config.cache_directory), m_size_max_bytes(config.cache_size_max_bytes) {}

  /// Opens the store unless it is open: on a full disk that works only later.
  Status open();

  Status publish(const BuildResult& result, const std::vector<uint8_t>& graph, bool replaces) override;
  std::vector<std::pair<Digest, Artifact>> needs_of(const Digest& artifact) override;
  Expected<std::optional<UntunedProgram>> next_untuned(const std::unordered_set<Digest>& except) override;
  Expected<std::string> command(const Command& command) override;

 private:
  void make_room();
  Status put(PublishBatch& batch, const std::vector<Head>& heads);
  Status put_readable(PublishBatch batch);
  std::vector<Digest> unreadable(const std::vector<Artifact>& artifacts, const std::vector<Head>& heads) const;
  Status check_heads(const PublishBatch& batch) const;
  Status succeed_kept(std::vector<Head>& heads) const;
  bool is_decided(const Head& head);
  Expected<Entry> find_one(const Command& command);
  Expected<std::string> put_capture(const Command& command);
  Expected<std::string> install(const std::string& request);
  Expected<std::string> verify();
  Expected<std::string> evict(const std::string& capacity);
  Expected<std::string> pin(const Command& command);
  json record_of(const Digest& digest) const;
  std::unordered_set<Digest> closure_of(const Digest& root, ArtifactKind kind);
  Status pin_all(const std::unordered_set<Digest>& artifacts);
  Status unpin_all(const Entry& root);
  json sizes() const;

  const std::string m_directory;
  const uint64_t m_size_max_bytes;
  std::unique_ptr<CacheStore> m_store;
};

/// One answer per key and generation: whatever came first stays, also when another build made other bytes. A head that
/// cannot be read decides nothing.
bool StoreEntries::is_decided(const Head& head) {
  const auto kept = m_store->head(head.key);
  if (!kept.ok() || !*kept || (*kept)->generation < head.generation) return false;
  if ((*kept)->generation == head.generation && (*kept)->artifact != head.artifact) {
    spdlog::info("key {} keeps {}, not {}", head.key.to_short(), (*kept)->artifact.to_short(),
                 head.artifact.to_short());
  }
  return true;
}

/// The keys of those heads that lead a client to nothing, looked up as a client does.
std::vector<Digest> StoreEntries::unreadable(const std::vector<Artifact>& artifacts,
                                             const std::vector<Head>& heads) const {
  std::unordered_map<Digest, ArtifactKind> kinds;
  for (const Artifact& artifact : artifacts) kinds.emplace(artifact_digest(artifact), artifact.kind);
  const std::unique_ptr<kiln_reader, decltype(&kiln_reader_close)> reader(kiln_reader_open(m_directory.c_str()),
                                                                          kiln_reader_close);
  std::vector<Digest> keys;
  for (const Head& head : heads) {
    const auto kind = kinds.find(head.artifact);
    if (kind == kinds.end()) continue;  // kept before this batch: whoever published it looked
    kiln_view view;
    if (kiln_reader_find_key(reader.get(), head.key.bytes.data(), static_cast<kiln_artifact_kind>(kind->second),
                             &view) != KILN_HIT) {
      keys.push_back(head.key);
    }
  }
  return keys;
}

/// Is called before something is published: so the cache is larger than it may be by one publication at most, and what
/// was just answered is not what goes. A fifth goes at once, so that this is rare.
void StoreEntries::make_room() {
  if (m_store->stats().file_bytes <= m_size_max_bytes) return;
  if (const Status status = m_store->evict(m_size_max_bytes / 5 * 4); !status.ok()) {
    spdlog::warn("the cache stays too large: {}", status.message());
  }
}

/// Publishes the artifacts of `batch` and those of `heads` that are not decided yet.
Status StoreEntries::put(PublishBatch& batch, const std::vector<Head>& heads) {
  batch.heads.clear();
  for (const Head& head : heads) {
    if (!is_decided(head)) batch.heads.push_back(head);
  }
  KILN_RETURN_IF_ERROR(m_store->publish(batch));
  return m_store->flush();
}

/// Publishes, and looks whether clients find it. Where the store has it already, and clients do not find it, the published
/// folder is damaged and made anew; an entry that is unreadable even then makes room for what `batch` brings.
Status StoreEntries::put_readable(PublishBatch batch) {
  make_room();
  const std::vector<Head> heads = std::move(batch.heads);
  Status status = put(batch, heads);
  if (!status.ok() && status.code() != StatusCode::not_found) return status;
  if (status.ok() && unreadable(batch.artifacts, heads).empty()) return {};
  spdlog::warn("the published folder is damaged and made anew");
  KILN_RETURN_IF_ERROR(m_store->republish());
  for (const Digest& key : unreadable(batch.artifacts, heads)) {
    const auto kept = m_store->head(key);
    if (!kept.ok() || !*kept) continue;
    spdlog::warn("artifact {} is damaged and replaced", (*kept)->artifact.to_short());
    KILN_RETURN_IF_ERROR(m_store->erase((*kept)->artifact));
  }
  KILN_RETURN_IF_ERROR(put(batch, heads));
  const std::vector<Digest> keys = unreadable(batch.artifacts, heads);
  if (keys.empty()) return {};
  return error(StatusCode::data_loss, "key {} was published, yet no reader finds it in {}", keys.front().to_short(),
               m_directory);
}

Status StoreEntries::open() {
  if (m_store) return {};
  KILN_ASSIGN_OR_RETURN(
      m_store, CacheStore::open({.directory = m_directory, .capacity_bytes = m_size_max_bytes, .needs = named_by}));
  if (!m_store->report().empty()) spdlog::warn("{}", m_store->report());
  return {};
}

/// A worker's words are not taken for what is: each of its heads leads to something.
Status StoreEntries::check_heads(const PublishBatch& batch) const {
  std::unordered_set<Digest> known;
  for (const Artifact& artifact : batch.artifacts) known.insert(artifact_digest(artifact));
  for (const Head& head : batch.heads) {
    if (known.contains(head.artifact)) continue;
    KILN_ASSIGN_OR_RETURN(const auto kept, m_store->find(head.artifact));
    if (!kept) return no_such_artifact(head.key, head.artifact);
  }
  return {};
}

Status StoreEntries::publish(const BuildResult& result, const std::vector<uint8_t>& graph, bool replaces) {
  KILN_RETURN_IF_ERROR(open());
  PublishBatch batch;
  for (const BuiltArtifact& built : result.artifacts) {
    batch.artifacts.push_back(artifact_of(built));
    if (const Digest digest = artifact_digest(batch.artifacts.back()); digest != built.digest) {
      return error(StatusCode::internal, "artifact calls itself {}, its bytes say {}", built.digest.to_short(),
                   digest.to_short());
    }
  }
  for (const BuiltHead& built : result.heads) {
    Head& head = batch.heads.emplace_back(to_head(built));
    const bool is_program = provenance::fact_in(head.provenance, "level") == "program";
    head.content = is_program ? graph : std::vector<uint8_t>(built.spec.begin(), built.spec.end());
  }
  KILN_RETURN_IF_ERROR(check_heads(batch));
  if (replaces) KILN_RETURN_IF_ERROR(succeed_kept(batch.heads));
  KILN_RETURN_IF_ERROR(merge_records(*m_store, batch));
  return put_readable(batch);
}

/// Makes heads whose keys lead elsewhere the next generation of these keys.
Status StoreEntries::succeed_kept(std::vector<Head>& heads) const {
  for (Head& head : heads) {
    KILN_ASSIGN_OR_RETURN(const auto kept, m_store->head(head.key));
    if (kept && kept->artifact != head.artifact) head.generation = std::max(head.generation, kept->generation + 1);
  }
  return {};
}

Expected<std::optional<UntunedProgram>> StoreEntries::next_untuned(const std::unordered_set<Digest>& except) {
  KILN_RETURN_IF_ERROR(open());
  std::vector<std::pair<Head, Target>> heads;
  for (const Entry& entry : m_store->list({.kind = ArtifactKind::program})) {
    for (const Head& head : entry.heads) {
      const auto target = except.contains(head.key) ? std::nullopt : target_of(head);
      if (target && is_of_host(*target)) heads.emplace_back(head, *target);
    }
  }
  std::ranges::sort(heads, std::greater(), [](const auto& each) { return each.first.created_ms; });
  for (const auto& [head, target] : heads) {
    const auto program = m_store->find(head.artifact);
    if (!program.ok() || !*program || is_tuned_program((*program)->payload)) continue;
    auto graph = m_store->content(head.key);
    if (graph.ok() && *graph)
      return std::optional(UntunedProgram{head.key, std::move(**graph), target,
                                          provenance::fact_in(head.provenance, provenance::k_name)});
  }
  return std::optional<UntunedProgram>();
}

Expected<std::string> StoreEntries::command(const Command& command) {
  KILN_RETURN_IF_ERROR(open());
  switch (command.verb) {
    case Verb::list: {
      json entries = json::array();
      for (const Entry& entry : m_store->list()) entries.push_back(entry_json(entry));
      return dump({{"schema_version", k_schema_version}, {"entries", entries}, {"store", sizes()}});
    }
    case Verb::show: {
      KILN_ASSIGN_OR_RETURN(const Entry entry, find_one(command));
      json shown = entry_json(entry);
      if (entry.kind == ArtifactKind::record) shown["record"] = record_of(entry.digest);
      return dump({{"schema_version", k_schema_version}, {"entry", std::move(shown)}});
    }
    case Verb::content: {
      KILN_ASSIGN_OR_RETURN(const auto content, m_store->content(command.key));
      if (!content) return error(StatusCode::not_found, "it is not kept what {} is of", command.key.to_short());
      return dump({{"schema_version", k_schema_version}, {"content", to_hex(*content)}});
    }
    case Verb::verify:
      return verify();
    case Verb::gc:
      return evict(command.text);
    case Verb::clear: {
      const json before = sizes();
      KILN_RETURN_IF_ERROR(m_store->clear());
      KILN_RETURN_IF_ERROR(m_store->flush());
      std::error_code failed;  // what a client maps it keeps
      std::filesystem::remove_all(std::filesystem::path(m_directory) / "weights", failed);
      if (failed) return error(StatusCode::unavailable, "{}/weights: {}", m_directory, failed.message());
      return dump({{"schema_version", k_schema_version}, {"before", before}, {"after", sizes()}});
    }
    case Verb::pin:
      return pin(command);
    case Verb::capture_put:
      return put_capture(command);
    case Verb::pack_list: {
      json packed = entries_to_pack(*m_store, command.text,
                                    [this](const Digest& root, ArtifactKind kind) { return closure_of(root, kind); });
      packed["schema_version"] = k_schema_version;
      return dump(packed);
    }
    case Verb::install:
      return install(command.text);
    default:
      return error(StatusCode::unimplemented, "verb {} is not about entries", protocol::to_string(command.verb));
  }
}

/// Finds an entry by text (the first digits of a key or digest) or else by the whole key. Errors: not_found,
/// invalid_argument when several fit.
Expected<Entry> StoreEntries::find_one(const Command& command) {
  const std::string name = command.text.empty() ? command.key.to_hex() : command.text;
  std::optional<Entry> found;
  for (Entry& entry : m_store->list()) {
    if (!is_called(entry, name)) continue;
    if (found) return invalid_argument("{} is short for more than one entry", name.substr(0, 64));
    found = std::move(entry);
  }
  if (!found) return error(StatusCode::not_found, "no entry {}", name.substr(0, 64));
  return std::move(*found);
}

Expected<std::string> StoreEntries::put_capture(const Command& command) {
  Artifact capture{ArtifactKind::capture, {}, command.data};
  const Digest digest = artifact_digest(capture);
  // A capture grows as a program meets new situations: each state is a generation of its own.
  KILN_ASSIGN_OR_RETURN(const auto newest, m_store->head(command.key));
  const bool decided = newest && newest->artifact == digest;
  const uint32_t generation = !newest ? 0 : decided ? newest->generation : newest->generation + 1;
  const BuiltHead head{command.key, digest, generation, command.text, command.name};
  KILN_RETURN_IF_ERROR(put_readable({{std::move(capture)}, {to_head(head)}}));
  KILN_RETURN_IF_ERROR(m_store->keep_newest(command.key, limits::k_capture_generations));
  return dump({{"schema_version", k_schema_version},
               {"stored", !decided},
               {"digest", digest.to_hex()},
               {"generation", generation}});
}

Expected<std::string> StoreEntries::install(const std::string& request) {
  KILN_ASSIGN_OR_RETURN(const PackInstallation installation, PackInstallation::open(request));
  const auto leads_elsewhere = [this](const Head& head) {
    const auto kept = m_store->head(head.key);
    return kept.ok() && *kept && (*kept)->generation >= head.generation && (*kept)->artifact != head.artifact;
  };
  int64_t keys_kept = 0;
  KILN_RETURN_IF_ERROR(installation.give([&](PublishBatch batch) -> Status {
    KILN_RETURN_IF_ERROR(merge_records(*m_store, batch));
    keys_kept += std::ranges::count_if(batch.heads, leads_elsewhere);
    return put_readable(std::move(batch));
  }));
  json taken = installation.to_json();
  taken["keys_kept"] = keys_kept;
  spdlog::info("installed a pack: {}", taken.dump());
  taken["schema_version"] = k_schema_version;
  return dump(taken);
}

Expected<std::string> StoreEntries::verify() {
  KILN_ASSIGN_OR_RETURN(const auto damages, m_store->verify());
  json damaged = json::array();
  for (const Damage& damage : damages) {
    damaged.push_back({{"digest", damage.digest.to_hex()}, {"reason", damage.reason}});
    KILN_RETURN_IF_ERROR(m_store->erase(damage.digest));  // a miss from now on: it will be built again
  }
  return dump({{"schema_version", k_schema_version},
               {"checked", m_store->stats().artifacts + damages.size()},
               {"damaged", damaged}});
}

Expected<std::string> StoreEntries::evict(const std::string& capacity) {
  const json before = sizes();
  if (capacity.empty()) {
    KILN_RETURN_IF_ERROR(m_store->evict());
  } else {
    uint64_t bytes = 0;
    const char* end = capacity.data() + capacity.size();
    if (std::from_chars(capacity.data(), end, bytes).ptr != end) {
      return invalid_argument("'{}' is not a number of bytes", capacity.substr(0, 32));
    }
    KILN_RETURN_IF_ERROR(m_store->evict(bytes));
  }
  return dump({{"schema_version", k_schema_version}, {"before", before}, {"after", sizes()}});
}

/// What a tuning record says; null for one that cannot be read.
json StoreEntries::record_of(const Digest& digest) const {
  const auto kept = m_store->find(digest);
  if (!kept.ok() || !*kept) return nullptr;
  json record = json::parse((*kept)->payload, nullptr, false);
  return record.is_discarded() ? json(nullptr) : record;
}

/// The artifact and all that it needs to run.
std::unordered_set<Digest> StoreEntries::closure_of(const Digest& root, ArtifactKind kind) {
  std::unordered_set<Digest> closure = {root};
  if (kind != ArtifactKind::program && kind != ArtifactKind::plan) return closure;
  const auto artifact = m_store->find(root);
  if (!artifact.ok() || !*artifact) return closure;
  const ArtifactKind needed = kind == ArtifactKind::program ? ArtifactKind::plan : ArtifactKind::code;
  for (const Digest& each : named_by(kind, (*artifact)->payload)) closure.merge(closure_of(each, needed));
  return closure;
}

std::vector<std::pair<Digest, Artifact>> StoreEntries::needs_of(const Digest& artifact) {
  std::vector<std::pair<Digest, Artifact>> needs;
  const auto root = m_store->find(artifact);
  if (!root.ok() || !*root) return needs;
  for (const Digest& digest : closure_of(artifact, (*root)->kind)) {
    auto kept = digest == artifact ? Expected<std::optional<Artifact>>(std::nullopt) : m_store->find(digest);
    if (kept.ok() && *kept) needs.emplace_back(digest, std::move(**kept));
  }
  return needs;
}

Status StoreEntries::pin_all(const std::unordered_set<Digest>& artifacts) {
  for (const Digest& digest : artifacts) {
    const Status status = m_store->pin(digest);
    if (!status.ok() && status.code() != StatusCode::not_found) return status;  // what is gone already cannot be kept
  }
  return {};
}

/// Lets go of what no other pinned program needs.
Status StoreEntries::unpin_all(const Entry& root) {
  std::unordered_set<Digest> needed;
  for (const Entry& other : m_store->list({.kind = ArtifactKind::program})) {
    if (other.pinned && other.digest != root.digest) needed.merge(closure_of(other.digest, other.kind));
  }
  for (const Digest& digest : closure_of(root.digest, root.kind)) {
    if (needed.contains(digest)) continue;
    const Status status = m_store->unpin(digest);
    if (!status.ok() && status.code() != StatusCode::not_found) return status;
  }
  return {};
}

Expected<std::string> StoreEntries::pin(const Command& command) {
  if (command.text != "on" && command.text != "off") {
    return invalid_argument("pin is '{}', expected on or off", command.text.substr(0, 32));
  }
  KILN_ASSIGN_OR_RETURN(const Entry entry, find_one({.verb = Verb::show, .key = command.key}));
  KILN_RETURN_IF_ERROR(command.text == "on" ? pin_all(closure_of(entry.digest, entry.kind)) : unpin_all(entry));
  return dump(
      {{"schema_version", k_schema_version}, {"digest", entry.digest.to_hex()}, {"pinned", command.text == "on"}});
}

json StoreEntries::sizes() const {
  const StoreStats stats = m_store->stats();
  return {
      {"artifacts", stats.artifacts}, {"heads", stats.heads}, {"files", stats.files}, {"file_bytes", stats.file_bytes}};
}

}  // namespace

Expected<std::unique_ptr<EntryStore>> open_entry_store(const Config& config) {
  auto entries = std::make_unique<StoreEntries>(config);
  const Status status = entries->open();
  if (status.code() == StatusCode::resource_exhausted) {
    spdlog::warn("{}: nothing is kept until there is room", status.message());
  } else if (!status.ok()) {
    return status;
  }
  return std::unique_ptr<EntryStore>(std::move(entries));
}

}  // namespace kiln
