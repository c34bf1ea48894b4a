#pragma once

#include "frontend/fuse/facts.h"

namespace kiln {

/// Whether merge_products changes the graph: its dims are constant.
bool has_products_to_merge(const Graph& graph);

/// The graph with products that share an operand, and do not need one another, as one product: the operands that they do
/// not share lie side by side, and each result is a slice. Every dim is constant.
/// `values`, of `graph`, become those of the result.
Graph merge_products(const Graph& graph, std::vector<ValueId>& values);

}  // namespace kiln
