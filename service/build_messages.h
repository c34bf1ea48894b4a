#pragma once

#include <string>

#include "jit/build/build.h"
#include "service/protocol/message.h"

/// Between clients and workers: what either says of a build, in the other's words.
namespace kiln {

/// What a client asks for, as a worker is asked for it.
BuildRequest request_of(const protocol::Build& build, const std::string& cache_directory);

/// What a worker made, as clients are told of it; the artifacts too where `carries_them`: clients do not find them in the
/// cache.
protocol::Built answer_of(const BuildResult& result, bool carries_them);

}  // namespace kiln
