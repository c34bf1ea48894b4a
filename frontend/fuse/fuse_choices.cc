#include "frontend/fuse/fuse_choices.h"

#include <algorithm>

#include "frontend/kernel/expensive.h"
#include "frontend/ops/op.h"

namespace kiln {

std::string to_string(const FuseChoices& choices) {
  std::string text = choices.heavy_epilogues_apart ? "heavy epilogues apart" : "";
  if (choices.widening_apart) text += text.empty() ? "widening apart" : ", widening apart";
  return text.empty() ? "all fused" : text;
}

std::vector<FuseChoices> fuse_choices(const Graph& primitives) {
  bool has_product = false, has_heavy = false, has_widening = false;
  for (const Node& node : primitives.nodes()) {
    has_product |= node.op->kind == OpKind::contraction;
    has_heavy |= node.op->kind == OpKind::pointwise && is_expensive(node.op->scalar);
    has_widening |= is_widening(primitives, node);
  }
  std::vector<FuseChoices> choices{{}};
  if (has_product && has_heavy) choices.push_back({.heavy_epilogues_apart = true});
  if (has_product && has_widening) choices.push_back({.widening_apart = true});
  if (choices.size() == 3) choices.push_back({.heavy_epilogues_apart = true, .widening_apart = true});
  return choices;
}

bool is_widening(const Graph& graph, const Node& node) {
  return node.op->kind == OpKind::pointwise && node.op->scalar == ScalarOp::cast &&
         size_of(graph.type(node.operands[0]).dtype) < size_of(graph.type(node.results[0]).dtype);
}

}  // namespace kiln
