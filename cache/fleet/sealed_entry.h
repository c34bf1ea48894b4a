#pragma once

#include <cstdint>
#include <vector>

#include "cache/pack/pack_trust.h"
#include "cache/pack/signing_key.h"
#include "cache/sources/entry_source.h"

namespace kiln {

/// An entry as a fleet's store keeps it: a pack of its one key (docs/packs.md has the grammar). `signer` signs it; null: nobody.
Expected<std::vector<uint8_t>> seal(const SourceEntry& entry, const SigningKey* signer);

/// The entry of `key` in bytes that anybody may have written. With `takes_candidates` code that nobody trusted signed is
/// given, too: not proven, and of generation 0, since the race that it claims to have won is not believed either.
/// Errors: permission_denied when nobody signed them who is trusted for such a kind; data_loss when they are damaged, or
/// another key's; not_found for another kind.
Expected<SourceEntry> open_sealed(std::vector<uint8_t> bytes, const Digest& key, ArtifactKind kind,
                                  const PackTrust& trust, bool takes_candidates);

}  // namespace kiln
