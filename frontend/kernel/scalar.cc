#include "frontend/kernel/scalar.h"

namespace kiln {
namespace {

struct ScalarRow {
  ScalarOp op;
  std::string_view name;
  int arity;
};

constexpr ScalarRow k_rows[] = {
    {ScalarOp::constant, "constant", 0},
    {ScalarOp::load, "load", 0},
    {ScalarOp::index, "index", 0},
    {ScalarOp::reduced, "reduced", 0},
    {ScalarOp::accumulator, "accumulator", 0},
    {ScalarOp::cast, "cast", 1},
    {ScalarOp::neg, "neg", 1},
    {ScalarOp::abs, "abs", 1},
    {ScalarOp::sign, "sign", 1},
    {ScalarOp::exp, "exp", 1},
    {ScalarOp::expm1, "expm1", 1},
    {ScalarOp::log, "log", 1},
    {ScalarOp::log1p, "log1p", 1},
    {ScalarOp::sqrt, "sqrt", 1},
    {ScalarOp::rsqrt, "rsqrt", 1},
    {ScalarOp::reciprocal, "reciprocal", 1},
    {ScalarOp::sin, "sin", 1},
    {ScalarOp::cos, "cos", 1},
    {ScalarOp::tanh, "tanh", 1},
    {ScalarOp::erf, "erf", 1},
    {ScalarOp::sigmoid, "sigmoid", 1},
    {ScalarOp::floor, "floor", 1},
    {ScalarOp::ceil, "ceil", 1},
    {ScalarOp::round, "round", 1},
    {ScalarOp::trunc, "trunc", 1},
    {ScalarOp::is_nan, "is_nan", 1},
    {ScalarOp::is_inf, "is_inf", 1},
    {ScalarOp::logical_not, "logical_not", 1},
    {ScalarOp::bitwise_not, "bitwise_not", 1},
    {ScalarOp::add, "add", 2},
    {ScalarOp::sub, "sub", 2},
    {ScalarOp::mul, "mul", 2},
    {ScalarOp::div, "div", 2},
    {ScalarOp::floor_div, "floor_div", 2},
    {ScalarOp::remainder, "remainder", 2},
    {ScalarOp::fmod, "fmod", 2},
    {ScalarOp::pow, "pow", 2},
    {ScalarOp::atan2, "atan2", 2},
    {ScalarOp::minimum, "minimum", 2},
    {ScalarOp::maximum, "maximum", 2},
    {ScalarOp::eq, "eq", 2},
    {ScalarOp::ne, "ne", 2},
    {ScalarOp::lt, "lt", 2},
    {ScalarOp::le, "le", 2},
    {ScalarOp::gt, "gt", 2},
    {ScalarOp::ge, "ge", 2},
    {ScalarOp::bitwise_and, "bitwise_and", 2},
    {ScalarOp::bitwise_or, "bitwise_or", 2},
    {ScalarOp::bitwise_xor, "bitwise_xor", 2},
    {ScalarOp::philox, "philox", 2},
    {ScalarOp::select, "select", 3},
};

const ScalarRow* find_row(ScalarOp op) {
  for (const ScalarRow& row : k_rows) {
    if (row.op == op) return &row;
  }
  return nullptr;
}

}  // namespace

std::string_view to_string(ScalarOp op) {
  const ScalarRow* row = find_row(op);
  return row == nullptr ? "unknown" : row->name;
}

int arity(ScalarOp op) {
  const ScalarRow* row = find_row(op);
  return row == nullptr ? -1 : row->arity;
}

std::vector<ExprId> needed_by(const Body& body, std::span<const ExprId> roots) {
  std::vector<bool> needed(body.exprs.size(), false);
  for (const ExprId root : roots) needed[root] = true;
  for (size_t id = needed.size(); id-- > 0;) {
    if (!needed[id]) continue;
    const ScalarNode& node = body.exprs[id];
    for (const ExprId operand : node.operands) {
      if (operand != k_no_expr) needed[operand] = true;
    }
    if (node.op != ScalarOp::load) continue;
    for (const IndirectTerm& term : body.accesses[node.slot].indirect) needed[term.index] = true;
  }
  std::vector<ExprId> order;
  for (ExprId id = 0; id < needed.size(); ++id) {
    if (needed[id]) order.push_back(id);
  }
  return order;
}

}  // namespace kiln
