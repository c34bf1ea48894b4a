#include "cache/fleet/fleet_tier.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <random>
#include <utility>

#include "base/limits.h"
#include "cache/fleet/sealed_entry.h"

namespace kiln {
namespace {

/// The name under which a store keeps a key's entry. Another format of entries has another prefix.
std::string name_of(const Digest& key) { return "kiln1:" + key.to_hex(); }
std::string lease_of(const Digest& key) { return "kiln1:lease:" + key.to_hex(); }

template <typename Keys>
std::vector<std::string> names_of(const Keys& keys, std::string (*name)(const Digest&)) {
  std::vector<std::string> names;
  std::ranges::transform(keys, std::back_inserter(names), name);
  return names;
}

constexpr std::chrono::milliseconds k_lease_term{limits::k_fleet_lease_ms};

std::string random_name() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

size_t bytes_of(const SourceEntry& entry) {
  size_t bytes = entry.artifact.payload.size() + entry.canonical_key.size() + entry.provenance.size();
  for (const auto& [digest, artifact] : entry.needs) bytes += artifact.payload.size();
  return bytes;
}

}  // namespace

Expected<std::unique_ptr<FleetTier>> FleetTier::open(const FleetSettings& settings, Say say) {
  PackTrust trust;
  KILN_ASSIGN_OR_RETURN(trust.keys, TrustedKeys::read(settings.trust));
  KILN_ASSIGN_OR_RETURN(trust.capture_keys, TrustedKeys::read(settings.trust_captures));
  std::optional<SigningKey> key;
  if (!settings.signing_key.empty()) {
    KILN_ASSIGN_OR_RETURN(key, SigningKey::read(settings.signing_key));
  }
  KILN_ASSIGN_OR_RETURN(auto reading, open_fleet_store(settings.address));
  KILN_ASSIGN_OR_RETURN(auto writing, open_fleet_store(settings.address));
  return std::unique_ptr<FleetTier>(new FleetTier(std::move(trust), std::move(key), settings.judges, std::move(reading),
                                                  std::move(writing), std::move(say)));
}

FleetTier::FleetTier(PackTrust trust, std::optional<SigningKey> key, bool judges, std::unique_ptr<FleetStore> reading,
                     std::unique_ptr<FleetStore> writing, Say say)
    : m_trust(std::move(trust)),
      m_key(std::move(key)),
      m_judges(judges),
      m_reading(std::move(reading)),
      m_writing(std::move(writing)),
      m_say(std::move(say)),
      m_name(random_name()),
      m_reader([this] { answer_questions(); }),
      m_writer([this] { write_offers(); }) {}

FleetTier::~FleetTier() {
  {
    const std::scoped_lock lock(m_mutex);
    m_is_stopping = true;
  }
  m_asked.notify_all();
  m_offered.notify_all();
  m_reader.join();
  m_writer.join();
}

// ---- reading

std::vector<SourceEntry> FleetTier::find(std::span<const Digest> keys, ArtifactKind kind, Patience& patience) {
  std::vector<SourceEntry> found;
  const Deadline start = Clock::now();
  if (keys.empty() || patience.left <= Patience::Duration::zero() || m_reading_breaker.is_open(start)) return found;
  m_counts.keys_asked += keys.size();
  const Deadline until = start + patience.left;
  auto values = ask<std::vector<std::optional<FleetStore::Bytes>>>(
      [names = names_of(keys, name_of), until](FleetStore& store) { return store.get(names, until); }, until);
  if (values.ok()) {
    m_reading_breaker.succeed();
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!(*values)[i]) continue;
      if (auto entry = believe(keys[i], kind, std::move(*(*values)[i]))) found.push_back(std::move(*entry));
    }
  } else {
    ++m_counts.searches_failed;
    m_reading_breaker.fail(Clock::now());
    m_say(fmt::format("the fleet's store is left alone for a while: {}", values.status().message()));
  }
  patience.left -= std::chrono::duration_cast<Patience::Duration>(Clock::now() - start);
  return found;
}

template <typename Answer>
Expected<Answer> FleetTier::ask(std::function<Expected<Answer>(FleetStore&)> question, Deadline until) {
  const auto promise = std::make_shared<std::promise<Expected<Answer>>>();
  std::future<Expected<Answer>> answer = promise->get_future();
  {
    const std::scoped_lock lock(m_mutex);
    if (m_questions.size() >= limits::k_fleet_questions) {
      return error(StatusCode::resource_exhausted, "{} searches wait already", m_questions.size());
    }
    // Who asked has gone on once its time is past.
    m_questions.push_back([this, promise, question = std::move(question), until] {
      if (Clock::now() < until) promise->set_value(question(*m_reading));
    });
  }
  m_asked.notify_one();
  if (answer.wait_until(until) == std::future_status::ready) return answer.get();
  return error(StatusCode::deadline_exceeded, "it did not answer in time");
}

