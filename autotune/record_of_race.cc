// Apart from record.cc, which the daemon has without races.
#include "autotune/race.h"
#include "autotune/record.h"

namespace kiln {

TuningRecord::Candidate TuningRecord::Candidate::of(const Entrant& entrant, std::vector<uint8_t> schedule,
                                                    std::string origin) {
  return {entrant.description, std::move(origin), std::move(schedule),   entrant.seconds,    entrant.median(),
          entrant.spread(),    entrant.disturbed, entrant.why_dropped(), entrant.is_finalist};
}

}  // namespace kiln
