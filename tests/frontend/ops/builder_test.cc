#include "frontend/infer/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "frontend/infer/bind_symbols.h"
#include "frontend/ops/attributes.h"

namespace kiln {
namespace {

using testing::HasSubstr;

class BuilderTest : public testing::Test {
 protected:
  ValueId input(DType dtype, Shape shape) { return graph.add_input({dtype, std::move(shape), {}}); }
  Status error_of(std::string_view op, std::vector<ValueId> operands, Attributes attributes = {}) {
    return builder.add(op, operands, std::move(attributes)).status();
  }

  Graph graph;
  GraphBuilder builder{graph};
};

TEST_F(BuilderTest, an_unknown_op_names_the_nearest) {
  const Status status = error_of("matmull", {});
  EXPECT_EQ(status.code(), StatusCode::not_found);
  EXPECT_THAT(status.message(), HasSubstr("'matmull', the nearest is 'matmul'"));
}

TEST_F(BuilderTest, an_operand_of_the_wrong_dtype_is_named_with_expected_and_got) {
  const Status status = error_of("add", {input(DType::f32, {3}), input(DType::i64, {3})});
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message(), "add: operand 1 'b' is i64[3], expected f32");
}

TEST_F(BuilderTest, an_operand_of_the_wrong_shape_is_named_with_expected_and_got) {
  const Status status = error_of("matmul", {input(DType::f32, {2, 3}), input(DType::f32, {4, 5})});
  EXPECT_EQ(status.message(), "matmul: operand 1 'b' is f32[4, 5], expected a number of rows of 3, got 4");
}

TEST_F(BuilderTest, attributes_are_checked_by_name_type_and_presence) {
  const ValueId x = input(DType::f32, {2, 3});
  EXPECT_THAT(error_of("softmax", {x}).message(), HasSubstr("softmax: attribute 'dim' is missing"));
  EXPECT_THAT(error_of("softmax", {x}, {{"dim", 1.5}}).message(),
              HasSubstr("'dim' has the wrong type, expected integer"));
  EXPECT_THAT(error_of("softmax", {x}, {{"dim", int64_t{2}}}).message(),
              HasSubstr("'dim' is 2, expected a dim in [0, 2)"));
  EXPECT_THAT(error_of("softmax", {x}, {{"dim", int64_t{1}}, {"axis", int64_t{1}}}).message(),
              HasSubstr("unknown attribute 'axis'"));
  EXPECT_THAT(error_of("softmax", {x}, {{"dim", int64_t{1}}, {"dim", int64_t{1}}}).message(), HasSubstr("given twice"));
}

TEST_F(BuilderTest, operand_counts_are_checked) {
  EXPECT_THAT(error_of("add", {input(DType::f32, {})}).message(), HasSubstr("got 1 operands, expected 2"));
  EXPECT_THAT(error_of("add", {input(DType::f32, {}), k_none}).message(), HasSubstr("operand 1 'b' is absent"));
  EXPECT_THAT(error_of("add", {999, 999}).message(), HasSubstr("operand 0 is value 999"));
}

TEST_F(BuilderTest, fallbacks_are_written_into_the_node) {
  const ValueId y = builder.op("gelu", {input(DType::f32, {2})});
  const Node& node = graph.node(graph.value(y).producer);
  ASSERT_EQ(node.attributes.size(), 1U);
  EXPECT_EQ(node.attributes[0], (std::pair<std::string, Attribute>("approximate", std::string("none"))));
}

TEST_F(BuilderTest, sugar_keeps_the_first_error_and_adds_nothing_after_it) {
  const ValueId x = input(DType::f32, {2}), y = input(DType::f32, {3});
  const ValueId bad = builder.add(x, y);
  EXPECT_EQ(bad, k_none);
  EXPECT_EQ(builder.mul(builder.exp(bad), 2.0), k_none);
  EXPECT_TRUE(graph.nodes().empty());
  EXPECT_THAT(builder.finish({bad}).status().message(), HasSubstr("add: operand 1 'b' is f32[3]"));
}

TEST_F(BuilderTest, shapes_stay_symbolic_and_an_undecided_equality_becomes_one_guard) {
  const Dim batch = Dim::symbol(graph.add_symbol("s0")), other = Dim::symbol(graph.add_symbol("s1"));
  const ValueId x = input(DType::f32, {batch, 8}), y = input(DType::f32, {other, 8});
  const ValueId flat = builder.reshape(x, {batch * Dim(8)});
  EXPECT_TRUE(graph.guards().empty());
  EXPECT_EQ(builder.shape(builder.reshape(flat, {Dim(4), batch * Dim(2)})), (Shape{Dim(4), batch * Dim(2)}));
  EXPECT_TRUE(graph.guards().empty());
  builder.add(x, y);
  builder.mul(x, y);
  ASSERT_TRUE(builder.status().ok()) << builder.status().message();
  ASSERT_EQ(graph.guards().size(), 1U);
  EXPECT_EQ(graph.guards()[0].dim, batch - other);
}

TEST_F(BuilderTest, dims_that_can_never_be_equal_are_an_error_even_when_symbolic) {
  const Dim s = Dim::symbol(graph.add_symbol("s0"));
  const ValueId x = input(DType::f32, {s}), y = input(DType::f32, {s + Dim(1)});
  EXPECT_FALSE(error_of("add", {x, y}).ok());
}

TEST_F(BuilderTest, positions_of_windows_are_said_and_guarded_where_a_stride_may_leave_a_rest) {
  const Dim extent = Dim::symbol(graph.add_symbol("s0")), positions = Dim::symbol(graph.add_symbol("q0"));
  const ValueId x = input(DType::f32, {Dim(2), extent});
  const auto attributes = [](const std::vector<Dim>& said) {
    Attributes made = {{"kernel", std::vector<int64_t>{3}},
                       {"stride", std::vector<int64_t>{2}},
                       {"dilation", std::vector<int64_t>{1}}};
    if (!said.empty()) made.emplace_back("positions", Shape(said));
    return made;
  };
  EXPECT_THAT(error_of("window", {x}, attributes({})).message(), HasSubstr("a whole number of steps of 2"));
  EXPECT_THAT(error_of("window", {x}, attributes({positions, positions})).message(),
              HasSubstr("'positions' has 2 dims, expected 1"));
  const ValueId y = builder.op("window", {x}, attributes({positions}));
  ASSERT_TRUE(builder.status().ok());
  EXPECT_EQ(graph.type(y).to_string(), "f32[2, 3, s1]");
  graph.set_outputs({y});
  for (const int64_t right : {7, 8}) EXPECT_TRUE(bind_symbols(graph, std::vector<int64_t>{right, 3}).ok());
  for (const int64_t wrong : {6, 9}) EXPECT_FALSE(bind_symbols(graph, std::vector<int64_t>{wrong, 3}).ok());
}

TEST_F(BuilderTest, steps_of_a_slice_are_counted_where_symbols_say_only_whole_ones) {
  const Dim extent = Dim::symbol(graph.add_symbol("s0")), steps = Dim::symbol(graph.add_symbol("q0"));
  const ValueId x = input(DType::f32, {extent});
  const auto attributes = [](const Dim& end) {
    Attributes made = {{"dim", int64_t{0}}, {"step", int64_t{3}}};
    made.emplace_back("end", extent_attribute(end));
    return made;
  };
  EXPECT_THAT(error_of("slice", {x}, attributes(extent)).message(), HasSubstr("a whole number of steps of 3"));
  const ValueId y = builder.op("slice", {x}, attributes(steps * Dim(3) - Dim(2)));
  ASSERT_TRUE(builder.status().ok());
  EXPECT_EQ(graph.type(y).to_string(), "f32[s1]");
  graph.set_outputs({y});
  for (const int64_t right : {7, 9}) EXPECT_TRUE(bind_symbols(graph, std::vector<int64_t>{right, 3}).ok());
  EXPECT_FALSE(bind_symbols(graph, std::vector<int64_t>{6, 3}).ok());
}

TEST_F(BuilderTest, binding_symbols_replaces_them_everywhere_and_checks_guards) {
  const Dim s = Dim::symbol(graph.add_symbol("s0")), t = Dim::symbol(graph.add_symbol("s1"));
  const ValueId x = input(DType::f32, {s, 4}), y = input(DType::f32, {t, 4});
  const ValueId mean = builder.mean(builder.add(x, y), {0});
  const ValueId count = builder.extent(s * Dim(3), DType::f32);
  graph.set_outputs({builder.mul(mean, count)});
  ASSERT_TRUE(builder.status().ok()) << builder.status().message();

  const int64_t equal[] = {5, 5}, different[] = {5, 6};
  const Expected<Graph> bound = bind_symbols(graph, equal);
  ASSERT_TRUE(bound.ok()) << bound.status().message();
  EXPECT_TRUE(bound->symbols().empty());
  EXPECT_EQ(bound->type(bound->inputs()[0]).shape, (Shape{5, 4}));
  const Node& node = bound->node(bound->value(count).producer);
  EXPECT_EQ(node.op->name, "full");
  EXPECT_EQ(std::get<double>(*find_attribute(node.attributes, "value")), 15);

  const Status status = bind_symbols(graph, different).status();
  EXPECT_EQ(status.code(), StatusCode::failed_precondition);
  EXPECT_THAT(status.message(), HasSubstr("does not hold: it is -1"));
}

TEST_F(BuilderTest, symbols_that_are_the_same_are_merged_everywhere) {
  const Dim s = Dim::symbol(graph.add_symbol("s0")), t = Dim::symbol(graph.add_symbol("s1")),
            u = Dim::symbol(graph.add_symbol("s2"));
  const ValueId x = input(DType::f32, {s, u}), y = input(DType::f32, {t, u});
  const ValueId count = builder.extent(s * t + u, DType::f32);
  graph.set_outputs({builder.mul(builder.add(x, y), count)});
  ASSERT_TRUE(builder.status().ok()) << builder.status().message();

  const SymbolId into[] = {0, 0, 1};
  const Graph merged = merge_symbols(graph, into);
  const Dim first = Dim::symbol(0), second = Dim::symbol(1);
  EXPECT_EQ(merged.symbols(), (std::vector<std::string>{"s0", "s2"}));
  EXPECT_EQ(merged.type(merged.inputs()[1]).shape, (Shape{first, second}));
  const Node& node = merged.node(merged.value(count).producer);
  EXPECT_EQ(node.op->name, "extent");
  EXPECT_EQ(std::get<Shape>(*find_attribute(node.attributes, "value"))[0], first * first + second);
  ASSERT_FALSE(merged.guards().empty());
  EXPECT_EQ(merged.guards()[0].dim, Dim()) << "that both are equal";
  const int64_t extents[] = {5, 7};
  EXPECT_TRUE(bind_symbols(merged, extents).ok());
}

TEST_F(BuilderTest, results_larger_than_the_limit_are_refused) {
  const ValueId x = input(DType::f32, {1});
  EXPECT_THAT(error_of("expand", {x}, {{"shape", Shape{int64_t{1} << 31, int64_t{1} << 31}}}).message(),
              HasSubstr("is larger than"));
  EXPECT_FALSE(error_of("expand", {x}, {{"shape", Shape{-1}}}).ok());
}

}  // namespace
}  // namespace kiln
