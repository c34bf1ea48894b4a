#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "frontend/infer/builder.h"
#include "frontend/ir/graph.h"
#include "tests/frontend/ops/samples.h"

namespace kiln::fuzz {

/// A random graph for a seed: 5 to 60 nodes over every row of the op table and every dtype; views of views, blocks that
/// repeat once to twelve times, inputs and outputs in any strides, outputs twice and outputs that are inputs, values
/// between that are returned. Which op, which operands and which attributes is drawn from the table itself; what its
/// rule refuses is drawn again, or made after one of the row's samples.
class GraphMaker {
 public:
  explicit GraphMaker(uint64_t seed);
  Graph make();
  /// A graph with one use of `op`, for whoever asks whether a row can be reached.
  Graph make_with(const OpDef& op);

 private:
  int64_t between(int64_t low, int64_t high);
  bool chance(double probability);
  template <typename T>
  const T& any_of(const std::vector<T>& list) {
    return list[static_cast<size_t>(between(0, static_cast<int64_t>(list.size()) - 1))];
  }

  DType some_dtype();
  std::vector<int64_t> some_extents(int64_t elements_max);
  std::vector<Dim> some_strides(const Shape& shape, bool may_overlap);
  ValueId add_input(DType dtype, const std::vector<int64_t>& extents);

  void add_quantized_product();
  void add_some();
  const OpDef& some_op();
  bool add_freely(const OpDef& op);
  bool add_like_sample(const OpDef& op);
  bool add(const OpDef& op, const std::vector<ValueId>& operands, Attributes attributes);
  Attributes some_attributes(const OpDef& op, const std::vector<ValueId>& operands);
  std::optional<Attribute> some_attribute(AttributeType type, const std::vector<ValueId>& operands);
  Shape some_shape(ValueId like);

  ValueId some_value();
  ValueId some_operand(const OpDef& op, const std::vector<ValueId>& before);
  ValueId squashed(ValueId value);
  /// A value of this type made from one there is; integers lie in [0, bound).
  ValueId adapted(DType dtype, const std::vector<int64_t>& extents, int64_t bound);
  ValueId bounded(ValueId integers, int64_t bound);

  void add_blocks();
  ValueId repeat_block(NodeId first, NodeId last, ValueId from, ValueId result, ValueId next);
  void choose_outputs();

  std::mt19937_64 m_random;
  Graph m_graph;
  GraphBuilder m_builder;
  DType m_main;
  std::vector<int64_t> m_extents;  // that shapes are made of
  std::vector<ValueId> m_pool;
  const std::vector<Sample>& m_samples;
};

/// Memory for each input, in its strides, from the first element to the last: normal floats, 0 to 3 for integers.
std::vector<std::vector<std::byte>> input_memory(const Graph& graph);

}  // namespace kiln::fuzz
