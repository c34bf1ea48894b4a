#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/expected.h"
#include "frontend/ir/graph.h"

namespace kiln {

/// Raised when a reader of the old version would misread the new bytes.
inline constexpr uint32_t k_wire_graph_version = 1;

/// The graph as a FlatBuffer (graph.fbs, docs/wire_format.md), names included.
std::vector<uint8_t> to_wire(const Graph& graph);

/// Reads bytes that nobody has checked. They pass FlatBuffers' verifier, then every bound of base/limits.h,
/// then the op table: each op must be known, each attribute and operand must fit, and the types the sender
/// claims must be those that are inferred here. Errors: data_loss for bytes that are no such buffer;
/// unimplemented for another version; not_found for an unknown op;
/// else invalid_argument or resource_exhausted, naming node and op.
/// Alignment: `bytes` need not be aligned; what is not aligned to 8 bytes is copied first.
Expected<Graph> from_wire(std::span<const uint8_t> bytes);

}  // namespace kiln
