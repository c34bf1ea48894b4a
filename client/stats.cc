#include "client/stats.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/process_mutex.h"

namespace kiln {

namespace {
constexpr size_t k_miss_records = 1'000;  // a training run of a hundred graphs explains itself many times over
}

void Stats::add_program(const std::vector<Digest>& plans, uint32_t generation) {
  ++programs;
  const std::scoped_lock lock(process_mutex());
  m_plans.insert(plans.begin(), plans.end());
  m_generation = std::min(m_generation, generation);
}

std::string Stats::to_json() const {
  const std::scoped_lock lock(process_mutex());
  return nlohmann::ordered_json{{"compilations", compilations.load()},
                                {"hits_mapped", hits_mapped.load()},
                                {"hits_deferred", hits_deferred.load()},
                                {"hits_daemon", hits_daemon.load()},
                                {"joined", joined.load()},
                                {"misses", misses.load()},
                                {"programs", programs.load()},
                                {"regions", m_plans.size()},
                                {"lookup_ms", static_cast<double>(lookup_ns.load()) / 1e6},
                                {"generation", m_generation == UINT32_MAX ? 0 : m_generation}}
      .dump();
}

void MissLog::add(MissRecord record) {
  const std::scoped_lock lock(process_mutex());
  if (m_records.size() == k_miss_records) m_records.erase(m_records.begin());
  m_records.push_back(std::move(record));
}

nlohmann::ordered_json MissLog::to_json() const {
  const std::vector<MissRecord> records = [this] {
    const std::scoped_lock lock(process_mutex());
    return m_records;
  }();
  auto list = nlohmann::ordered_json::array();
  for (const MissRecord& record : records) {
    list.push_back({{"key", record.key.to_hex()},
                    {"parts", nlohmann::ordered_json::parse(record.key_parts, nullptr, false)},
                    {"reason", record.reason},
                    {"detail", record.detail},
                    {"outcome", record.outcome}});
  }
  return list;
}

}  // namespace kiln
