#pragma once

#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "base/expected.h"
#include "cache/sources/cache_directory.h"

namespace kiln {

/// What a program runs, as JSON: `inputs`, `outputs`, the bytes of its `scratch_bytes` and of the largest scratch of its plans
/// (`plan_scratch_bytes`), and `launches` in order, each with its kernel's name, the digests of its code and plan, and the
/// buffers that it `reads` and `writes`: the place, there the index of an input or output, or else offset and bytes.
/// Read from the mapped cache. Errors: not_found; data_loss for what this build does not write.
Expected<nlohmann::ordered_json> program_listing(CacheDirectory& cache, const Digest& program);

/// The same of a region's plan by itself, whose inputs and outputs are the region's; with `constant_bytes`.
Expected<nlohmann::ordered_json> plan_listing(CacheDirectory& cache, const Digest& plan);

}  // namespace kiln
