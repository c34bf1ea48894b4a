#pragma once

#include <optional>
#include <span>
#include <vector>

#include "frontend/kernel/kernel_spec.h"

/// What a gemm's epilogue computes, told by its values: each stored expression is evaluated in f64 at points that tell functions
/// apart, so that it does not matter in which of many ways the function is written.
namespace kiln::cuda {

/// A function of a product and of what is loaded beside it. Σ: the sum of factor * product and of factors[i] * loads[i].
struct EpilogueForm {
  enum class Kind : uint8_t {
    sum,            // Σ
    gelu,           // GELU of Σ, in its tanh form
    gelu_gradient,  // factor * product * the derivative of that GELU at the only load
  };
  Kind kind = Kind::sum;
  double factor = 1;
  std::vector<double> factors;  // of each load, none of them 0; of a gradient's 1
  bool operator==(const EpilogueForm&) const = default;
};

/// Roundings to the dtype of the result are left out: what computes these forms rounds once, at the end.
class EpilogueFunctions {
 public:
  /// All that the gemm stores, as `result`. Nothing where that depends on something else than the product and elements that are
  /// always loaded, from addresses that no data say, or is rounded on the way to a dtype that does not hold `result`.
  static std::optional<EpilogueFunctions> of(const GemmSpec& gemm, DType result);

  /// What all of them load, each once.
  const std::vector<Access>& loads() const { return m_loads; }
  /// The form that the value has, the same one of all equal values. Nothing for any other function.
  std::optional<EpilogueForm> form_of(ExprId value) const;

 private:
  explicit EpilogueFunctions(const Body& body) : m_body(body), m_load_of(body.exprs.size()) {}
  bool take(const ScalarNode& node, size_t id, DType result);
  // `order`: what a value needs, itself last.
  double at(std::span<const ExprId> order, double product, std::span<const double> loads) const;
  EpilogueForm guess(EpilogueForm::Kind kind, std::span<const ExprId> order) const;
  bool has_form(std::span<const ExprId> order, const EpilogueForm& form) const;

  const Body& m_body;
  std::vector<Access> m_loads;
  std::vector<size_t> m_load_of;  // of each expression that is one
};

}  // namespace kiln::cuda
