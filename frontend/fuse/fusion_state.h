#pragma once

#include <cstdint>
#include <vector>

#include "frontend/fuse/facts.h"

namespace kiln {

using GroupId = uint32_t;
inline constexpr GroupId k_no_group = UINT32_MAX;

/// What shares a kernel, while that is being decided.
///
/// A node is in one group, or virtual (computed again wherever it is used: views, constants, cheap pointwise ops), or
/// undecided, which reads as "some other kernel's".
struct FusionState {
  const GraphFacts* facts = nullptr;
  std::vector<GroupId> group_of;         // of each node
  std::vector<bool> is_virtual;          // of each node
  std::vector<bool> is_pinned;           // of each value: lies in a buffer, even if its node is virtual
  std::vector<std::vector<Home>> homes;  // of each value; readers use the first

  /// Whether `group` computes the value itself rather than loading it.
  bool is_inline(ValueId value, GroupId group) const {
    if (facts->is_input(value)) return false;
    const NodeId node = facts->graph->value(value).producer;
    if (group_of[node] == group) return true;
    return is_virtual[node] && !is_pinned[value];
  }

  /// Strides of the value where it is stored.
  std::vector<int64_t> strides_of(ValueId value) const;
};

}  // namespace kiln
