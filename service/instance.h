#pragma once

#include <string>

#include "base/expected.h"
#include "base/fd.h"

namespace kiln {

/// The right to be the daemon of a cache directory: a lock on <cache_directory>/kilnd.lock, which the kernel
/// takes back however the process ends. The file tells people its holder's pid.
///
/// While another holds it: already_exists once that one answers at `socket_path`; else (it is starting, or
/// leaving) waits, and takes over. Errors: already_exists; unavailable after `timeout_ms`; permission_denied.
Expected<UniqueFd> acquire_instance(const std::string& cache_directory, const std::string& socket_path,
                                    uint64_t timeout_ms);

}  // namespace kiln
