#include "autotune/record.h"

#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "base/hex.h"

namespace kiln {

namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t k_version = 2;

Json write(const TuningRecord::Candidate& candidate) {
  return {
      {"description", candidate.description}, {"origin", candidate.origin},   {"schedule", to_hex(candidate.schedule)},
      {"seconds", candidate.seconds},         {"median", candidate.median},   {"spread", candidate.spread},
      {"disturbed", candidate.disturbed},     {"dropped", candidate.dropped}, {"is_finalist", candidate.is_finalist}};
}

TuningRecord::Candidate read(const Json& json) {
  return {json.at("description"), json.at("origin"),  from_hex(json.at("schedule").get<std::string>()).value(),
          json.at("seconds"),     json.at("median"),  json.at("spread"),
          json.at("disturbed"),   json.at("dropped"), json.at("is_finalist")};
}

}  // namespace

TuningRecord::Candidate TuningRecord::Candidate::of(const Entrant& entrant, std::vector<uint8_t> schedule,
                                                    std::string origin) {
  return {
      entrant.description, std::move(origin), std::move(schedule), entrant.seconds,
      entrant.median(),    entrant.spread(),  entrant.disturbed,   entrant.status.ok() ? "" : entrant.status.message(),
      entrant.is_finalist};
}

double TuningRecord::gain() const {
  if (winner >= candidates.size()) return 1;
  const double best = candidates[winner].median;
  return best > 0 ? candidates.front().median / best : 1;
}

std::string TuningRecord::to_json() const {
  Json list = Json::array();
  for (const Candidate& candidate : candidates) list.push_back(write(candidate));
  return Json{{"version", k_version}, {"kernel", kernel}, {"machine", machine},
              {"load", load},         {"winner", winner}, {"candidates", std::move(list)}}
      .dump();
}

Expected<TuningRecord> TuningRecord::parse(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    if (json.at("version") != k_version) {
      return error(StatusCode::unimplemented, "a tuning record of version {}, this build reads {}",
                   json.at("version").dump(), k_version);
    }
    TuningRecord record{json.at("kernel"), json.at("machine"), json.at("load"), json.at("winner"), {}};
    for (const Json& candidate : json.at("candidates")) record.candidates.push_back(read(candidate));
    if (record.winner >= record.candidates.size())
      return error(StatusCode::data_loss, "a tuning record without winner");
    return record;
  } catch (const std::exception& problem) {  // nlohmann's, and that of a schedule that is no hexadecimal
    return error(StatusCode::data_loss, "a damaged tuning record: {}", problem.what());
  }
}

double load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

}  // namespace kiln
