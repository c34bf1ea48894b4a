#pragma once

#include <string>

#include "base/expected.h"
#include "service/entry_store.h"
#include "service/supplies.h"

namespace kiln {

/// The verbs that the store's thread answers, with captures shared with the fleet: what is put here is offered to its store
/// (capture_put), and what is not here is looked for there (capture_find). All others are the store's own. Blocks.
Expected<std::string> run_on_captures(const protocol::Command& command, EntryStore& store, Supplies& supplies);

}  // namespace kiln
