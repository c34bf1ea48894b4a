#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/config/config.h"
#include "base/fd.h"
#include "cache/fleet/fleet_tier.h"
#include "cache/sources/entry_source.h"
#include "jit/build/build.h"
#include "service/code_flights.h"
#include "service/entry_store.h"

namespace kiln {

class Supplies;

/// What one build gets. With its end the build is over, and whoever waits for it goes on: so it lives until what was built
/// is published. Threading: one thread at a time.
class BuildSupply {
 public:
  BuildSupply(Supplies& supplies, uint64_t build, Patience patience)
      : m_supplies(supplies), m_build(build), m_patience(patience) {}
  ~BuildSupply();
  BuildSupply(const BuildSupply&) = delete;
  BuildSupply& operator=(const BuildSupply&) = delete;

  /// The programs of all these keys, as if they had been built; nothing unless the fleet's store has each of them with all
  /// that it needs, and tuned where `is_tuned` asks for that. Packs and directories the client has looked into itself.
  std::optional<BuildResult> programs(std::span<const Digest> keys, bool is_tuned);

  /// As of CodeSupply. A wait takes until `until` at most; then what others still make is the asker's, too. `is_over`: asked
  /// now and then whether the answer is wanted.
  CodeAnswer ask(std::span<const Digest> keys, bool waits, bool judges, Deadline until,
                 const std::function<bool()>& is_over);
  /// As of CodeSupply.
  std::vector<SuppliedEntry> find(std::span<const Digest> keys, ArtifactKind kind, bool raced);
  /// Other builds get it at once, and so does the fleet.
  void give(std::vector<SuppliedCode> made);
  /// What was built is wrong, or its worker has died, perhaps of a candidate: the next worker gets none of those that this
  /// one had. Whether it had any.
  bool reject_candidates(std::string_view why);

  /// How many keys' code was found, candidates that passed among them.
  uint64_t supplied() const { return m_supplied; }
  /// Whether nothing was built: all programs were found.
  bool has_programs() const { return m_has_programs; }

 private:
  std::vector<Digest> look(std::vector<Digest> keys, Patience& patience, std::vector<SuppliedCode>& found);
  std::vector<Digest> lease(std::vector<Digest> keys, Patience& patience, std::vector<SuppliedCode>& found);
  void await_hosts(std::vector<Digest> keys, Deadline until, const std::function<bool()>& is_over,
                   std::vector<SuppliedCode>& found);

  Supplies& m_supplies;
  const uint64_t m_build;
  Patience m_patience;
  std::vector<Digest> m_leased;                     // what no other host makes meanwhile
  std::unordered_map<Digest, Digest> m_candidates;  // by key: what the worker judges, or found to be right
  bool m_judges = false;                            // whether it can, as it was last asked
  uint64_t m_supplied = 0;
  bool m_has_programs = false;
};

/// Where builds get what they need not make: from other builds that make it at the same time, and from sources, in their
/// order. Threading: any thread.
class Supplies {
 public:
  /// The cache directory (it is looked at again, since other builds publish meanwhile), packs, the shared directory, the
  /// fleet's store. A source that cannot be had is logged and left out.
  explicit Supplies(const Config& config);

  std::shared_ptr<BuildSupply> for_build() {
    return std::make_shared<BuildSupply>(*this, ++m_builds, Patience{m_budget});
  }

  /// Gives what was built and published to the sources that take it. Blocks as the store does.
  void offer(const BuildResult& result, EntryStore& store);

  /// Publishes what races have found while their build goes on, and offers it. Where that fails, the build brings it again.
  void keep(const BuildResult& found, EntryStore& store);

  /// A capture that the fleet's store has; blocks for the budget at most.
  std::optional<BuildResult> find_capture(const Digest& key);
  /// Gives it a capture that was kept here under that head.
  void offer_capture(const BuiltHead& head, const std::vector<uint8_t>& data);

  /// Whether something is still on its way to a source that can be reached. What is going to be offered counts as long as
  /// the announcement is kept.
  bool is_offering() const { return m_fleet != nullptr && (m_announced > 0 || m_fleet->is_writing()); }
  std::shared_ptr<void> announce_offer() {
    ++m_announced;
    return {nullptr, [this](void*) { --m_announced; }};
  }

  /// Null: there is none.
  const FleetCounts* fleet_counts() const { return m_fleet == nullptr ? nullptr : &m_fleet->counts(); }

 private:
  friend class BuildSupply;
  void open_fleet(const Config& config);
  std::vector<SuppliedCode> find_code(std::vector<Digest> keys, Patience& patience);
  std::vector<SourceEntry> find(std::vector<Digest> keys, ArtifactKind kind, Patience& patience,
                                bool (*is_wanted)(const SourceEntry&));

  const Patience::Duration m_budget;
  std::vector<std::unique_ptr<EntrySource>> m_sources;
  FleetTier* m_fleet = nullptr;  // one of the sources
  CodeFlights m_flights;
  std::atomic<uint64_t> m_builds = 0;
  std::atomic<uint64_t> m_announced = 0;
};

}  // namespace kiln
