#pragma once

#include <string>
#include <string_view>

#include "client/client.h"

namespace kiln {

/// Writes an export (docs/export.md): has the programs of its forms built for each target, or for this host's best where
/// none is named, and packs them. `request` is JSON, as request_from_json has it; the file of weights that it names is there.
/// Errors: invalid_argument; failed_precondition for a target that this host cannot check kernels for; of the client and
/// the weights.
Status write_export(Client& client, const std::string& path, std::string_view request);

}  // namespace kiln
