#pragma once

#include "frontend/ir/dtype.h"

namespace kiln {

/// The significand's step, as a share of the number: twice the unit roundoff. 0 for integers and booleans, which are exact.
constexpr double step_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-10;
    case DType::bf16:
      return 0x1p-7;
    case DType::f32:
      return 0x1p-23;
    case DType::f64:
      return 0x1p-52;
    default:
      return 0;
  }
}

/// The least number of a floating dtype that has all its bits.
constexpr double least_normal(DType dtype) {
  if (dtype == DType::f64) return 0x1p-1022;
  return dtype == DType::f16 ? 0x1p-14 : 0x1p-126;
}

}  // namespace kiln
