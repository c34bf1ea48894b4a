#pragma once

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

}  // namespace kiln::bench
