#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kiln {

using SymbolId = uint32_t;

/// One extent of a shape: a polynomial with integer coefficients over the graph's symbols. A constant is the
/// polynomial without symbols. Normal form (sorted monomials, no zero coefficients), so equality is equality
/// of functions and equal dims have equal bytes.
///
/// Arithmetic never traps. What does not fit (a coefficient beyond 64 bits, more than k_dim_terms terms, a
/// degree beyond k_dim_degree) becomes the one overflowed dim, which absorbs all further arithmetic and never
/// evaluates.
class Dim {
 public:
  /// Shapes of real models have one or two terms of degree up to four; the bounds keep hostile graphs cheap.
  static constexpr size_t k_dim_terms = 64;
  static constexpr size_t k_dim_degree = 16;

  struct Term {
    std::vector<SymbolId> symbols;  // ascending, repeated for powers; empty for the constant term
    int64_t coefficient = 0;
    auto operator<=>(const Term&) const = default;
  };

  Dim() = default;
  Dim(int64_t constant);  // NOLINT: implicit, so that {2, 3} is a shape
  static Dim symbol(SymbolId id);
  /// Normalises any list of terms.
  static Dim from_terms(std::vector<Term> terms);

  bool is_constant() const;
  /// Asserts that it is one.
  int64_t constant() const;
  bool overflowed() const;
  /// Highest degree first, then by symbols ascending: s0*s1, then s0, s1, then the constant.
  const std::vector<Term>& terms() const { return m_terms; }

  Dim operator+(const Dim& other) const;
  Dim operator-(const Dim& other) const;
  Dim operator*(const Dim& other) const;
  /// Nothing unless the polynomial division leaves no remainder (over the integers).
  std::optional<Dim> divided_by(const Dim& other) const;

  /// `values[id]` is the extent bound to symbol `id`. Nothing on overflow or a symbol without value.
  std::optional<int64_t> evaluate(std::span<const int64_t> values) const;

  /// "512", "s0", "512*s0", "2*s0*s1 + 3", "s0 - 1". Symbol `id` is names[id], or "s<id>" without one.
  std::string to_string(std::span<const std::string> names = {}) const;

  auto operator<=>(const Dim&) const = default;

 private:
  std::vector<Term> m_terms;
};

using Shape = std::vector<Dim>;

/// Of dims that are all constant; asserts that they are.
std::vector<int64_t> constants(std::span<const Dim> dims);

}  // namespace kiln
