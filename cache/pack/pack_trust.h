#pragma once

#include "cache/pack/pack.h"
#include "cache/pack/trusted_keys.h"

namespace kiln {

/// Whose packs are used, and who may bring captures, which are Python, too.
struct PackTrust {
  TrustedKeys keys, capture_keys;

  /// Whether the pack may bring captures. Errors: permission_denied where it is used for nothing.
  Expected<bool> allows_captures(const Pack& pack) const;
};

}  // namespace kiln
