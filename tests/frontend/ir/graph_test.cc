#include "frontend/ir/graph.h"

#include <gtest/gtest.h>

#include "frontend/ops/op.h"

namespace kiln {
namespace {

// A graph only carries the pointer to an op's row.
const OpDef k_op{.name = "op", .kind = OpKind::composite};

TEST(Graph, TypesReadAsInTheTextForm) {
  const Dim s0 = Dim::symbol(0);
  EXPECT_EQ((TensorType{DType::f32, {512, 768}, {}}).to_string(), "f32[512, 768]");
  EXPECT_EQ((TensorType{DType::f32, {s0, 768}, {1, s0}}).to_string(), "f32[s0, 768]{1, s0}");
  EXPECT_EQ((TensorType{DType::boolean, {}, {}}).to_string(), "bool[]");
}

TEST(Graph, AValueKnowsWhereItComesFrom) {
  Graph graph;
  const TensorType type{DType::f32, {4}, {}};
  const ValueId a = graph.add_input(type, "a");
  const ValueId b = graph.add_input(type);
  const NodeId node = graph.add_node(&k_op, {b, k_none, a}, {}, {type, type});
  const ValueId second = graph.node(node).results[1];
  EXPECT_EQ(graph.value(b).producer, k_none);
  EXPECT_EQ(graph.value(b).result_index, 1u);
  EXPECT_EQ(graph.value(second).producer, node);
  EXPECT_EQ(graph.value(second).result_index, 1u);
}

TEST(Graph, AttributesAreSortedByNameAndFound) {
  Graph graph;
  const NodeId node = graph.add_node(&k_op, {}, {{"b", int64_t{2}}, {"a", true}}, {});
  const Attributes& attributes = graph.node(node).attributes;
  EXPECT_EQ(attributes[0].first, "a");
  ASSERT_NE(find_attribute(attributes, "b"), nullptr);
  EXPECT_EQ(std::get<int64_t>(*find_attribute(attributes, "b")), 2);
  EXPECT_EQ(find_attribute(attributes, "c"), nullptr);
}

TEST(Graph, AUserThatReadsAValueTwiceIsListedOnce) {
  Graph graph;
  const TensorType type{DType::f32, {}, {}};
  const ValueId a = graph.add_input(type);
  const NodeId first = graph.add_node(&k_op, {a, a}, {}, {type});
  const NodeId second = graph.add_node(&k_op, {a, k_none}, {}, {type});
  EXPECT_EQ(graph.users()[a], (std::vector<NodeId>{first, second}));
  EXPECT_TRUE(graph.users()[graph.node(second).results[0]].empty());
}

TEST(Graph, OutputsAreDenseUnlessStridesAreSet) {
  Graph graph;
  const ValueId a = graph.add_input({DType::f32, {2, 3}, {}});
  graph.set_outputs({a, a});
  graph.set_output_strides(1, {1, 2});
  EXPECT_TRUE(graph.output_strides()[0].empty());
  EXPECT_EQ(graph.output_strides()[1], (std::vector<Dim>{1, 2}));
}

}  // namespace
}  // namespace kiln
