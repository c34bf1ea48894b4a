#include "cli/check_graph.h"

namespace kiln::cli {

void fill_random(Buffer& buffer, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < buffer.elements(); ++i) {
    store_element(buffer.dtype(), buffer.data(), i,
                  is_floating(buffer.dtype()) ? normal(random) : static_cast<double>(random() % 2));
  }
}

namespace {

/// Elements that are compared: both ends, where tails lie, and random ones. An element costs what it depends on.
std::vector<int64_t> demanded(int64_t count, std::mt19937_64& random) {
  constexpr int64_t k_ends = 64, k_samples = 512;
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count && (count <= k_ends * 2 + k_samples || i < k_ends); ++i) indices.push_back(i);
  if (count <= k_ends * 2 + k_samples) return indices;
  for (int64_t i = count - k_ends; i < count; ++i) indices.push_back(i);
  for (int64_t i = 0; i < k_samples; ++i)
    indices.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(count)));
  return indices;
}

}  // namespace

Comparison compare(ElementEvaluator& reference, ValueId value, const Buffer& got, std::mt19937_64& random) {
  std::vector<ExpectedAndGot> pairs;
  for (const int64_t index : demanded(got.count(), random))
    pairs.push_back({reference.at(value, index), got.at(index)});
  return compare(pairs, tolerance_of(got.dtype()));
}

Expected<std::vector<Comparison>> compare_outputs(const Graph& graph, const Program& program,
                                                  const std::vector<Buffer>& inputs, const std::vector<Buffer>& outputs,
                                                  uint64_t seed) {
  std::vector<std::span<const std::byte>> bytes;
  for (const Buffer& buffer : inputs) bytes.emplace_back(buffer.data(), buffer.size_bytes());
  KILN_ASSIGN_OR_RETURN(ElementEvaluator reference, ElementEvaluator::create(graph, bytes));
  std::mt19937_64 random(seed + 1);
  std::vector<Comparison> comparisons;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const uint32_t alias = program.output_alias(i);
    comparisons.push_back(compare(reference, graph.outputs()[i], alias == k_none ? outputs[i] : inputs[alias], random));
  }
  if (!reference.status().ok()) return reference.status();
  return comparisons;
}

}  // namespace kiln::cli
