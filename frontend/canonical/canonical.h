#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/digest.h"
#include "frontend/ir/graph.h"

namespace kiln {

/// A graph in its canonical form, with its name. It is made once for each graph and handed on, so that nobody who needs
/// the digest computes the bytes again.
struct Canonical {
  Graph graph;
  std::vector<uint8_t> bytes;  // canonical_bytes(graph)
  Digest digest;               // of `bytes`: what keys hold
};

/// The same function in its one canonical form: dead nodes dropped, equal nodes merged, names stripped, dense
/// strides left out, guards sorted, nodes in an order that follows from the structure alone. Two graphs that
/// differ only in names, in node order or in the numbering of ids become equal. Inputs (unused ones too),
/// outputs and symbols keep their order: they are the calling convention. Linear in the graph's size.
Canonical canonicalise(const Graph& graph);

/// The bytes that name a graph in keys (docs/keys.md). Equal graphs after canonicalise have equal bytes, and only they.
std::vector<uint8_t> canonical_bytes(const Graph& graph);

/// Gives each consumer its own copy of the views (and of the constants) that it reads through, so that a
/// region can hold the views of its inputs. Inverse of merging: canonicalise merges them again. Runs of views
/// longer than k_longest_view_run (sink_views.cc) and graphs that would more than double are left shared from there on.
Graph sink_views(const Graph& graph);

/// The graph in which every value lies in one layout, and its type's strides say which: those of the caller for inputs
/// and outputs, dense (no strides) for all else. From here on nothing else says where a value lies. Each output is an
/// input just as it is, or a value that no other output is: what is returned in a second layout or a second time, and
/// an input that is returned in another layout, is copied by a node (permute by the identity).
///
/// `graph` should be canonical, or sink_views of that. Not canonical itself: canonicalise would merge the copies.
Graph settle_layouts(const Graph& graph);
/// Whether outputs are as settle_layouts makes them.
bool has_settled_layouts(const Graph& graph);

/// Parts of the canonical bytes, for whoever compares nodes.
void append_type(ByteWriter& bytes, const TensorType& type);
void append_attributes(ByteWriter& bytes, const Attributes& attributes);

}  // namespace kiln
