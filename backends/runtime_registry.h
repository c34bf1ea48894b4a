#pragma once

#include <span>

#include "backends/backend.h"

namespace kiln {

/// Every runtime backend of this build, the host's first. Light: links no compiler and no vendor library. To add one,
/// add a line to runtime_registry.cc.
std::span<const RuntimeBackend* const> runtime_backends();

}  // namespace kiln
