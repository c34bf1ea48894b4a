#pragma once

namespace kiln {

/// The `schema_version` of all JSON objects that Kiln prints: it grows when a field changes its meaning or goes.
inline constexpr int k_schema_version = 1;

}  // namespace kiln
