#pragma once

#include "backends/backend.h"
#include "frontend/fuse/fuse_choices.h"

namespace kiln {

/// What plans for a target are made with where none have raced there.
inline FuseChoices model_choices(const CompileBackend& backend, const Target& target) {
  return {.heavy_factors_inside = backend.computes_heavy_factors(target)};
}

}  // namespace kiln
