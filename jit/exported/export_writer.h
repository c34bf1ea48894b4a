#pragma once

#include <string>
#include <vector>

#include "cache/format/artifact_bytes.h"
#include "jit/exported/export_manifest.h"

namespace kiln {

/// Writes an export in place of what was there: a pack with the manifest and `artifacts`, the programs that its forms name
/// with their plans and kernels (an artifact that several share may come several times). Its weights lie beside it already.
/// Errors: the pack's; resource_exhausted.
Status write_export(const std::string& path, const ExportManifest& manifest, std::vector<Artifact> artifacts);

/// Under which key a pack has the manifest, and what it is the digest of.
std::string_view export_key();

}  // namespace kiln
