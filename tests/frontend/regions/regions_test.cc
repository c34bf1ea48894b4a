#include "frontend/regions/regions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "frontend/canonical/canonical.h"
#include "frontend/ops/op.h"
#include "tests/frontend/regions/models.h"

namespace kiln {
namespace {

using Bytes = std::vector<uint8_t>;

Graph prepared(const Graph& graph) { return settle_layouts(sink_views(canonicalise(graph).graph)); }

std::set<Bytes> distinct(const RegionPartition& partition) {
  std::set<Bytes> bytes;
  for (const RegionClass& of : partition.classes) bytes.insert(of.bytes);
  return bytes;
}
std::set<Bytes> distinct_regions(const Graph& graph) { return distinct(find_regions(prepared(graph))); }

std::set<Bytes> minus(const std::set<Bytes>& a, const std::set<Bytes>& b) {
  std::set<Bytes> rest;
  std::ranges::set_difference(a, b, std::inserter(rest, rest.end()));
  return rest;
}

/// What RegionPartition promises, checked from the graph alone.
void expect_valid(const Graph& graph, const RegionPartition& partition) {
  std::vector<uint32_t> region_of(graph.nodes().size(), k_none);
  std::set<ValueId> known(graph.inputs().begin(), graph.inputs().end());
  for (uint32_t index = 0; index < partition.regions.size(); ++index) {
    const Region& region = partition.regions[index];
    for (NodeId id : region.nodes) {
      EXPECT_EQ(region_of[id], k_none) << "node " << id << " is in two regions";
      region_of[id] = index;
    }
    for (ValueId input : region.inputs) EXPECT_TRUE(known.contains(input)) << "region " << index << " reads ahead";
    known.insert(region.outputs.begin(), region.outputs.end());
    const RegionClass& of = partition.classes.at(region.class_index);
    EXPECT_EQ(extract(graph, region).bytes, of.bytes) << "region " << index;
    EXPECT_EQ(of.graph.inputs().size(), region.inputs.size());
    EXPECT_EQ(of.graph.outputs().size(), region.outputs.size());
    EXPECT_NE(std::ranges::find(of.regions, index), of.regions.end());
  }
  EXPECT_EQ(std::ranges::find(region_of, k_none), region_of.end()) << "a node is in no region";

  // What a region reads from outside is among its inputs, what others read of it among its outputs.
  for (NodeId id = 0; id < graph.nodes().size(); ++id) {
    for (ValueId operand : graph.node(id).operands) {
      if (operand == k_none) continue;
      const NodeId producer = graph.value(operand).producer;
      if (producer != k_none && region_of[producer] == region_of[id]) continue;
      const std::vector<ValueId>& inputs = partition.regions[region_of[id]].inputs;
      EXPECT_NE(std::ranges::find(inputs, operand), inputs.end());
    }
  }
  for (ValueId output : graph.outputs()) EXPECT_TRUE(known.contains(output)) << "output " << output;
}

size_t largest_class(const RegionPartition& partition) {
  size_t largest = 0;
  for (const RegionClass& of : partition.classes) largest = std::max(largest, of.regions.size());
  return largest;
}

TEST(Regions, ALayerOfATransformerIsOneRegionCalledOncePerLayer) {
  for (size_t layers : {2, 3, 12, 48}) {
    const Graph graph = prepared(transformer({.layers = layers}));
    const RegionPartition partition = find_regions(graph);
    expect_valid(graph, partition);
    EXPECT_EQ(largest_class(partition), layers);
    EXPECT_LE(partition.classes.size(), 3u) << layers << " layers";
    EXPECT_LE(partition.regions.size(), layers + 2);
  }
}

TEST(Regions, DepthDoesNotChangeWhatIsDistinct) {
  for (bool mask : {false, true}) {
    const auto twelve = distinct_regions(transformer({.layers = 12, .attention_mask = mask}));
    EXPECT_EQ(twelve, distinct_regions(transformer({.layers = 48, .attention_mask = mask})));
    EXPECT_EQ(twelve, distinct_regions(transformer({.layers = 13, .attention_mask = mask})));
    const auto two = distinct_regions(transformer({.layers = 2, .attention_mask = mask}));
    EXPECT_LE(twelve.size(), two.size() + 2);
  }
}

TEST(Regions, TheOrderOfNodesDoesNotMatter) {
  std::mt19937 random(3);
  const Graph graph = transformer({.layers = 6, .attention_mask = true});
  const auto expected = distinct_regions(graph);
  for (int trial = 0; trial < 5; ++trial) {
    const Graph other = prepared(shuffled(graph, random));
    const RegionPartition partition = find_regions(other);
    expect_valid(other, partition);
    EXPECT_EQ(distinct(partition), expected);
  }
}

TEST(Regions, AnUncanonicalGraphIsPartitionedAllTheSame) {
  std::mt19937 random(4);
  const Graph graph = shuffled(transformer({.layers = 6, .attention_mask = true}), random);
  const RegionPartition partition = find_regions(graph);
  expect_valid(graph, partition);
  EXPECT_EQ(largest_class(partition), 6u);
}

TEST(Regions, AnotherEpsilonInOneLayerIsExactlyOneMoreRegion) {
  const auto before = distinct_regions(transformer({.layers = 12}));
  for (int layer : {0, 5, 11}) {
    const auto after = distinct_regions(transformer({.layers = 12, .changed_eps_layer = layer}));
    EXPECT_EQ(minus(after, before).size(), 1u) << "layer " << layer;
    EXPECT_EQ(minus(before, after).size(), 0u) << "layer " << layer;
  }
}

TEST(Regions, MasksThatLayersReadByTurnsAreInputs) {
  const Graph graph = prepared(transformer({.layers = 8, .attention_mask = true}));
  const RegionPartition partition = find_regions(graph);
  EXPECT_EQ(largest_class(partition), 8u);
  std::set<size_t> sizes;
  for (const Region& region : partition.regions) {
    if (partition.classes[region.class_index].regions.size() == 8) sizes.insert(region.inputs.size());
  }
  EXPECT_EQ(sizes.size(), 1u);
}

TEST(Regions, ViewsOfWeightsLieInTheRegionThatReadsThem) {
  const Graph graph = prepared(transformer({.layers = 6}));
  for (const Region& region : find_regions(graph).regions) {
    for (ValueId input : region.inputs) {
      if (graph.value(input).producer == k_none) continue;
      const Node& producer = graph.node(graph.value(input).producer);
      const bool view_of_weight =
          producer.op->kind == OpKind::view && graph.value(producer.operands[0]).producer == k_none;
      EXPECT_FALSE(view_of_weight) << "input " << input;
    }
  }
}

TEST(Regions, EncoderAndDecoderAreAClassEach) {
  const Graph graph = prepared(encoder_decoder(6));
  const RegionPartition partition = find_regions(graph);
  expect_valid(graph, partition);
  size_t repeated = 0;
  for (const RegionClass& of : partition.classes) repeated += of.regions.size() >= 6 ? 1 : 0;
  EXPECT_GE(repeated, 2u);
  EXPECT_LE(partition.classes.size(), 6u);
  EXPECT_EQ(distinct(partition), distinct_regions(encoder_decoder(12)));
}

TEST(Regions, ForwardAndBackwardOfALayerAreAClassEachWhateverTheDepth) {
  const Graph graph = prepared(transformer_training({.layers = 12}));
  const RegionPartition partition = find_regions(graph);
  expect_valid(graph, partition);
  size_t repeated = 0, covered = 0;
  for (const RegionClass& of : partition.classes) {
    if (of.regions.size() < 11) continue;
    ++repeated;
    covered += of.regions.size() * of.graph.nodes().size();
  }
  EXPECT_GE(repeated, 2u);
  EXPECT_GE(covered * 10, graph.nodes().size() * 7);
  const auto twelve = distinct(partition);
  EXPECT_EQ(twelve, distinct_regions(transformer_training({.layers = 48})));
  EXPECT_LE(twelve.size(), distinct_regions(transformer_training({.layers = 2})).size() + 2);
}

TEST(Regions, AnMlpIsItsLayers) {
  const Graph graph = prepared(mlp(12));
  const RegionPartition partition = find_regions(graph);
  expect_valid(graph, partition);
  EXPECT_EQ(largest_class(partition), 12u);
  EXPECT_EQ(distinct(partition), distinct_regions(mlp(48)));
}

TEST(Regions, SymbolsOfARegionAreItsOwn) {
  const Graph graph = prepared(transformer({.layers = 6, .symbolic_batch = true}));
  const RegionPartition partition = find_regions(graph);
  expect_valid(graph, partition);
  EXPECT_EQ(largest_class(partition), 6u);
  for (const Region& region : partition.regions) EXPECT_EQ(region.symbols, std::vector<SymbolId>{0});
}

TEST(Regions, NothingThatRepeatsIsOneRegion) {
  const Graph graph = prepared(mlp(1));
  const RegionPartition partition = find_regions(graph);
  expect_valid(graph, partition);
  EXPECT_EQ(partition.regions.size(), 1u);
  EXPECT_TRUE(find_regions(Graph()).regions.empty());
}

TEST(Regions, RandomGraphsArePartitionedInExecutableOrder) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 60; ++trial) {
    const Graph graph = prepared(random_graph(random, 10 + 20 * static_cast<size_t>(trial)));
    expect_valid(graph, find_regions(graph));
    const Graph unsunk = settle_layouts(random_graph(random, 200));
    expect_valid(unsunk, find_regions(unsunk));
  }
}

TEST(Regions, FiveThousandNodesTakeNoTimeToSpeakOf) {
  const Graph graph = prepared(transformer({.layers = 120, .attention_mask = true}));
  const auto start = std::chrono::steady_clock::now();
  const RegionPartition partition = find_regions(graph);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  RecordProperty("nodes", static_cast<int>(graph.nodes().size()));
  RecordProperty("milliseconds", static_cast<int>(took.count()));
  std::printf("%zu nodes, %zu regions, %zu classes: %.1f ms\n", graph.nodes().size(), partition.regions.size(),
              partition.classes.size(), took.count());
  EXPECT_LT(took.count(), 4'000) << "200 ms are expected of an optimised build on an idle machine";
}

}  // namespace
}  // namespace kiln
