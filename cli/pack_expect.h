#pragma once

#include "cache/pack/pack.h"
#include "cli/warm_torch.h"

namespace kiln::cli {

/// Runs a torch module once beside the pack alone, with an empty cache and no daemon: whether it finds there what it looks
/// for. Of what it does not find it says what the nearest key has otherwise. exit: short_of_hits when anything is missing.
ExitCode expect_hits(Session& session, const Pack& pack, const WarmTorch& module);

}  // namespace kiln::cli
