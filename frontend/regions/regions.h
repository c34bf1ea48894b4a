#pragma once

#include <cstdint>
#include <vector>

#include "frontend/canonical/canonical.h"
#include "frontend/ir/graph.h"

namespace kiln {

/// One part of a graph that is hashed, planned and called as one.
struct Region {
  uint32_t class_index = 0;
  /// The region's nodes in topological order. Entry i corresponds to entry i of the other regions of the class.
  std::vector<NodeId> nodes;
  /// Values of the graph, in the order of the region's parameters. A value may appear twice where another
  /// region of the class reads two different ones.
  std::vector<ValueId> inputs;
  /// Values that other regions or the graph's caller read, in the order of the region's results.
  std::vector<ValueId> outputs;
  /// Which of `inputs` each operand of each node reads, in order; k_none when its producer is in the region or it is
  /// absent.
  std::vector<uint32_t> operand_inputs;
  /// symbols[i] is the graph's symbol that the region's symbol i stands for.
  std::vector<SymbolId> symbols;
};

/// What extract() gives for each of some regions: they have the same meaning.
struct RegionClass : Canonical {
  std::vector<uint32_t> regions;  // indices, ascending
};

/// Every node is in exactly one region. Regions are in executable order: each reads only graph inputs and
/// outputs of regions before it.
struct RegionPartition {
  std::vector<Region> regions;
  std::vector<RegionClass> classes;
};

/// Finds repeated isomorphic parts by structure alone; names and the order of nodes do not matter. What is in
/// no repeated part is gathered into as few further regions as the order of execution allows.
///
/// `graph` must have settled layouts (settle_layouts): the values between regions lie as their types say. It should be
/// sink_views of the canonical graph before that: then a region holds the views of its inputs.
/// Cost: about 20 µs a node.
RegionPartition find_regions(const Graph& graph);

/// The region as a graph of its own: its inputs and outputs lie as their types in `graph` say. Guards over
/// the region's symbols come along.
Canonical extract(const Graph& graph, const Region& region);

}  // namespace kiln
