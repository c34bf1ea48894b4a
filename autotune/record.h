#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/expected.h"

namespace kiln {

struct Entrant;

/// The machine while something raced on it.
struct HostState {
  double load = 0;          // when the race began: the load average of a minute
  uint32_t processors = 0;  // that the process could keep busy then
  uint32_t threads = 0;     // that candidates ran on
  double stolen = 0;        // share of the processors' time that the host took away meanwhile
};

/// What a race said about one kernel, or the plans of one region, on one machine: every candidate with every sample, not
/// the winner alone, so that a later race begins with what is known and a person sees why.
struct TuningRecord {
  struct Candidate {
    std::string description;
    std::string origin;             // the near kernel whose race its schedule won; empty: the model lists it
    std::vector<uint8_t> schedule;  // Schedule::bytes; of a plan its FuseChoices, in the same form
    std::vector<double> seconds;
    double median = 0, spread = 0;  // Entrant's
    uint32_t disturbed = 0;
    std::string dropped;  // Entrant::why_dropped
    bool is_finalist = false;

    /// How an entrant did.
    static Candidate of(const Entrant& entrant, std::vector<uint8_t> schedule, std::string origin = {});
  };

  std::string kernel;   // kernel_name of the spec; of a region "plan with" that of its first kernel that others lack
  std::string machine;  // what it was measured on
  HostState host;       // and how that was meanwhile; of several races the least favourable of each
  uint32_t winner = 0;  // of `candidates`; the first is the analytic pick
  std::vector<Candidate> candidates;

  /// The time of the first candidate over the winner's: 1 when it won itself.
  double gain() const;
  /// What two records of one kernel on one machine say together. Each schedule is there once, with the samples of both; so a
  /// record that is met twice adds nothing, and neither order nor grouping of several changes what was measured. The winner is
  /// that of the two winners, as only these passed a verdict, whose least sample is less by `k_clear_gain`; else the one that
  /// was sampled more.
  static TuningRecord merged(const TuningRecord& one, const TuningRecord& other);
  static constexpr double k_clear_gain = 0.02;  // of the time
  std::string to_json() const;
  /// Errors: data_loss for a damaged record, unimplemented for one of another version. Either is a miss of the record, not of
  /// the kernel.
  static Expected<TuningRecord> parse(std::string_view json);
};

}  // namespace kiln
