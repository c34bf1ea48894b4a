#include "autotune/record.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "autotune/quantile.h"
#include "base/hex.h"

namespace kiln {

namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t k_version = 3;

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

Json write(const HostState& host) {
  return {{"load", host.load}, {"processors", host.processors}, {"threads", host.threads}, {"stolen", host.stolen}};
}

HostState read_host(const Json& json) {
  return {json.at("load"), json.at("processors"), json.at("threads"), json.at("stolen")};
}

/// The least favourable of both.
HostState worse(const HostState& one, const HostState& other) {
  return {std::max(one.load, other.load), std::min(one.processors, other.processors),
          std::min(one.threads, other.threads), std::max(one.stolen, other.stolen)};
}

using Candidate = TuningRecord::Candidate;

/// Whether both ran the same code. Of what was there before its race only the description is known.
bool is_same(const Candidate& one, const Candidate& other) {
  return one.schedule == other.schedule && (!one.schedule.empty() || one.description == other.description);
}

double least(const Candidate& candidate) {
  return candidate.seconds.empty() ? HUGE_VAL : *std::ranges::min_element(candidate.seconds);
}

/// What is said of both; nothing where one of them says nothing.
std::string if_both(const std::string& one, const std::string& other) {
  return one.empty() || other.empty() ? "" : std::min(one, other);
}

/// Samples are durations in full precision: equal ones are one that both have.
void add_samples(const Candidate& from, Candidate& into) {
  std::vector<double>& seconds = into.seconds;
  seconds.insert(seconds.end(), from.seconds.begin(), from.seconds.end());
  std::ranges::sort(seconds);
  const auto repeated = std::ranges::unique(seconds);
  seconds.erase(repeated.begin(), repeated.end());
  into.median = quantile(into.seconds, 0.5);
  into.spread = spread_of(into.seconds);
  into.disturbed = std::max(into.disturbed, from.disturbed);
  into.is_finalist = into.is_finalist || from.is_finalist;
  into.dropped = if_both(into.dropped, from.dropped);
  into.origin = if_both(into.origin, from.origin);
}

/// Where the candidate is among `all`; their number where it is not.
uint32_t place_of(const Candidate& candidate, const std::vector<Candidate>& all) {
  const auto found = std::ranges::find_if(all, [&](const Candidate& each) { return is_same(each, candidate); });
  return static_cast<uint32_t>(found - all.begin());
}

/// Whether it is the better pick of two winners, with the samples of both records.
bool is_better(const Candidate& one, const Candidate& other) {
  const double mine = least(one), others = least(other);
  if (std::min(mine, others) < std::max(mine, others) * (1 - TuningRecord::k_clear_gain)) return mine < others;
  return std::tuple(other.seconds.size(), mine, one.schedule) < std::tuple(one.seconds.size(), others, other.schedule);
}

/// Which of two records the other is added to: the one of more samples.
bool comes_first(const TuningRecord& one, const TuningRecord& other) {
  const auto samples = [](const TuningRecord& record) {
    size_t count = 0;
    for (const Candidate& candidate : record.candidates) count += candidate.seconds.size();
    return count;
  };
  const size_t mine = samples(one), others = samples(other);
  return mine != others ? mine > others : one.to_json() <= other.to_json();
}

}  // namespace

TuningRecord TuningRecord::merged(const TuningRecord& one, const TuningRecord& other) {
  if (!comes_first(one, other)) return merged(other, one);
  TuningRecord both = one;
  both.host = worse(one.host, other.host);
  for (Candidate& each : both.candidates) add_samples(Candidate(each), each);
  for (const Candidate& candidate : other.candidates) {
    const uint32_t place = place_of(candidate, both.candidates);
    if (place == both.candidates.size()) both.candidates.push_back(candidate);
    add_samples(candidate, both.candidates[place]);
  }
  const uint32_t mine = both.winner, others = place_of(other.candidates[other.winner], both.candidates);
  both.winner = is_better(both.candidates[others], both.candidates[mine]) ? others : mine;
  return both;
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
              {"host", write(host)},  {"winner", winner}, {"candidates", std::move(list)}}
      .dump();
}

Expected<TuningRecord> TuningRecord::parse(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    if (json.at("version") != k_version) {
      return error(StatusCode::unimplemented, "a tuning record of version {}, this build reads {}",
                   json.at("version").dump(), k_version);
    }
    TuningRecord record{json.at("kernel"), json.at("machine"), read_host(json.at("host")), json.at("winner"), {}};
    for (const Json& candidate : json.at("candidates")) record.candidates.push_back(read(candidate));
    if (record.winner >= record.candidates.size())
      return error(StatusCode::data_loss, "a tuning record without winner");
    return record;
  } catch (const std::exception& problem) {  // nlohmann's, and that of a schedule that is no hexadecimal
    return error(StatusCode::data_loss, "a damaged tuning record: {}", problem.what());
  }
}

}  // namespace kiln
