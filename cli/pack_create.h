#pragma once

#include <string>
#include <vector>

#include "cli/session.h"

namespace kiln::cli {

struct PackCreation {
  std::string file, sign;  // `sign`: the file of the key that signs; empty: nobody signs
  std::vector<std::string> targets;
};

/// What is in a pack that was written.
struct PackContents {
  size_t artifacts = 0, keys = 0;
  uint64_t bytes = 0;
  std::string signer;  // empty: nobody signed
};

/// Writes what the cache has of this build's entries into a pack. The daemon says what there is; the bytes are read as any
/// client reads them.
Expected<PackContents> create_pack(Session& session, const PackCreation& creation);

}  // namespace kiln::cli
