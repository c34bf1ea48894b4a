#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/expected.h"
#include "cli/warm_torch.h"

namespace kiln::cli {

/// What a cache is to be filled with: `kiln warm`'s arguments, or a file of them (docs/packs.md).
struct Manifest {
  struct GraphOfSize {
    std::string file;
    std::map<std::string, int64_t> symbols = {};
    bool tune = false;
  };
  std::vector<std::string> targets;
  std::vector<GraphOfSize> graphs;
  std::vector<WarmTorch> models;
};

/// Is it a manifest's name? Any other is a graph's.
bool is_manifest(const std::string& path);

/// Reads one; files in it are relative to its folder. Each size of a graph, and each mode and shape of a model, becomes a row.
/// Errors: not_found, resource_exhausted for one beyond the limits; invalid_argument, naming file and line.
Expected<Manifest> read_manifest(const std::string& path);

}  // namespace kiln::cli
