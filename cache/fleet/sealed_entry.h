#pragma once

#include <cstdint>
#include <vector>

#include "cache/pack/pack_trust.h"
#include "cache/pack/signing_key.h"
#include "cache/sources/entry_source.h"

namespace kiln {

/// An entry as a fleet's store keeps it: a pack of its one key (docs/packs.md has the grammar), signed.
Expected<std::vector<uint8_t>> seal(const SourceEntry& entry, const SigningKey& key);

/// The entry of `key` in bytes that anybody may have written. Errors: permission_denied when nobody signed them who is
/// trusted for such a kind; data_loss when they are damaged, or another key's; not_found for another kind.
Expected<SourceEntry> open_sealed(std::vector<uint8_t> bytes, const Digest& key, ArtifactKind kind,
                                  const PackTrust& trust);

}  // namespace kiln
