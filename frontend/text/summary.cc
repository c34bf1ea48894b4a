#include "frontend/text/summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "frontend/ops/op.h"

namespace kiln {
namespace {

constexpr size_t k_ops = 4, k_outputs = 2;

/// 0 for what a graph's time goes to, 2 for what only renames indices.
int rank_of(OpKind kind) {
  const bool is_heavy = kind == OpKind::contraction || kind == OpKind::attention || kind == OpKind::ordering;
  return is_heavy ? 0 : kind == OpKind::view || kind == OpKind::creation ? 2 : 1;
}

}  // namespace

std::string summary(const Graph& graph) {
  std::map<const OpDef*, size_t> counts;
  for (const Node& node : graph.nodes()) ++counts[node.op];
  std::vector<std::tuple<int, size_t, std::string_view>> ops;  // rank, how many are not of it, name
  for (const auto& [op, count] : counts) ops.emplace_back(rank_of(op->kind), graph.nodes().size() - count, op->name);
  std::ranges::sort(ops);
  std::vector<std::string> words;
  size_t others = graph.nodes().size();
  for (size_t i = 0; i < std::min(ops.size(), k_ops); ++i) {
    const auto& [rank, rest, name] = ops[i];
    const size_t count = graph.nodes().size() - rest;
    words.push_back(count == 1 ? std::string(name) : fmt::format("{} {}", count, name));
    others -= count;
  }
  if (others > 0) words.push_back(fmt::format("{} other{}", others, others == 1 ? "" : "s"));
  std::vector<std::string> outputs;
  for (size_t i = 0; i < std::min(graph.outputs().size(), k_outputs); ++i) {
    const TensorType& type = graph.type(graph.outputs()[i]);
    outputs.push_back(TensorType{type.dtype, type.shape, {}}.to_string(graph.symbols()));
  }
  if (graph.outputs().size() > k_outputs) outputs.emplace_back("…");
  return fmt::format("{} -> {}", fmt::join(words, ", "), fmt::join(outputs, ", "));
}

}  // namespace kiln
