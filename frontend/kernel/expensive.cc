#include "frontend/kernel/expensive.h"

namespace kiln {

bool is_expensive(ScalarOp op) {
  switch (op) {
    case ScalarOp::exp:
    case ScalarOp::expm1:
    case ScalarOp::log:
    case ScalarOp::log1p:
    case ScalarOp::sin:
    case ScalarOp::cos:
    case ScalarOp::tanh:
    case ScalarOp::erf:
    case ScalarOp::sigmoid:
    case ScalarOp::pow:
    case ScalarOp::atan2:
    case ScalarOp::floor_div:
    case ScalarOp::remainder:
    case ScalarOp::fmod:
    case ScalarOp::philox:
      return true;
    default:
      return false;
  }
}

}  // namespace kiln
