#pragma once

#include <span>
#include <string>

#include "backends/cpu/compile/backend.h"
#include "frontend/fuse/plan.h"

namespace kiln::bench {

const cpu::CpuCompileBackend& backend();
/// What schedules are made for: the host, where the target is its best one.
Machine machine(const Target& target);

/// Tunes the plan's one product or attention with the service's own tuner, from an empty cache; then times every schedule
/// that an implementation lists, as the tuner times its candidates; then the pick, the three best and the first candidate
/// again, in turn for `rounds` rounds. Gives a JSON object: what was picked, what was best, both times, samples and seconds.
/// Errors: invalid_argument where the plan has none, or several, that race.
Expected<std::string> search(const Plan& plan, const Target& target, uint32_t rounds);

/// What near shapes know of each other is worth, where the model knows nothing: of each plan's one product or attention the
/// candidates are `guesses` schedules by chance. All race once by themselves and once in one build, where each also has the
/// winners of those before it. Gives a JSON object: for each the first guess, both winners and the best schedule of all.
/// Errors: as of search().
Expected<std::string> search_near(std::span<const Plan> plans, const Target& target, uint32_t rounds, uint32_t guesses,
                                  uint32_t seed);

/// What faults do to the tuner's pick: the plan's one product or attention is tuned from an empty cache alone, beside a thread
/// that never rests, and from candidates that come worst first. The three picks and the last candidate then meet, in turn for
/// `rounds` rounds. Gives a JSON object: each one's time, and the share of it that the pick made alone takes. Errors: as of
/// search().
Expected<std::string> search_with_faults(const Plan& plan, const Target& target, uint32_t rounds);

}  // namespace kiln::bench
