#include "backends/cuda/compile/epilogue_form.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "frontend/ops/scalar_math.h"

namespace kiln::cuda {
namespace {

// On both sides of where functions bend, among them those that differ from GELU's tanh form by a few parts in ten thousand, and
// far out, beyond what f16 holds.
constexpr std::array k_points = {-1e30, -7e4, -300.0, -12.0, -5.1, -3.3, -2.3, -1.4, -0.75, -0.3, -0.01,
                                 0.0,   0.02, 0.4,    1.1,   1.9,  2.7,  4.2,  9.0,  150.0, 7e4,  1e30};
// Constants are f32 at least; another factor of GELU's, by a part in a thousand, makes ten times this.
constexpr double k_tolerance = 1e-6;
// Where GELU of any usual multiple is its argument, and where its derivative is 1.
constexpr double k_far = 0x1p20, k_far_input = 8;

constexpr double k_gelu_scale = 0.7978845608028654, k_gelu_cubic = 0.044715;

double gelu(double x) { return x / 2 * (1 + std::tanh(k_gelu_scale * (x + k_gelu_cubic * x * x * x))); }

double gelu_slope(double x) {
  const double bend = std::tanh(k_gelu_scale * (x + k_gelu_cubic * x * x * x));
  return (1 + bend) / 2 + x / 2 * (1 - bend * bend) * k_gelu_scale * (1 + 3 * k_gelu_cubic * x * x);
}

double value_of(const EpilogueForm& form, double product, std::span<const double> loads) {
  double sum = form.factor * product;
  if (form.kind == EpilogueForm::Kind::gelu_gradient) return sum * gelu_slope(loads.front());
  for (size_t i = 0; i < loads.size(); ++i) sum += form.factors[i] * loads[i];
  return form.kind == EpilogueForm::Kind::gelu ? gelu(sum) : sum;
}

/// Whether what is rounded to the dtype still holds all of `result`.
bool holds(DType dtype, DType result) { return dtype == result || size_of(dtype) > size_of(result); }

}  // namespace

std::optional<EpilogueFunctions> EpilogueFunctions::of(const GemmSpec& gemm, DType result) {
  EpilogueFunctions functions(gemm.epilogue);
  std::vector<ExprId> stored;
  for (const Store& store : gemm.stores) stored.push_back(store.value);
  for (const ExprId id : needed_by(gemm.epilogue, stored)) {
    if (!functions.take(gemm.epilogue.exprs[id], id, result)) return std::nullopt;
  }
  return functions;
}

bool EpilogueFunctions::take(const ScalarNode& node, size_t id, DType result) {
  switch (node.op) {
    case ScalarOp::index:
    case ScalarOp::reduced:
      return false;
    case ScalarOp::cast:
      return !is_floating(node.dtype) || holds(node.dtype, result);
    case ScalarOp::load: {
      const Access& access = m_body.accesses[node.slot];
      if (node.operands[0] != k_no_expr || !access.indirect.empty()) return false;
      const auto known = std::ranges::find(m_loads, access);
      m_load_of[id] = static_cast<size_t>(known - m_loads.begin());
      if (known == m_loads.end()) m_loads.push_back(access);
      return true;
    }
    default:
      return true;
  }
}

double EpilogueFunctions::at(std::span<const ExprId> order, double product, std::span<const double> loads) const {
  std::vector<double> values(order.back() + 1);
  const auto evaluate = [&](ExprId id) {
    const ScalarNode& node = m_body.exprs[id];
    const auto operand = [&](size_t i) { return node.operands[i] == k_no_expr ? 0 : values[node.operands[i]]; };
    switch (node.op) {
      case ScalarOp::constant:
        return is_floating(node.dtype) ? node.immediate : static_cast<double>(node.immediate_int);
      case ScalarOp::accumulator:
        return product;
      case ScalarOp::load:
        return loads[m_load_of[id]];
      default:
        break;
    }
    const DType typed = m_body.exprs[node.operands[node.op == ScalarOp::select ? 1 : 0]].dtype;
    if (node.op == ScalarOp::cast && is_floating(typed) && is_floating(node.dtype)) return operand(0);
    return apply_scalar(node.op, typed, node.dtype, operand(0), operand(1), operand(2));
  };
  for (const ExprId id : order) values[id] = evaluate(id);
  return values[order.back()];
}

std::optional<EpilogueForm> EpilogueFunctions::form_of(ExprId value) const {
  const std::vector<ExprId> order = needed_by(m_body, std::span(&value, 1));
  for (const EpilogueForm::Kind kind :
       {EpilogueForm::Kind::sum, EpilogueForm::Kind::gelu, EpilogueForm::Kind::gelu_gradient}) {
    if (kind == EpilogueForm::Kind::gelu_gradient && m_loads.size() != 1) continue;
    EpilogueForm form = guess(kind, order);
    if (has_form(order, form)) return form;
  }
  return std::nullopt;
}

/// The only factors with which the value may have the form: sums and, on one side, GELU are straight far out.
EpilogueForm EpilogueFunctions::guess(EpilogueForm::Kind kind, std::span<const ExprId> order) const {
  std::vector<double> loads(m_loads.size());
  if (kind == EpilogueForm::Kind::gelu_gradient) return {kind, at(order, 1, std::array{k_far_input}), {1}};
  const auto slope = [](double up, double down) { return up != 0 ? up / k_far : -down / k_far; };
  EpilogueForm form{kind, slope(at(order, k_far, loads), at(order, -k_far, loads)), {}};
  for (double& load : loads) {
    load = k_far;
    const double up = at(order, 0, loads);
    load = -k_far;
    form.factors.push_back(slope(up, at(order, 0, loads)));
    load = 0;
  }
  return form;
}

bool EpilogueFunctions::has_form(std::span<const ExprId> order, const EpilogueForm& form) const {
  const auto is_factor = [](double factor) { return std::isfinite(factor) && factor != 0; };
  if (!is_factor(form.factor) || !std::ranges::all_of(form.factors, is_factor)) return false;
  std::vector<double> loads(m_loads.size());
  for (size_t i = 0; i < k_points.size(); ++i) {
    for (size_t j = 0; j < (loads.empty() ? 1 : k_points.size()); ++j) {
      double size = 1 + std::fabs(k_points[i]);
      for (size_t l = 0; l < loads.size(); ++l) {
        const double point = k_points[(j + l * i) % k_points.size()];
        loads[l] = point / form.factors[l];
        size += std::fabs(point);
      }
      const double product = k_points[i] / form.factor;
      const double miss = at(order, product, loads) - value_of(form, product, loads);
      if (!(std::fabs(miss) <= k_tolerance * size)) return false;
    }
  }
  // What replaces NaN is another function.
  std::ranges::fill(loads, 1);
  if (!std::isnan(at(order, k_nan, loads))) return false;
  return std::ranges::all_of(loads, [&](double& load) {
    load = k_nan;
    const bool is_kept = std::isnan(at(order, 1, loads));
    load = 1;
    return is_kept;
  });
}

}  // namespace kiln::cuda
