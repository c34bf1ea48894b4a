// Random graphs of views, pointwise ops, reductions and products: whatever is fused, the result is the same.

#include <gtest/gtest.h>

#include <random>

#include "frontend/fuse/facts.h"
#include "frontend/infer/builder.h"
#include "frontend/kernel/affine.h"
#include "tests/frontend/fuse/plan_runner.h"

namespace kiln {
namespace {

class RandomGraph {
 public:
  explicit RandomGraph(uint64_t seed) : m_random(seed) {
    for (int i = 0; i < 3; ++i) {
      m_values.push_back(graph.add_input({DType::f64, {pick({2, 3, 4}), pick({4, 6}), pick({5, 6, 12})}, {}}));
    }
    const int64_t nodes = between(3, 18);
    while (static_cast<int64_t>(m_values.size()) < nodes + 3) add();
    std::vector<ValueId> outputs{m_values.back()};
    for (const ValueId value : m_values) {
      if (between(0, 4) == 0) outputs.push_back(value);
    }
    EXPECT_TRUE(m_builder.status().ok()) << m_builder.status().to_string();
    graph.set_outputs(outputs);
  }

  Graph graph;

 private:
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution(low, high)(m_random); }
  int64_t pick(std::initializer_list<int64_t> values) {
    return values.begin()[between(0, static_cast<int64_t>(values.size()) - 1)];
  }
  ValueId any() {
    // Mostly what was made last, so that chains grow.
    const auto last = static_cast<int64_t>(m_values.size()) - 1;
    return m_values[static_cast<size_t>(between(0, 2) == 0 ? between(0, last)
                                                           : std::max<int64_t>(0, last - between(0, 2)))];
  }
  std::vector<int64_t> extents(ValueId value) const { return constants_of(graph.type(value).shape); }
  int64_t dim_of(ValueId value) { return between(0, static_cast<int64_t>(extents(value).size()) - 1); }

  void add() {
    const ValueId x = any();
    const std::vector<int64_t> shape = extents(x);
    if (shape.empty()) {
      m_values.push_back(m_builder.expand(x, {4, 6}));
      return;
    }
    switch (between(0, 13)) {
      case 0:
        return push(m_builder.op("tanh", {x}));
      case 1:
        return push(m_builder.mul(x, 0.5));
      case 2:
        return push(m_builder.add(x, x));
      case 3:
        return add_binary(x);
      case 4:
        return add_reshape(x, shape);
      case 5:
        return add_permute(x, shape);
      case 6:
        return add_slice(x, shape);
      case 7:
        return push(m_builder.op("flip", {x}, {{"dims", std::vector<int64_t>{dim_of(x)}}}));
      case 8:
        return push(m_builder.sum(x, {dim_of(x)}, between(0, 1) == 1));
      case 9:
        return push(m_builder.op("softmax", {x}, {{"dim", dim_of(x)}}));
      case 10:
        return add_product(x, shape);
      case 11:
        return push(m_builder.op("concat", {x, m_builder.neg(x)}, {{"dim", dim_of(x)}}));
      case 12:
        return push(m_builder.op("pad", {x},
                                 {{"low", std::vector<int64_t>(shape.size(), 1)},
                                  {"high", std::vector<int64_t>(shape.size(), 0)},
                                  {"value", 0.25}}));
      default:
        return push(m_builder.op("cumsum", {x}, {{"dim", dim_of(x)}}));
    }
  }

  void push(ValueId value) {
    if (product(extents(value)) <= 4000 && product(extents(value)) > 0) m_values.push_back(value);
  }
  void add_binary(ValueId x) {
    for (const ValueId y : m_values) {
      if (y != x && graph.type(y).shape == graph.type(x).shape) return push(m_builder.sub(x, y));
    }
    push(m_builder.mul(x, m_builder.amax(x, {dim_of(x)}, true)));
  }
  void add_reshape(ValueId x, const std::vector<int64_t>& shape) {
    int64_t remaining = product(shape);
    Shape to;
    for (int i = 0; i < 3; ++i) {
      const int64_t factor = pick({2, 3, 4, 5, 6, 12});
      if (remaining % factor != 0) continue;
      to.push_back(factor);
      remaining /= factor;
    }
    to.push_back(remaining);
    push(m_builder.reshape(x, to));
  }
  void add_permute(ValueId x, const std::vector<int64_t>& shape) {
    std::vector<int64_t> dims;
    for (size_t d = 0; d < shape.size(); ++d) dims.push_back(static_cast<int64_t>(d));
    std::shuffle(dims.begin(), dims.end(), m_random);
    push(m_builder.permute(x, dims));
  }
  void add_slice(ValueId x, const std::vector<int64_t>& shape) {
    const int64_t dim = dim_of(x), extent = shape[static_cast<size_t>(dim)];
    const int64_t start = between(0, extent - 1);
    push(m_builder.slice(x, static_cast<size_t>(dim), start, between(start + 1, extent), between(1, 2)));
  }
  void add_product(ValueId x, const std::vector<int64_t>& shape) {
    if (shape.size() < 2) return;
    push(m_builder.mul(m_builder.matmul(x, m_builder.transpose(x)), 0.125));
  }

  std::mt19937_64 m_random;
  GraphBuilder m_builder{graph};
  std::vector<ValueId> m_values;
};

TEST(RandomFusion, AgreesWithTheReference) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    const RandomGraph random(seed);
    expect_fused(random.graph, random_inputs(random.graph, seed), 1e-8);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace kiln
