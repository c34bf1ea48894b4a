#pragma once

#include <cstdint>
#include <vector>

#include "frontend/kernel/scalar.h"

namespace kiln {

/// The dims along which an access has strides. Bit d: dim d.
uint64_t dims_of_strides(const Access& access);

/// Which iteration dims the values and addresses of a body change with. Bit d: with dim d.
class BodyDims {
 public:
  /// `results`: the dims that `reduced` and `accumulator` leaves change with.
  BodyDims(const Body& body, uint64_t results);

  uint64_t of(ExprId id) const { return m_dims[id]; }
  uint64_t of(const Access& access) const;

 private:
  std::vector<uint64_t> m_dims;  // of each expression
};

}  // namespace kiln
