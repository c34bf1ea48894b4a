#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cache/fleet/breaker.h"
#include "cache/fleet/fleet_store.h"
#include "cache/pack/pack_trust.h"
#include "cache/pack/signing_key.h"
#include "cache/sources/entry_source.h"

namespace kiln {

/// As the configuration says.
struct FleetSettings {
  FleetAddress address;
  std::string signing_key;     // a file; empty: entries are taken from the store, and none is given to it
  std::string trust;           // the folder with the keys of who is believed (*.pub)
  std::string trust_captures;  // and of whom captures are
  /// Code that nobody trusted signed is given as candidates, and code is given to the store without a key, too.
  bool judges = false;
};

/// What happened since the start.
struct FleetCounts {
  std::atomic<uint64_t> keys_asked{0}, entries_found{0}, entries_refused{0}, entries_accepted{0}, entries_rejected{0},
      searches_failed{0}, entries_written{0}, entries_dropped{0};
};

/// A store that the hosts of a fleet share. Whoever asks waits no longer than it has patience, whatever the store does: all
/// talk is on threads of its own, and what does not answer is left alone for a while. What is built is written behind, from
/// a bounded queue.
///
/// An entry counts when somebody trusted signed it; any other is refused, or where it is code, and the settings say so, given
/// as a candidate. Threading: any thread.
class FleetTier final : public EntrySource {
 public:
  /// Told, in a sentence, why the store is left alone and what was refused. From any thread.
  using Say = std::function<void(const std::string&)>;

  /// Errors: invalid_argument for the address; what reading keys and password said.
  static Expected<std::unique_ptr<FleetTier>> open(const FleetSettings& settings, Say say);
  /// Drops what waits to be written.
  ~FleetTier() override;

  std::vector<SourceEntry> find(std::span<const Digest> keys, ArtifactKind kind, Patience& patience) override;
  void offer(SourceEntry&& entry) override;
  bool takes(const Digest& key, ArtifactKind kind, uint32_t generation) override;
  /// Whether something waits to be written, and the store is not left alone.
  bool is_writing();

  /// A candidate that `find` gave has passed its verdict.
  void note_accepted() { ++m_counts.entries_accepted; }
  /// One did not pass: it is not given again, and what this host offers takes its place.
  void reject(const Digest& key, const Digest& candidate, std::string_view why);

  /// Takes `keys` for this host to make, and gives those that another one makes at this moment. What this host has taken it
  /// has until it gives it up, or ends. Nothing is elsewhere where leases are not to be had, or cannot be relied upon.
  std::vector<Digest> lease(std::span<const Digest> keys, Patience& patience);
  /// This host makes them no more; the store hears of it once it has what was offered before.
  void give_up(std::span<const Digest> keys);
  /// Whether what another host made came while it was waited for. Where it did not, nobody is waited for for a while.
  void note_wait(bool was_worth_it);

  const FleetCounts& counts() const { return m_counts; }

 private:
  FleetTier(PackTrust trust, std::optional<SigningKey> key, bool judges, std::unique_ptr<FleetStore> reading,
            std::unique_ptr<FleetStore> writing, Say say);
  /// Has the reading thread ask; deadline_exceeded where it has no answer by then.
  template <typename Answer>
  Expected<Answer> ask(std::function<Expected<Answer>(FleetStore&)> question, Deadline until);
  std::optional<SourceEntry> believe(const Digest& key, ArtifactKind kind, FleetStore::Bytes value);
  Expected<SourceEntry> open_value(const Digest& key, ArtifactKind kind, FleetStore::Bytes value);
  /// Whether this host gives such entries to the store: without a key those that others judge, which is code, and of that
  /// none in whose place a later generation would come.
  bool gives(ArtifactKind kind, uint32_t generation) const {
    return m_key || (m_judges && kind == ArtifactKind::code && generation == 0);
  }
  void answer_questions();
  void renew_leases(std::unique_lock<std::mutex>& lock);
  void write_offers();
  void write_given_up(std::unique_lock<std::mutex>& lock);
  /// Whether the entry was dealt with, and so need not be tried again.
  bool write(const SourceEntry& entry);
  bool is_news(const Digest& key, uint32_t generation) const;
  void note_known(const Digest& key, uint32_t generation);
  void note_refused(const Digest& key);

  const PackTrust m_trust;
  const std::optional<SigningKey> m_key;
  const bool m_judges;
  const std::unique_ptr<FleetStore> m_reading, m_writing;  // a thread has each
  const Say m_say;
  const std::string m_name;  // of this host, among those that hold leases
  Breaker m_reading_breaker, m_writing_breaker, m_lease_breaker;
  FleetCounts m_counts;

  std::mutex m_mutex;  // of all below
  std::condition_variable m_asked, m_offered;
  std::deque<std::function<void()>> m_questions;
  std::deque<SourceEntry> m_offers;
  size_t m_offered_bytes = 0;
  std::unordered_map<Digest, uint32_t> m_known;   // generations that the store has, as far as this process saw
  std::unordered_set<Digest> m_refused;           // what is there under these keys is nothing to keep
  std::unordered_map<Digest, Digest> m_rejected;  // by key the candidate that did not pass
  std::unordered_set<Digest> m_leases;            // what this host has for itself
  std::vector<Digest> m_given_up;                 // what it has no more, though the store does not know yet
  Deadline m_renewal{};                           // when the leases are to be renewed
  bool m_is_stopping = false;

  std::thread m_reader, m_writer;
};

}  // namespace kiln
