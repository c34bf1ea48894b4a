#include "service/code_supplies.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "cache/sources/directory_entries.h"
#include "cache/sources/trusted_packs.h"

namespace kiln {

namespace {

SuppliedCode supplied(FoundEntry entry) {
  const LaunchData& launch = entry.artifact.launch;
  return {entry.key,
          entry.generation,
          {static_cast<uint16_t>(entry.artifact.kind), entry.digest, std::move(entry.artifact.payload), launch.entry,
           launch.tasks, launch.workspace_bytes, launch.features, launch.backend}};
}

std::vector<Digest> without(std::span<const Digest> keys, const CodeAnswer& answer) {
  std::unordered_set<Digest> gone(answer.elsewhere.begin(), answer.elsewhere.end());
  for (const SuppliedCode& each : answer.found) gone.insert(each.key);
  std::vector<Digest> rest;
  std::ranges::copy_if(keys, std::back_inserter(rest), [&](const Digest& key) { return !gone.contains(key); });
  return rest;
}

}  // namespace

CodeSupplies::CodeSupplies(const Config& config) {
  m_sources.push_back(std::make_unique<DirectoryEntries>(config.cache_directory));
  auto packs =
      std::make_unique<TrustedPacks>(PackFolders{config.packs_path, config.packs_trust, config.packs_trust_captures});
  for (const std::string& why : packs->refusals()) spdlog::warn("a pack is not used: {}", why);
  m_sources.push_back(std::move(packs));
  if (!config.cache_shared.empty()) m_sources.push_back(std::make_unique<DirectoryEntries>(config.cache_shared));
}

std::vector<SuppliedCode> CodeSupplies::find(std::vector<Digest> keys) {
  std::vector<SuppliedCode> found;
  for (const auto& source : m_sources) {
    if (keys.empty()) break;
    for (FoundEntry& entry : source->find(keys, ArtifactKind::code)) {
      std::erase(keys, entry.key);
      found.push_back(supplied(std::move(entry)));
    }
  }
  return found;
}

BuildSupply::~BuildSupply() { m_supplies.m_flights.end(m_build); }

CodeAnswer BuildSupply::ask(std::span<const Digest> keys, bool waits, Deadline until,
                            const std::function<bool()>& is_over) {
  if (waits) m_supplies.m_flights.wait(m_build, keys, until, is_over);
  CodeAnswer answer = m_supplies.m_flights.claim(m_build, keys);
  // What nobody makes is looked for once it is claimed: whoever made it before has published it.
  std::vector<SuppliedCode> found = m_supplies.find(without(keys, answer));
  m_supplies.m_flights.give(m_build, found);
  std::ranges::move(found, std::back_inserter(answer.found));
  if (waits) answer.elsewhere.clear();
  m_supplied += answer.found.size();
  return answer;
}

void BuildSupply::give(std::vector<SuppliedCode> made) { m_supplies.m_flights.give(m_build, std::move(made)); }

}  // namespace kiln
