#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autotune/measure.h"
#include "autotune/record.h"
#include "base/expected.h"

namespace kiln {

/// A candidate in a race, and how it did.
struct Entrant {
  std::string description;
  std::vector<double> seconds;  // of each sample that counts, in the order of the turns
  uint32_t disturbed = 0;       // samples that were taken again: disturbed, or uneven
  Status status;                // why it dropped out: it crashed or hung
  double slowness = 0;          // its least sample over the best one when it dropped out for that; 0: it did not
  bool is_finalist = false;

  double median() const;
  /// The width of the middle half of the samples, as a share of the median.
  double spread() const;
  /// Why it did not run to the end, for people; empty: it did.
  std::string why_dropped() const;
};

struct RaceRules {
  double least_gain = 0.01;           // of the time: with less, the incumbent stays
  double most_seconds = 4;            // what the turns before the final may take
  double first_margin = 0.6;          // who is slower than the best by this share of one repetition drops out,
  double first_noise_seconds = 5e-4;  // beside this much, that a first repetition may be off
  double margin = 0.1;                // the same after each turn, of the least sample; in the final: they are far apart
  uint32_t turns = 3;
  double final_margin = 0.05;     // who is that close to the fastest challenger is in the final too,
  uint32_t most_challengers = 3;  // this many at most
  int winning_lead = 7;           // turns of the final that a challenger won by half of least_gain, less the others
  int losing_lead = 4;  // turns without least_gain, less the others: then the incumbent stays, unless it is far slower
  uint32_t most_final_turns = 25;
  double most_final_seconds = 2;  // after which who leads by `losing_lead` has won
  double wide_spread = 0.25;      // of a sample's repetitions: with more it counts as disturbed
  uint32_t retries = 3;           // of a disturbed sample, at most
};

/// Takes a sample of entrant `index`, of which one repetition is expected to take that long (0: nothing is known).
using TakeSample = std::function<Expected<TimeSample>(size_t index, double expected_seconds)>;

/// Which entrant is the fastest; the first one is the incumbent. All run in turns, each turn in another order, so that
/// what slows the machine down for a while slows all of them; who falls behind drops out, by its least sample, since a
/// neighbour only ever slows one down. The fastest few and the incumbent meet in a final, each challenger paired with the
/// incumbent turn by turn, until one of the two leads by so many turns (a sequential sign test). The incumbent is replaced by
/// who beats it, and is faster by `least_gain` in the median of the ratios; by the fastest where several do. On a machine so
/// busy that turns say nothing, an incumbent whose least sample is slower than the other's by `margin` does not win by turns.
/// Errors: none of the entrants': who fails drops out. internal when the incumbent fails.
Expected<size_t> race(std::vector<Entrant>& entrants, const TakeSample& take_sample, const RaceRules& rules = {});

/// Told the least time of a repetition so far. [seconds]
using BestSoFar = std::function<void(double)>;

/// race() between those of the entrants that nothing is known against, with nobody else on this machine timing or compiling
/// beside a sample; samples of an earlier race do not count. `host`: how the machine was meanwhile.
Expected<size_t> race_alone(std::vector<Entrant>& entrants, const TakeSample& take_sample, const BestSoFar& note_best,
                            HostState& host);

}  // namespace kiln
