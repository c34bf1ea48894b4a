#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
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
};

/// What happened since the start.
struct FleetCounts {
  std::atomic<uint64_t> keys_asked{0}, entries_found{0}, entries_refused{0}, searches_failed{0}, entries_written{0},
      entries_dropped{0};
};

/// A store that the hosts of a fleet share. Whoever asks waits no longer than it has patience, whatever the store does: all
/// talk is on threads of its own, and what does not answer is left alone for a while. What is built is written behind, from
/// a bounded queue.
///
/// An entry counts when somebody trusted signed it. Threading: any thread.
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
  bool takes(const Digest& key, uint32_t generation) override;
  /// Whether something waits to be written, and the store is not left alone.
  bool is_writing();

  const FleetCounts& counts() const { return m_counts; }

 private:
  using Values = Expected<std::vector<std::optional<FleetStore::Bytes>>>;
  struct Question {
    std::vector<std::string> names;
    Deadline until;
    std::promise<Values> answer;
  };

  FleetTier(PackTrust trust, std::optional<SigningKey> key, std::unique_ptr<FleetStore> reading,
            std::unique_ptr<FleetStore> writing, Say say);
  Values ask(std::span<const Digest> keys, Deadline until);
  std::optional<SourceEntry> believe(const Digest& key, ArtifactKind kind, FleetStore::Bytes value);
  void answer_questions();
  void write_offers();
  /// Whether the entry was dealt with, and so need not be tried again.
  bool write(const SourceEntry& entry);
  bool is_news(const Digest& key, uint32_t generation) const;
  void note_known(const Digest& key, uint32_t generation);

  const PackTrust m_trust;
  const std::optional<SigningKey> m_key;
  const std::unique_ptr<FleetStore> m_reading, m_writing;  // a thread has each
  const Say m_say;
  Breaker m_reading_breaker, m_writing_breaker;
  FleetCounts m_counts;

  std::mutex m_mutex;  // of all below
  std::condition_variable m_asked, m_offered;
  std::deque<Question> m_questions;
  std::deque<SourceEntry> m_offers;
  size_t m_offered_bytes = 0;
  std::unordered_map<Digest, uint32_t> m_known;  // generations that the store has, as far as this process saw
  std::unordered_set<Digest> m_refused;          // what is there under these keys is nothing to keep
  bool m_is_stopping = false;

  std::thread m_reader, m_writer;
};

}  // namespace kiln
