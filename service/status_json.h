#pragma once

#include <cstdint>
#include <string>

#include "cache/fleet/fleet_tier.h"
#include "service/counters.h"
#include "service/flight_recorder.h"
#include "service/job_table.h"

/// What `status`, `stats` and `events` answer. JSON objects with a schema_version each; fields are only
/// added.
namespace kiln {

struct DaemonState {
  std::string cache_directory;
  std::string socket_path;
  int64_t uptime_ms = 0;
  bool draining = false;
  size_t connections = 0;
  size_t workers = 0;
  size_t room = 0;  // of those, for which there is free memory at this moment
  const JobTable& jobs;
  const protocol::Progress& tuning;  // of what races in the background; no stage: nothing does
  bool has_untuned = false;          // programs that wait for a quiet machine
  const Counters& counters;
  const FleetCounts* fleet = nullptr;  // null: there is none
};

std::string status_json(const DaemonState& state);
std::string counters_json(const Counters& counters);
std::string events_json(const FlightRecorder& recorder);

}  // namespace kiln
