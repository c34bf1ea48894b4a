#pragma once

#include <map>

#include "backends/cpu/compile/emit/launch_numbers.h"

namespace kiln::cpu {

/// Which numbers of attention its launch carries; without any opened, none.
struct AttentionNumbers {
  using Place = LaunchNumbers::Place;
  LaunchNumbers launch;
  Place batch = 0, heads = 0, q_len = 0, k_len = 0, causal_offset = 0;
  std::map<const Access*, BodyNumbers::OfAccess>
      accesses;       // by the spec's own: offsets, and strides but along the depth
  BodyNumbers score;  // its `launch` is to be set to where this lies

  /// Opens all that tiles do not depend on. `form` is a copy of `attention`.
  void open(const AttentionSpec& attention, AttentionSpec& form);
  /// Opens where the heads of a tensor begin, and its rows, if asked; `form` is a copy of `access`.
  void open(const Access& access, Access& form, bool opens_rows = true);
};

/// A spec whose numbers were opened: they refer to the spec itself.
template <typename Spec>
struct OpenedAttention {
  Spec form;
  AttentionNumbers numbers;
};
OpenedAttention<AttentionSpec> opened(const AttentionSpec& attention);
OpenedAttention<AttentionBackwardSpec> opened(const AttentionBackwardSpec& backward);

}  // namespace kiln::cpu
