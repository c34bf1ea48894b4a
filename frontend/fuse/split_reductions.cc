/// A reduction of a large tensor to a few elements would be a few parallel points: one thread's work. Reducing all but
/// the outermost reduced dim first gives one partial result per outer index, and a second kernel that is small.
#include "frontend/fuse/split_reductions.h"

#include <algorithm>
#include <optional>

#include "frontend/ops/attributes.h"

namespace kiln {

namespace {

// Below this a second kernel costs more than threads gain (a launch is some microseconds).
constexpr int64_t k_large_row = 1 << 16;
constexpr int64_t k_few_results = 8;

// The dim to leave for the second kernel.
std::optional<int64_t> outer_dim(const GraphFacts& facts, const Node& node) {
  if (node.op->kind != OpKind::reduction || size_of(facts.dtype(node.results[0])) == 2) return std::nullopt;
  std::vector<int64_t> dims = integers_of(node.attributes, "dims");
  const int64_t results = facts.elements[node.results[0]];
  if (dims.size() < 2 || results >= k_few_results || results == 0) return std::nullopt;
  if (facts.elements[node.operands[0]] / results < k_large_row) return std::nullopt;
  std::sort(dims.begin(), dims.end());
  for (const int64_t dim : dims) {
    if (facts.extents[node.operands[0]][static_cast<size_t>(dim)] >= k_few_results) return dim;
  }
  return std::nullopt;
}

Attributes with_dims(Attributes attributes, std::vector<int64_t> dims, bool keep_dims) {
  for (auto& [name, value] : attributes) {
    if (name == "dims") value = dims;
    if (name == "keep_dims") value = keep_dims;
  }
  return attributes;
}

}  // namespace

Graph split_reductions(const Graph& graph, const GraphFacts& facts, std::vector<ValueId>& values) {
  Graph result;
  std::vector<ValueId> mapped(graph.values().size(), k_none);
  for (const std::string& symbol : graph.symbols()) result.add_symbol(symbol);
  for (const ValueId input : graph.inputs()) {
    mapped[input] = result.add_input(graph.type(input), graph.value(input).name);
  }
  for (const Node& node : graph.nodes()) {
    std::vector<ValueId> operands;
    for (const ValueId operand : node.operands) operands.push_back(operand == k_none ? k_none : mapped[operand]);
    std::vector<TensorType> types;
    for (const ValueId value : node.results) types.push_back(graph.type(value));
    Attributes attributes = node.attributes;
    if (const std::optional<int64_t> outer = outer_dim(facts, node)) {
      std::vector<int64_t> inner = integers_of(node.attributes, "dims");
      std::erase(inner, *outer);
      TensorType partial{types[0].dtype, graph.type(node.operands[0]).shape, {}};
      for (const int64_t dim : inner) partial.shape[static_cast<size_t>(dim)] = 1;
      const NodeId first = result.add_node(node.op, operands, with_dims(attributes, inner, true), {partial});
      operands = result.node(first).results;
      // The inner dims have extent 1 now; reducing them again costs nothing and keeps or drops them as asked.
    }
    const NodeId added = result.add_node(node.op, std::move(operands), std::move(attributes), std::move(types));
    for (size_t i = 0; i < node.results.size(); ++i) mapped[node.results[i]] = result.node(added).results[i];
  }
  for (ValueId& value : values) value = value == k_none ? k_none : mapped[value];
  std::vector<ValueId> outputs;
  for (const ValueId output : graph.outputs()) outputs.push_back(mapped[output]);
  result.set_outputs(std::move(outputs));
  for (size_t i = 0; i < graph.output_strides().size(); ++i) result.set_output_strides(i, graph.output_strides()[i]);
  return result;
}

}  // namespace kiln
