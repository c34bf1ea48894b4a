#include "service/supplies.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>
#include <unordered_set>
#include <utility>

#include "base/limits.h"
#include "cache/sources/directory_entries.h"
#include "cache/sources/trusted_packs.h"
#include "jit/run/named_artifacts.h"
#include "service/built_artifact.h"
#include "service/guarded.h"
#include "service/provenance.h"

namespace kiln {

namespace {

/// How soon the fleet's store is asked again for what another host makes: the longer that takes, the more rarely, so that who
/// waits loses an eighth of the time at most, and ten thousand who wait ask little.
constexpr auto k_host_glance = std::chrono::milliseconds(50), k_host_longest_glance = std::chrono::milliseconds(500);
/// How often whether that host still makes it.
constexpr auto k_host_lease_glance = std::chrono::milliseconds(500);

std::vector<Digest> without(std::span<const Digest> keys, std::span<const Digest> elsewhere,
                            std::span<const SuppliedCode> found) {
  std::unordered_set<Digest> gone(elsewhere.begin(), elsewhere.end());
  for (const SuppliedCode& each : found) gone.insert(each.key);
  std::vector<Digest> rest;
  std::ranges::copy_if(keys, std::back_inserter(rest), [&](const Digest& key) { return !gone.contains(key); });
  return rest;
}

/// Whether a program came with all that it needs to run.
bool is_whole(const SourceEntry& program) {
  std::unordered_set<Digest> there;
  std::vector<Digest> needed = plans_named_by(program.artifact.payload);
  for (const auto& [digest, artifact] : program.needs) {
    there.insert(digest);
    if (artifact.kind == ArtifactKind::plan)
      std::ranges::copy(codes_named_by(artifact.payload), std::back_inserter(needed));
  }
  return std::ranges::all_of(needed, [&](const Digest& digest) { return there.contains(digest); });
}

bool is_proven(const SourceEntry& entry) { return entry.is_proven; }

/// Whether it has won a race, or is the record of one.
bool has_raced(const SourceEntry& entry) {
  if (entry.artifact.kind == ArtifactKind::record) return true;
  if (entry.artifact.kind == ArtifactKind::plan) return is_raced_plan(entry.artifact.payload);
  return entry.is_proven && entry.generation > 0;
}

/// Whether others may have use for it: a plan that has not raced anybody makes in no time, and who races does so at home.
bool is_shared(ArtifactKind kind, std::span<const uint8_t> payload) {
  return kind == ArtifactKind::program || kind == ArtifactKind::code ||
         (kind == ArtifactKind::plan && is_raced_plan(payload));
}

std::string facts_of(const BuiltHead& head) {
  auto facts = nlohmann::json::object();
  provenance::add_facts(head, facts);
  return facts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void add_entry(SourceEntry entry, BuildResult& result) {
  std::string name = provenance::fact_in(entry.provenance, provenance::k_name);
  std::string not_judged = provenance::fact_in(entry.provenance, provenance::k_not_judged);
  result.heads.push_back({entry.key, entry.digest, entry.generation, std::move(entry.canonical_key), std::move(name),
                          std::move(not_judged)});
  result.artifacts.push_back(built_artifact(entry.digest, std::move(entry.artifact)));
  for (auto& [digest, artifact] : entry.needs) result.artifacts.push_back(built_artifact(digest, std::move(artifact)));
}

}  // namespace

Supplies::Supplies(const Config& config) : m_budget(config.remote_budget_ms) {
  m_sources.push_back(std::make_unique<DirectoryEntries>(config.cache_directory));
  auto packs =
      std::make_unique<TrustedPacks>(PackFolders{config.packs_path, config.packs_trust, config.packs_trust_captures});
  for (const std::string& why : packs->refusals()) spdlog::warn("a pack is not used: {}", why);
  m_sources.push_back(std::move(packs));
  if (!config.cache_shared.empty()) m_sources.push_back(std::make_unique<DirectoryEntries>(config.cache_shared));
  if (!config.cache_remote.empty()) open_fleet(config);
}

void Supplies::open_fleet(const Config& config) {
  auto fleet = FleetTier::open({{config.cache_remote, config.remote_password_file},
                                config.remote_signing_key,
                                config.packs_trust,
                                config.packs_trust_captures,
                                config.remote_untrusted == "judge"},
                               [](const std::string& sentence) { spdlog::warn("{}", sentence); });
  if (config.packs_trust.empty() && config.remote_untrusted == "refuse") {
    spdlog::warn("packs.trust names nobody: nothing that cache.remote has is used");
  }
  if (!fleet.ok()) return spdlog::error("cache.remote is not used: {}", fleet.status().message());
  m_fleet = fleet->get();
  m_sources.push_back(std::move(*fleet));
}

std::vector<SuppliedCode> Supplies::find_code(std::vector<Digest> keys, Patience& patience) {
  std::vector<SuppliedCode> found;
  for (SourceEntry& entry :
       find(std::move(keys), ArtifactKind::code, patience, [](const SourceEntry&) { return true; })) {
    found.push_back(
        {entry.key, entry.generation, built_artifact(entry.digest, std::move(entry.artifact)), {}, entry.is_proven});
  }
  return found;
}

/// Of each key what the first source has that is wanted.
std::vector<SourceEntry> Supplies::find(std::vector<Digest> keys, ArtifactKind kind, Patience& patience,
                                        bool (*is_wanted)(const SourceEntry&)) {
  std::vector<SourceEntry> found;
  for (const auto& source : m_sources) {
    if (keys.empty()) break;
    if (source.get() == m_fleet && kind == ArtifactKind::record) continue;  // it has none
    for (SourceEntry& entry : source->find(keys, kind, patience)) {
      if (!is_wanted(entry)) continue;
      std::erase(keys, entry.key);
      found.push_back(std::move(entry));
    }
  }
  return found;
}

void Supplies::offer(const BuildResult& result, EntryStore& store) {
  if (m_fleet == nullptr) return;
  for (const BuiltHead& head : result.heads) {
    const auto built = std::ranges::find(result.artifacts, head.artifact, &BuiltArtifact::digest);
    if (built == result.artifacts.end()) continue;
    const auto kind = static_cast<ArtifactKind>(built->kind);
    if (!is_shared(kind, built->payload) || !m_fleet->takes(head.key, kind, head.generation)) continue;
    SourceEntry entry{head.key, head.generation, head.artifact, artifact_of(*built), {}, head.key_parts, {}};
    entry.provenance = facts_of(head);
    if (kind == ArtifactKind::program) {
      entry.needs = store.needs_of(head.artifact);
      if (!is_whole(entry)) continue;  // some of it was evicted meanwhile
    }
    m_fleet->offer(std::move(entry));
  }
}

void Supplies::keep(const BuildResult& found, EntryStore& store) {
  const Status status = guarded([&] { return store.publish(found, {}, /*replaces=*/false); });
  if (status.ok()) return offer(found, store);
  spdlog::warn("what races have found is not kept yet: {}", status.message());
}

std::optional<BuildResult> Supplies::find_capture(const Digest& key) {
  if (m_fleet == nullptr) return std::nullopt;
  Patience patience{m_budget};
  std::vector<SourceEntry> found = m_fleet->find(std::span(&key, 1), ArtifactKind::capture, patience);
  if (found.empty()) return std::nullopt;
  BuildResult result;
  add_entry(std::move(found.front()), result);
  return result;
}

void Supplies::offer_capture(const BuiltHead& head, const std::vector<uint8_t>& data) {
  if (m_fleet == nullptr || !m_fleet->takes(head.key, ArtifactKind::capture, head.generation)) return;
  m_fleet->offer({head.key,
                  head.generation,
                  head.artifact,
                  {ArtifactKind::capture, {}, data},
                  {},
                  head.key_parts,
                  facts_of(head)});
}

BuildSupply::~BuildSupply() {
  m_supplies.m_flights.end(m_build);
  if (m_supplies.m_fleet != nullptr) m_supplies.m_fleet->give_up(m_leased);
}

std::optional<BuildResult> BuildSupply::programs(std::span<const Digest> keys, bool is_tuned) {
  if (keys.empty() || m_supplies.m_fleet == nullptr) return std::nullopt;
  std::vector<SourceEntry> found = m_supplies.m_fleet->find(keys, ArtifactKind::program, m_patience);
  const bool is_enough = found.size() == keys.size() && std::ranges::all_of(found, [&](const SourceEntry& program) {
                           return is_whole(program) && (!is_tuned || is_tuned_program(program.artifact.payload));
                         });
  if (!is_enough) return std::nullopt;
  BuildResult result;
  for (SourceEntry& entry : found) add_entry(std::move(entry), result);
  result.report = nlohmann::json{{"found", "fleet"}, {"programs", nlohmann::json::array()}}.dump();
  m_has_programs = true;
  return result;
}

CodeAnswer BuildSupply::ask(std::span<const Digest> keys, bool waits, bool judges, Deadline until,
                            const std::function<bool()>& is_over) {
  m_judges = judges;
  if (waits) m_supplies.m_flights.wait(m_build, keys, until, is_over);
  CodeAnswer answer = m_supplies.m_flights.claim(m_build, keys);
  // What nobody makes is looked for once it is claimed: whoever made it before has published it.
  std::vector<SuppliedCode> found;
  std::vector<Digest> on_hosts = look(without(keys, answer.elsewhere, answer.found), m_patience, found);
  on_hosts = lease(std::move(on_hosts), m_patience, found);
  if (waits) {
    await_hosts(std::move(on_hosts), until, is_over, found);
    answer.elsewhere.clear();
  } else {
    std::ranges::move(on_hosts, std::back_inserter(answer.elsewhere));
  }
  m_supplies.m_flights.give(m_build, found);
  std::ranges::move(found, std::back_inserter(answer.found));
  m_supplied += static_cast<uint64_t>(std::ranges::count(answer.found, true, &SuppliedCode::is_proven));
  return answer;
}

/// Adds what sources have of `keys` to `found`, and gives the rest. Candidates that nobody can judge are neither: there is no
/// better to wait for.
std::vector<Digest> BuildSupply::look(std::vector<Digest> keys, Patience& patience, std::vector<SuppliedCode>& found) {
  std::vector<SuppliedCode> there = m_supplies.find_code(keys, patience);
  keys = without(keys, {}, there);
  for (SuppliedCode& each : there) {
    if (!each.is_proven && !m_judges) continue;
    if (!each.is_proven) m_candidates.insert_or_assign(each.key, each.artifact.digest);
    found.push_back(std::move(each));
  }
  return keys;
}

/// Which of `keys` other hosts make. The others are this host's, and looked for once more: who had them before has given
/// them up after what it made was there.
std::vector<Digest> BuildSupply::lease(std::vector<Digest> keys, Patience& patience, std::vector<SuppliedCode>& found) {
  if (m_supplies.m_fleet == nullptr || keys.empty()) return {};
  std::vector<Digest> elsewhere = m_supplies.m_fleet->lease(keys, patience);
  std::vector<Digest> ours = without(keys, elsewhere, {});
  std::ranges::copy(ours, std::back_inserter(m_leased));
  look(std::move(ours), patience, found);
  return elsewhere;
}

/// Waits for what other hosts make, until they have made it or given it up, or that takes too long.
void BuildSupply::await_hosts(std::vector<Digest> keys, Deadline until, const std::function<bool()>& is_over,
                              std::vector<SuppliedCode>& found) {
  if (keys.empty()) return;
  const Deadline start = Clock::now();
  Deadline lease_glance = start + k_host_lease_glance;
  until = std::min(until, deadline_in(limits::k_fleet_lease_wait_ms));
  while (!keys.empty() && Clock::now() < until && !is_over()) {
    std::this_thread::sleep_for(
        std::clamp<Clock::duration>((Clock::now() - start) / 8, k_host_glance, k_host_longest_glance));
    Patience patience{m_supplies.m_budget};
    keys = look(std::move(keys), patience, found);
    if (keys.empty() || Clock::now() < lease_glance) continue;
    lease_glance = Clock::now() + k_host_lease_glance;
    keys = lease(std::move(keys), patience, found);
  }
  if (!is_over()) m_supplies.m_fleet->note_wait(keys.empty());
}

std::vector<SuppliedEntry> BuildSupply::find(std::span<const Digest> keys, ArtifactKind kind, bool raced) {
  std::vector<SuppliedEntry> found;
  for (SourceEntry& entry :
       m_supplies.find({keys.begin(), keys.end()}, kind, m_patience, raced ? has_raced : is_proven)) {
    found.push_back({entry.key, entry.generation, built_artifact(entry.digest, std::move(entry.artifact))});
  }
  return found;
}

void BuildSupply::give(std::vector<SuppliedCode> made) {
  for (const SuppliedCode& each : made) {
    const auto candidate = m_candidates.find(each.key);
    if (candidate == m_candidates.end()) continue;
    if (each.rejected.empty()) {
      m_supplies.m_fleet->note_accepted();
      ++m_supplied;
    } else {
      m_supplies.m_fleet->reject(each.key, candidate->second, each.rejected);
      m_candidates.erase(candidate);
    }
  }
  if (m_supplies.m_fleet != nullptr) {
    for (const SuppliedCode& each : made) {
      if (each.key_parts.empty()) continue;
      m_supplies.m_fleet->offer(
          {each.key, each.generation, each.artifact.digest, artifact_of(each.artifact), {}, each.key_parts, {}});
    }
  }
  m_supplies.m_flights.give(m_build, std::move(made));
}

bool BuildSupply::reject_candidates(std::string_view why) {
  if (m_candidates.empty()) return false;
  for (const auto& [key, candidate] : std::exchange(m_candidates, {})) m_supplies.m_fleet->reject(key, candidate, why);
  m_supplies.m_flights.end(m_build);  // they are among what it has given to others
  return true;
}

}  // namespace kiln
