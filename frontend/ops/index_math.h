#pragma once

#include <vector>

#include "frontend/ops/attributes.h"
#include "frontend/ops/element_evaluator.h"

namespace kiln {

/// Index arithmetic of element semantics. Internal to frontend/ops.

/// The coordinate of flat index `index` of `value` along `dim`.
inline int64_t coordinate(const ElementEvaluator& e, ValueId value, int64_t index, size_t dim) {
  return index / e.strides(value)[dim] % e.extents(value)[dim];
}

/// Of a node whose attribute "dim" was checked.
inline size_t dim_of(const Node& node) { return static_cast<size_t>(integer_of(node.attributes, "dim")); }

/// A flat index split at one dim: index = (outer * extent + at) * inner + rest.
struct Split {
  int64_t outer, at, rest;
};
inline Split split_at(int64_t index, int64_t extent, int64_t inner) {
  return {index / (extent * inner), index / inner % extent, index % inner};
}

/// The elements of operand 0 that one element of a reduction over `dims` reads, in row-major order.
class ReducedRange {
 public:
  ReducedRange(const ElementEvaluator& e, const Node& node, int64_t result_index) {
    const std::vector<int64_t>& extents = e.extents(node.operands[0]);
    const std::vector<int64_t>& strides = e.strides(node.operands[0]);
    std::vector<bool> reduced(extents.size(), false);
    for (const int64_t dim : integers_of(node.attributes, "dims")) reduced[static_cast<size_t>(dim)] = true;
    for (size_t d = extents.size(); d-- > 0;) {  // kept extents of 1 change nothing, so keep_dims does not matter
      if (reduced[d]) {
        m_extents.push_back(extents[d]);
        m_strides.push_back(strides[d]);
        m_count *= extents[d];
      } else if (extents[d] > 0) {
        m_base += result_index % extents[d] * strides[d];
        result_index /= extents[d];
      }
    }
  }
  int64_t count() const { return m_count; }
  int64_t at(int64_t i) const {
    int64_t index = m_base;
    for (size_t d = 0; d < m_extents.size(); ++d) {  // innermost first
      index += i % m_extents[d] * m_strides[d];
      i /= m_extents[d];
    }
    return index;
  }

 private:
  std::vector<int64_t> m_extents, m_strides;
  int64_t m_base = 0, m_count = 1;
};

}  // namespace kiln
