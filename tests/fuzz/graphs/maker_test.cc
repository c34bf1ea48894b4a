// What the fuzzer's graphs are made of: every row of the op table and every dtype, without a list of either.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/fuzz/graphs/graph_maker.h"

namespace kiln::fuzz {
namespace {

TEST(GraphMaker, EveryOpOfTheTableIsReached) {
  for (const OpDef* op : all_ops()) {
    bool found = false;
    for (uint64_t seed = 0; seed < 300 && !found; ++seed) {
      const Graph graph = GraphMaker(seed).make_with(*op);
      found = std::ranges::any_of(graph.nodes(), [&](const Node& node) { return node.op == op; });
    }
    EXPECT_TRUE(found) << op->name;
  }
}

TEST(GraphMaker, EveryDtypeIsReached) {
  std::set<DType> found;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Graph graph = GraphMaker(seed).make();
    for (const Value& value : graph.values()) found.insert(value.type.dtype);
  }
  EXPECT_EQ(found.size(), size_t{k_dtype_count});
}

TEST(GraphMaker, EqualSeedsGiveEqualGraphs) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Graph a = GraphMaker(seed).make(), b = GraphMaker(seed).make();
    EXPECT_EQ(a.nodes().size(), b.nodes().size());
    EXPECT_EQ(a.output_strides(), b.output_strides());
  }
}

}  // namespace
}  // namespace kiln::fuzz
