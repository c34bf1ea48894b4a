#pragma once

#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/digest.h"

namespace kiln {

/// What happened in this process; docs/client.md has a sentence for each counter.
/// Threading: any thread at once.
class Stats {
 public:
  std::atomic<uint64_t> compilations{0};  // code generations the workers did for this process's requests
  std::atomic<uint64_t> hits_mapped{0};   // found in the mapped cache, no daemon asked
  // found in the mapped cache, but checked by the daemon before their first run
  std::atomic<uint64_t> hits_deferred{0};
  // given by the daemon without compiling: published since our look, or linked from kernels that were there
  std::atomic<uint64_t> hits_daemon{0};
  std::atomic<uint64_t> joined{0};  // waited for a build that another process had asked for
  std::atomic<uint64_t> misses{0};  // not in the mapped cache when first looked for
  std::atomic<uint64_t> programs{0};
  std::atomic<uint64_t> lookup_ns{0};  // time spent in finding, mapping, checking and binding

  /// A program came into use.
  void add_program(const std::vector<Digest>& plans, uint32_t generation);

  /// One JSON object.
  std::string to_json() const;

 private:
  // process_mutex() guards what follows.
  std::unordered_set<Digest> m_plans;
  uint32_t m_generation = UINT32_MAX;  // lowest in use
};

/// Why a look into the mapped cache found nothing, and what came of it.
struct MissRecord {
  Digest key;
  std::string key_parts;  // JSON
  std::string reason;     // name of a kiln_miss, or "deferred"
  std::string detail;
  std::string outcome;  // Client::Compiled::how, or the error
};

/// The last misses of this process, oldest dropped first.
class MissLog {
 public:
  void add(MissRecord record);
  nlohmann::ordered_json to_json() const;

 private:
  std::vector<MissRecord> m_records;  // process_mutex() guards it
};

}  // namespace kiln
