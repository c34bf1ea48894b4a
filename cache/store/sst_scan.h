#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/expected.h"
#include "cache/format/sidecar.h"
#include "cache/store/rocks.h"

namespace kiln {

/// Finds where the artifacts of a store file lie, through RocksDB's public API alone. Every byte is checked:
/// block checksums by RocksDB, then the artifact's own, then that the file holds the same bytes at that
/// place. In a damaged file those of `wanted` that still read well are found; none in one that RocksDB cannot make
/// sense of. Errors: unavailable when the file cannot be opened.
Expected<std::vector<SidecarEntry>> scan_sst(const StoreOptions& options, const std::string& path,
                                             std::span<const Digest> wanted);

}  // namespace kiln
