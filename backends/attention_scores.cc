#include "backends/attention_scores.h"

#include <limits>
#include <vector>

namespace kiln {

namespace {

/// What is known of an expression of a score.
struct Known {
  bool varies = false;      // with the product
  bool is_told = true;      // an infinity at a product of zero is the same infinity at any finite one
  bool may_be_inf = false;  // of its own: by a constant, or by what is read
};

Known known_of(const ScalarNode& node, const std::vector<Known>& earlier) {
  static constexpr Known k_absent{};
  const auto of = [&](size_t i) -> const Known& {
    return node.operands[i] == k_no_expr ? k_absent : earlier[node.operands[i]];
  };
  const Known &a = of(0), &b = of(1), &c = of(2);
  Known known{.varies = a.varies || b.varies || c.varies,
              .is_told = true,
              .may_be_inf = a.may_be_inf || b.may_be_inf || c.may_be_inf};
  switch (node.op) {
    case ScalarOp::constant:
      return {.may_be_inf = node.immediate == -std::numeric_limits<double>::infinity()};
    case ScalarOp::load:
      return {.varies = a.varies, .is_told = !a.varies, .may_be_inf = is_floating(node.dtype)};
    case ScalarOp::accumulator:
      return {.varies = true};
    case ScalarOp::cast:
    case ScalarOp::neg:
    case ScalarOp::tanh:
    case ScalarOp::add:
    case ScalarOp::sub:
    case ScalarOp::minimum:
    case ScalarOp::maximum:
      known.is_told = a.is_told && b.is_told;
      return known;
    case ScalarOp::mul:
      known.is_told = a.is_told && b.is_told && !(a.varies && b.varies);
      return known;
    case ScalarOp::div:
      known.is_told = a.is_told && !b.varies;
      return known;
    case ScalarOp::select:
      known.is_told = !a.varies && b.is_told && c.is_told;
      return known;
    default:
      known.is_told = !known.varies;
      return known;
  }
}

}  // namespace

bool leaves_out_scores(const Body& body, ExprId value) {
  if (value == k_no_expr) return false;
  std::vector<Known> known;
  for (const ScalarNode& node : body.exprs) known.push_back(known_of(node, known));
  return known[value].is_told && known[value].may_be_inf;
}

}  // namespace kiln
