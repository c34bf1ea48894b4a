#include "service/job_table.h"

#include <algorithm>
#include <cassert>
#include <tuple>

#include "base/bytes.h"
#include "base/limits.h"
#include "service/provenance.h"

namespace kiln {

using protocol::Priority;

Digest job_key(const protocol::Build& build) {
  ByteWriter writer;
  writer.write(static_cast<uint32_t>(build.targets.size()));
  for (const protocol::TargetName& target : build.targets) {
    writer.write(std::string_view(target.backend));
    writer.write(std::string_view(target.name));
    writer.write(std::string_view(target.driver));
    writer.write(static_cast<uint8_t>(target.is_deterministic));
    writer.write(target.threads);
  }
  writer.write(static_cast<uint8_t>(build.tune));
  writer.write(static_cast<uint8_t>(build.again));
  writer.write(static_cast<uint8_t>(build.unkept));
  writer.write(static_cast<uint8_t>(build.afresh));
  writer.write(static_cast<uint8_t>(build.sizes_vary));
  for (const int64_t size : build.sizes) writer.write(size);
  // The graph by its digest: no copy of megabytes, and no way to shift bytes between the parts.
  for (const uint8_t byte : digest_of(build.graph).bytes) writer.write(byte);
  return digest_of(writer.bytes());
}

Digest known_key(const protocol::Build& build) { return build.keys.empty() ? job_key(build) : build.keys.front(); }

std::string title_of(const protocol::Build& build) { return title_of(known_key(build), build.name); }

Status JobTable::ask(protocol::Build build, Asker asker, uint64_t owner, Deadline now) {
  const Digest key = job_key(build);
  if (const auto refused = m_quarantine.find(key); refused != m_quarantine.end()) {
    if (now < refused->second.until) return refused->second.status.with_context("not tried again for now");
    m_quarantine.erase(refused);
  }
  if (const auto found = m_jobs.find(key); found != m_jobs.end()) {
    Job& job = found->second;
    asker.joined = true;
    job.askers.push_back(asker);
    job.build.priority = std::min(job.build.priority, build.priority);
    return {};
  }
  if (queued() >= limits::k_queued_jobs) {
    return error(StatusCode::resource_exhausted, "{} builds wait already", queued());
  }
  const size_t bytes = build.graph.size();
  if (m_bytes > 0 && m_bytes + bytes > limits::k_held_request_bytes) {
    return error(StatusCode::resource_exhausted, "a graph of {} bytes beside {} bytes that wait already, at most {}",
                 bytes, m_bytes, limits::k_held_request_bytes);
  }
  m_bytes += bytes;
  m_jobs.emplace(
      key, Job{.key = key, .build = std::move(build), .owner = owner, .arrival = m_arrivals++, .askers = {asker}});
  return {};
}

const JobTable::Job* JobTable::next() {
  // A scan: at most k_queued_jobs rows, a few microseconds beside a build.
  Job* best = nullptr;
  const auto rank = [this](const Job& job) {
    const auto served = m_last_served.find(job.owner);
    return std::tuple(job.build.priority, served == m_last_served.end() ? 0 : served->second, job.arrival);
  };
  for (auto& [key, job] : m_jobs) {
    if (!job.running && (best == nullptr || rank(job) < rank(*best))) best = &job;
  }
  if (best == nullptr) return nullptr;
  if (best->build.priority != Priority::waiting && is_anybody_waiting()) return nullptr;
  best->running = true;
  best->begun_as = best->build.priority;
  ++m_running;
  m_last_served[best->owner] = ++m_turns;
  return best;
}

bool JobTable::is_anybody_waiting() const {
  return std::ranges::any_of(m_jobs, [](const auto& entry) {
    const Job& job = entry.second;
    return job.build.priority == Priority::waiting || (job.running && job.begun_as == Priority::waiting);
  });
}

std::vector<uint64_t> JobTable::in_the_way() const {
  std::vector<uint64_t> numbers;
  if (!is_anybody_waiting()) return numbers;
  for (const auto& [key, job] : m_jobs) {
    if (job.running && job.begun_as != Priority::waiting) numbers.push_back(job.build_number);
  }
  return numbers;
}

void JobTable::put_back(const Digest& key) {
  Job& job = m_jobs.at(key);
  assert(job.running && "only a running job makes way");
  job.running = false;
  job.progress = {};
  --m_running;
}

void JobTable::note_progress(const Digest& key, const protocol::Progress& progress) {
  if (const auto found = m_jobs.find(key); found != m_jobs.end()) found->second.progress = progress;
}

const std::vector<Asker>& JobTable::askers(const Digest& key) const {
  static const std::vector<Asker> k_nobody;
  const auto found = m_jobs.find(key);
  return found == m_jobs.end() ? k_nobody : found->second.askers;
}

std::vector<Asker> JobTable::finish(const Digest& key) {
  const auto found = m_jobs.find(key);
  assert(found != m_jobs.end() && found->second.running && "only a running job is finished");
  const uint64_t owner = found->second.owner;
  std::vector<Asker> askers = std::move(found->second.askers);
  m_bytes -= found->second.build.graph.size();
  m_jobs.erase(found);
  --m_running;
  const bool has_more =
      std::any_of(m_jobs.begin(), m_jobs.end(), [&](const auto& entry) { return entry.second.owner == owner; });
  if (!has_more) m_last_served.erase(owner);
  return askers;
}

void JobTable::leave(uint64_t session) {
  for (auto& [key, job] : m_jobs) {
    std::erase_if(job.askers, [&](const Asker& asker) { return asker.session == session; });
    if (job.askers.empty()) job.build.priority = Priority::background;
  }
}

std::string JobTable::title(const Digest& key) const { return title_of(m_jobs.at(key).build); }

void JobTable::quarantine(const protocol::Build& build, Status status, Deadline until) {
  if (m_quarantine.size() >= limits::k_quarantined_keys) {
    m_quarantine.erase(
        std::min_element(m_quarantine.begin(), m_quarantine.end(),
                         [](const auto& left, const auto& right) { return left.second.until < right.second.until; }));
  }
  m_quarantine.insert_or_assign(job_key(build), Quarantine{std::move(status), until, known_key(build), build.name});
}

}  // namespace kiln
