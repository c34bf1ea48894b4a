#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "frontend/ir/graph.h"

namespace kiln {

/// What fuse() decides where several plans compute the same: the defaults are the model's, a race may know better. Its
/// members are what backends/schedule_bytes.h asks of choices, so a record keeps it as it keeps a schedule.
struct FuseChoices {
  static constexpr std::string_view k_implementation = "fuse";
  static constexpr uint32_t k_version = 3;
  static auto fields(auto& choices) {
    return std::tie(choices.heavy_epilogues_apart, choices.widening_apart, choices.products_merged,
                    choices.heavy_factors_inside);
  }

  /// A product does not take along what costs more than a few cycles an element (is_expensive), nor what follows it.
  bool heavy_epilogues_apart = false;
  /// A product reads what its operand was widened to, instead of what is narrower in memory.
  bool widening_apart = false;
  /// Products that share an operand are one (merge_products.h).
  bool products_merged = false;
  /// A product computes what its elements meet, GELU's derivative for one, heavy as it may be, instead of reading what a kernel
  /// made of it; unless something heavy in it is wanted elsewhere as well.
  bool heavy_factors_inside = false;
  bool operator==(const FuseChoices&) const = default;
};

/// "all fused", "heavy epilogues apart, products merged".
std::string to_string(const FuseChoices& choices);

/// The choices that may make a difference to the plan of a graph, the defaults first. `primitives`: Plan::graph.
std::vector<FuseChoices> fuse_choices(const Graph& primitives);

/// Whether the node computes, element by element, what is wider in memory than what it is made of.
bool is_widening(const Graph& graph, const Node& node);

}  // namespace kiln