std::optional<SourceEntry> FleetTier::believe(const Digest& key, ArtifactKind kind, FleetStore::Bytes value) {
  auto entry = open_value(key, kind, std::move(value));
  if (entry.ok()) {
    ++m_counts.entries_found;
    note_known(key, entry->generation);
    if (!entry->is_proven && m_key) note_refused(key);  // a signed one takes its place
    return std::move(*entry);
  }
  ++m_counts.entries_refused;
  m_say(fmt::format("what the fleet's store has is not used: {}", entry.status().message()));
  note_refused(key);
  return std::nullopt;
}

Expected<SourceEntry> FleetTier::open_value(const Digest& key, ArtifactKind kind, FleetStore::Bytes value) {
  KILN_ASSIGN_OR_RETURN(SourceEntry entry, open_sealed(std::move(value), key, kind, m_trust, m_judges));
  const std::scoped_lock lock(m_mutex);
  const auto rejected = m_rejected.find(key);
  if (rejected == m_rejected.end() || rejected->second != entry.digest) return entry;
  return error(StatusCode::permission_denied, "entry {}: its code was rejected here before", key.to_short());
}

void FleetTier::reject(const Digest& key, const Digest& candidate, std::string_view why) {
  ++m_counts.entries_rejected;
  m_say(fmt::format("code that the fleet's store has is rejected: entry {}: {}", key.to_short(), why));
  note_refused(key);
  const std::scoped_lock lock(m_mutex);
  if (m_rejected.size() >= limits::k_fleet_known_keys) m_rejected.clear();
  m_rejected.insert_or_assign(key, candidate);
}

void FleetTier::answer_questions() {
  std::unique_lock lock(m_mutex);
  for (;;) {
    const auto must_renew = [this] { return !m_leases.empty() && Clock::now() >= m_renewal; };
    while (!m_is_stopping && m_questions.empty() && !must_renew()) {
      if (m_leases.empty()) {
        m_asked.wait(lock);
      } else {
        m_asked.wait_until(lock, m_renewal);
      }
    }
    if (m_is_stopping) return;
    if (!m_questions.empty()) {
      const std::function<void()> question = std::move(m_questions.front());
      m_questions.pop_front();
      lock.unlock();
      question();
      lock.lock();
    }
    if (must_renew()) renew_leases(lock);
  }
}

// ---- leases

std::vector<Digest> FleetTier::lease(std::span<const Digest> keys, Patience& patience) {
  std::vector<Digest> elsewhere;
  const Deadline start = Clock::now();
  if (!gives(ArtifactKind::code, 0) || keys.empty() || patience.left <= Patience::Duration::zero()) return elsewhere;
  if (m_reading_breaker.is_open(start) || m_lease_breaker.is_open(start)) return elsewhere;
  const Deadline until = start + patience.left;
  const auto taken =
      ask<std::vector<bool>>([this, names = names_of(keys, lease_of),
                              until](FleetStore& store) { return store.lease(names, m_name, k_lease_term, until); },
                             until);
  patience.left -= std::chrono::duration_cast<Patience::Duration>(Clock::now() - start);
  if (!taken.ok()) {
    m_lease_breaker.fail(Clock::now());
    m_say(fmt::format("the fleet's store gives no leases for a while: {}", taken.status().message()));
    return elsewhere;
  }
  const std::scoped_lock lock(m_mutex);
  if (m_leases.empty()) m_renewal = deadline_in(limits::k_fleet_lease_renewal_ms);
  for (size_t i = 0; i < keys.size(); ++i) {
    if ((*taken)[i]) {
      m_leases.insert(keys[i]);
    } else {
      elsewhere.push_back(keys[i]);
    }
  }
  m_asked.notify_one();
  return elsewhere;
}

void FleetTier::renew_leases(std::unique_lock<std::mutex>& lock) {
  const auto names = names_of(m_leases, lease_of);
  m_renewal = deadline_in(limits::k_fleet_lease_renewal_ms);
  lock.unlock();
  // One that fails is tried again at the next turn; beyond its term the lease is anybody's.
  static_cast<void>(m_reading->lease(names, m_name, k_lease_term, deadline_in(limits::k_fleet_write_ms)));
  lock.lock();
}

