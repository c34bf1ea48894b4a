#include "service/status_json.h"

#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/json_schema.h"

namespace kiln {
namespace {

using nlohmann::json;

json counters_object(const Counters& counters) {
  json object = json::object();
  for (const CounterRow& row : k_counter_rows) object[std::string(row.name)] = counters.value(row.counter);
  return object;
}

json fleet_object(const FleetCounts* fleet) {
  if (fleet == nullptr) return nullptr;
  return {{"keys_asked", fleet->keys_asked.load()},
          {"entries_found", fleet->entries_found.load()},
          {"entries_refused", fleet->entries_refused.load()},
          {"entries_accepted", fleet->entries_accepted.load()},
          {"entries_rejected", fleet->entries_rejected.load()},
          {"searches_failed", fleet->searches_failed.load()},
          {"entries_written", fleet->entries_written.load()},
          {"entries_dropped", fleet->entries_dropped.load()}};
}

json progress_object(const protocol::Progress& progress) {
  if (progress.stage.empty()) return nullptr;
  return {{"stage", progress.stage}, {"item", progress.item}, {"done", progress.done}, {"total", progress.total}};
}

/// Names come from clients: what is not UTF-8 is replaced, never thrown over.
std::string dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace

std::string status_json(const DaemonState& state) {
  json jobs = json::array();
  for (const auto& [key, job] : state.jobs.jobs()) {
    json targets = json::array();
    for (const auto& target : job.build.targets) targets.push_back(target.backend + "/" + target.name);
    jobs.push_back({{"key", known_key(job.build).to_hex()},
                    {"name", job.build.name},
                    {"running", job.running},
                    {"waiting_clients", job.askers.size()},
                    {"priority", static_cast<int>(job.build.priority)},
                    {"progress", progress_object(job.progress)},
                    {"targets", targets}});
  }
  json quarantined = json::array();
  for (const auto& [key, each] : state.jobs.quarantined()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(each.until - Clock::now()).count();
    if (left <= 0) continue;
    quarantined.push_back(
        {{"key", each.known_key.to_hex()}, {"name", each.name}, {"why", each.status.message()}, {"left_ms", left}});
  }
  return dump({{"schema_version", k_schema_version},
               {"pid", getpid()},
               {"build_id", std::string(protocol::build_id())},
               {"protocol_version", protocol::k_protocol_version},
               {"cache_directory", state.cache_directory},
               {"socket", state.socket_path},
               {"uptime_ms", state.uptime_ms},
               {"draining", state.draining},
               {"connections", state.connections},
               {"workers", state.workers},
               {"workers_memory_allows", state.room},
               {"builds_running", state.jobs.running()},
               {"builds_queued", state.jobs.queued()},
               {"keys_quarantined", quarantined.size()},
               {"quarantined", quarantined},
               {"jobs", jobs},
               {"tuning", progress_object(state.tuning)},
               {"has_untuned", state.has_untuned},
               {"counters", counters_object(state.counters)},
               {"fleet", fleet_object(state.fleet)}});
}

std::string counters_json(const Counters& counters) {
  return dump({{"schema_version", k_schema_version}, {"counters", counters_object(counters)}});
}

std::string events_json(const FlightRecorder& recorder) {
  json events = json::array();
  for (const FlightRecorder::Event& event : recorder.events()) {
    events.push_back({{"number", event.number},
                      {"unix_ms", event.unix_ms},
                      {"kind", std::string(event.kind)},
                      {"text", event.text}});
  }
  return dump({{"schema_version", k_schema_version}, {"events", events}});
}

}  // namespace kiln
