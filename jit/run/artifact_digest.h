#pragma once

#include <algorithm>

#include "base/digest.h"
#include "jit/run/program_generated.h"

namespace kiln {

/// How programs and plans name what they need.
inline Digest to_digest(const fb::ArtifactDigest& stored) {
  Digest digest;
  std::copy(stored.bytes()->begin(), stored.bytes()->end(), digest.bytes.begin());
  return digest;
}

}  // namespace kiln