void FleetTier::give_up(std::span<const Digest> keys) {
  {
    const std::scoped_lock lock(m_mutex);
    for (const Digest& key : keys) {
      if (m_leases.erase(key) > 0) m_given_up.push_back(key);
    }
  }
  m_offered.notify_one();
}

/// A term that is over at once. Where the store cannot be told, their terms end by themselves.
void FleetTier::write_given_up(std::unique_lock<std::mutex>& lock) {
  const auto names = names_of(std::exchange(m_given_up, {}), lease_of);
  lock.unlock();
  static_cast<void>(
      m_writing->lease(names, m_name, std::chrono::milliseconds(1), deadline_in(limits::k_fleet_write_ms)));
  lock.lock();
}

void FleetTier::note_wait(bool was_worth_it) {
  if (was_worth_it) return m_lease_breaker.succeed();
  m_lease_breaker.fail(Clock::now());
  m_say("another host took too long over what it makes; nobody is waited for for a while");
}

// ---- writing

bool FleetTier::is_news(const Digest& key, uint32_t generation) const {
  const auto known = m_known.find(key);
  return known == m_known.end() || known->second < generation || m_refused.contains(key);
}

bool FleetTier::takes(const Digest& key, ArtifactKind kind, uint32_t generation) {
  const std::scoped_lock lock(m_mutex);
  return gives(kind, generation) && is_news(key, generation);
}

void FleetTier::note_known(const Digest& key, uint32_t generation) {
  const std::scoped_lock lock(m_mutex);
  if (m_known.size() >= limits::k_fleet_known_keys) m_known.clear();
  m_known.insert_or_assign(key, generation);
}

void FleetTier::note_refused(const Digest& key) {
  const std::scoped_lock lock(m_mutex);
  if (m_refused.size() >= limits::k_fleet_known_keys) m_refused.clear();
  m_refused.insert(key);
}

void FleetTier::offer(SourceEntry&& entry) {
  if (!gives(entry.artifact.kind, entry.generation)) return;
  {
    const std::scoped_lock lock(m_mutex);
    if (m_is_stopping || !is_news(entry.key, entry.generation)) return;
    if (m_offered_bytes + bytes_of(entry) > limits::k_fleet_queue_bytes) {
      ++m_counts.entries_dropped;
      return;
    }
    m_offered_bytes += bytes_of(entry);
    m_offers.push_back(std::move(entry));
  }
  m_offered.notify_one();
}

bool FleetTier::is_writing() {
  const std::scoped_lock lock(m_mutex);
  return m_offered_bytes > 0 && !m_writing_breaker.is_open(Clock::now());
}

void FleetTier::write_offers() {
  std::unique_lock lock(m_mutex);
  for (;;) {
    m_offered.wait(lock, [this] { return m_is_stopping || !m_offers.empty() || !m_given_up.empty(); });
    if (m_is_stopping) return;
    if (m_offers.empty()) {
      write_given_up(lock);
      continue;
    }
    if (m_writing_breaker.is_open(Clock::now())) {
      m_offered.wait_for(lock, std::chrono::milliseconds(limits::k_fleet_rest_ms));
      continue;
    }
    const SourceEntry entry = std::move(m_offers.front());
    m_offers.pop_front();
    lock.unlock();
    const bool is_done = write(entry);
    lock.lock();
    if (is_done) {
      m_offered_bytes -= bytes_of(entry);
    } else {
      m_offers.push_front(entry);
    }
  }
}

bool FleetTier::write(const SourceEntry& entry) {
  bool replaces = entry.generation > 0;
  {
    const std::scoped_lock lock(m_mutex);
    replaces = replaces || m_refused.contains(entry.key);
  }
  const auto sealed = seal(entry, m_key ? &*m_key : nullptr);
  Status status = sealed.status();
  if (status.ok()) {
    status = m_writing->put(name_of(entry.key), *sealed, replaces, deadline_in(limits::k_fleet_write_ms));
  }
  if (status.ok()) {
    m_writing_breaker.succeed();
    ++m_counts.entries_written;
    note_known(entry.key, entry.generation);
    const std::scoped_lock lock(m_mutex);
    m_refused.erase(entry.key);
    return true;
  }
  m_writing_breaker.fail(Clock::now());
  m_say(fmt::format("writing to the fleet's store rests for a while: {}", status.message()));
  const bool may_pass = status.code() == StatusCode::unavailable || status.code() == StatusCode::deadline_exceeded;
  if (!may_pass) ++m_counts.entries_dropped;
  return !may_pass;
}

}  // namespace kiln
