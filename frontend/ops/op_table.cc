#include <unordered_map>

#include "frontend/ops/families.h"
#include "frontend/ops/op.h"

namespace kiln {

std::span<const OpDef* const> all_ops() {
  static const std::vector<const OpDef*> ops = [] {
    std::vector<const OpDef*> all;
    for (const std::span<const OpDef> family :
         {pointwise_ops(), reduction_ops(), view_ops(), window_ops(), creation_ops(), indexing_ops(), arranging_ops(),
          contraction_ops(), convolution_ops(), activation_ops(), softmax_ops(), normalisation_ops(), loss_ops(),
          attention_ops()}) {
      for (const OpDef& op : family) all.push_back(&op);
    }
    return all;
  }();
  return ops;
}

const OpDef* find_op(std::string_view name) {
  static const std::unordered_map<std::string_view, const OpDef*> by_name = [] {
    std::unordered_map<std::string_view, const OpDef*> map;
    for (const OpDef* op : all_ops()) {
      [[maybe_unused]] const bool added = map.emplace(op->name, op).second;
      assert(added && "op names are unique");
    }
    return map;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

}  // namespace kiln
