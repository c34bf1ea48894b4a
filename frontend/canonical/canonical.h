#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "frontend/ir/graph.h"

namespace kiln {

/// The same function in its one canonical form: dead nodes dropped, equal nodes merged, names stripped, dense
/// strides left out, guards sorted, nodes in an order that follows from the structure alone. Two graphs that
/// differ only in names, in node order or in the numbering of ids become equal. Inputs (unused ones too),
/// outputs and symbols keep their order: they are the calling convention. Linear in the graph's size.
Graph canonicalise(const Graph& graph);

/// What keys are hashed over (docs/keys.md). Equal graphs after canonicalise have equal bytes, and only they.
std::vector<uint8_t> canonical_bytes(const Graph& graph);

/// Gives each consumer its own copy of the views (and of the constants) that it reads through, so that a
/// region can hold the views of its inputs. Inverse of merging: canonicalise merges them again. Runs of views
/// longer than k_longest_view_run and graphs that would more than double are left shared from there on.
Graph sink_views(const Graph& graph);

/// Parts of the canonical bytes, for whoever compares nodes.
void append_type(ByteWriter& bytes, const TensorType& type);
void append_attributes(ByteWriter& bytes, const Attributes& attributes);

}  // namespace kiln
