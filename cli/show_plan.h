#pragma once

#include "cli/session.h"

namespace kiln::cli {

/// What a program or a region's plan runs (client/plan_listing). Errors: invalid_argument for an entry of another kind; as of
/// program_listing.
Expected<Json> plan_of(const Session& session, const Json& entry);

void print_plan(const Output& out, const Json& plan);

}  // namespace kiln::cli
