#include "frontend/fuse/fuse_choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "frontend/fuse/merge_products.h"
#include "frontend/kernel/expensive.h"
#include "frontend/ops/op.h"

namespace kiln {
namespace {

/// Whether a product, or what is made of its elements, meets an element that is made of something heavy without it.
bool has_heavy_factor(const Graph& graph) {
  std::vector<bool> follows(graph.values().size()), is_heavy(graph.values().size());
  for (const Node& node : graph.nodes()) {
    const bool is_pointwise = node.op->kind == OpKind::pointwise, is_product = node.op->kind == OpKind::contraction;
    if (!is_pointwise && !is_product && node.op->kind != OpKind::view) continue;
    const auto is_any = [&](const std::vector<bool>& values) {
      return std::ranges::any_of(node.operands, [&](ValueId operand) { return operand != k_none && values[operand]; });
    };
    const bool follows_one = is_product || is_any(follows), has_heavy = !is_product && is_any(is_heavy);
    if (is_pointwise && follows_one && has_heavy) return true;
    for (const ValueId result : node.results) {
      follows[result] = follows_one;
      is_heavy[result] = !follows_one && (has_heavy || (is_pointwise && is_expensive(node.op->scalar)));
    }
  }
  return false;
}

}  // namespace

std::string to_string(const FuseChoices& choices) {
  std::vector<std::string_view> made;
  if (choices.heavy_epilogues_apart) made.push_back("heavy epilogues apart");
  if (choices.widening_apart) made.push_back("widening apart");
  if (choices.products_merged) made.push_back("products merged");
  if (choices.heavy_factors_inside) made.push_back("heavy factors inside");
  return made.empty() ? "all fused" : fmt::format("{}", fmt::join(made, ", "));
}

std::vector<FuseChoices> fuse_choices(const Graph& primitives) {
  bool has_product = false, has_heavy = false, has_widening = false;
  for (const Node& node : primitives.nodes()) {
    has_product |= node.op->kind == OpKind::contraction;
    has_heavy |= node.op->kind == OpKind::pointwise && is_expensive(node.op->scalar);
    has_widening |= is_widening(primitives, node);
  }
  std::vector<FuseChoices> all{{}};
  const auto add = [&](bool FuseChoices::* choice, bool may_matter) {
    if (!may_matter) return;
    for (size_t i = 0, count = all.size(); i < count; ++i) {
      all.push_back(all[i]);
      all.back().*choice = true;
    }
  };
  add(&FuseChoices::heavy_epilogues_apart, has_product && has_heavy);
  add(&FuseChoices::widening_apart, has_product && has_widening);
  add(&FuseChoices::products_merged, has_products_to_merge(primitives));
  add(&FuseChoices::heavy_factors_inside, has_heavy_factor(primitives));
  return all;
}

bool is_widening(const Graph& graph, const Node& node) {
  return node.op->kind == OpKind::pointwise && node.op->scalar == ScalarOp::cast &&
         size_of(graph.type(node.operands[0]).dtype) < size_of(graph.type(node.results[0]).dtype);
}

}  // namespace kiln
