#include "frontend/ir/dim.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <limits>

// Extents are polynomials over the graph's symbols, kept as a sorted list of monomials with distinct symbols
// and nonzero coefficients. The order is graded: higher degree first, equal degrees by their symbols. That is
// a monomial order (it is kept by multiplication), so division by one polynomial is the schoolbook algorithm:
// the leading term of what remains must be divisible by the divisor's leading term until nothing remains.

namespace kiln {
namespace {

// No extent comes near: a tensor has at most 2^40 elements.
constexpr int64_t k_overflow = std::numeric_limits<int64_t>::max();

bool leads(const Dim::Term& a, const Dim::Term& b) {
  if (a.symbols.size() != b.symbols.size()) return a.symbols.size() > b.symbols.size();
  return a.symbols < b.symbols;
}

std::optional<Dim::Term> multiply(const Dim::Term& a, const Dim::Term& b) {
  Dim::Term product;
  if (__builtin_mul_overflow(a.coefficient, b.coefficient, &product.coefficient)) return std::nullopt;
  product.symbols.resize(a.symbols.size() + b.symbols.size());
  std::ranges::merge(a.symbols, b.symbols, product.symbols.begin());
  return product;
}

/// a / b when it is a monomial with an integer coefficient.
std::optional<Dim::Term> divide(const Dim::Term& a, const Dim::Term& b) {
  if (b.coefficient == -1 && a.coefficient == std::numeric_limits<int64_t>::min()) return std::nullopt;
  if (a.coefficient % b.coefficient != 0 || !std::ranges::includes(a.symbols, b.symbols)) return std::nullopt;
  Dim::Term quotient{{}, a.coefficient / b.coefficient};
  std::ranges::set_difference(a.symbols, b.symbols, std::back_inserter(quotient.symbols));
  return quotient;
}

}  // namespace

Dim::Dim(int64_t constant) {
  if (constant != 0) m_terms.push_back({{}, constant});
}

Dim Dim::symbol(SymbolId id) {
  Dim dim;
  dim.m_terms.push_back({{id}, 1});
  return dim;
}

Dim Dim::from_terms(std::vector<Term> terms) {
  for (Term& term : terms) {
    std::ranges::sort(term.symbols);
    if (term.symbols.size() > k_dim_degree) return Dim(k_overflow);
  }
  std::ranges::sort(terms, leads);
  Dim sum;
  for (Term& term : terms) {
    if (sum.m_terms.empty() || sum.m_terms.back().symbols != term.symbols) {
      sum.m_terms.push_back(std::move(term));
      continue;
    }
    int64_t& coefficient = sum.m_terms.back().coefficient;
    if (__builtin_add_overflow(coefficient, term.coefficient, &coefficient)) return Dim(k_overflow);
  }
  std::erase_if(sum.m_terms, [](const Term& term) { return term.coefficient == 0; });
  bool saturated = std::ranges::any_of(sum.m_terms, [](const Term& t) { return t.coefficient == k_overflow; });
  if (saturated || sum.m_terms.size() > k_dim_terms) return Dim(k_overflow);
  return sum;
}

bool Dim::is_constant() const { return m_terms.empty() || (m_terms.size() == 1 && m_terms[0].symbols.empty()); }

int64_t Dim::constant() const {
  assert(is_constant() && "constant() of a symbolic dim");
  return m_terms.empty() ? 0 : m_terms[0].coefficient;
}

bool Dim::overflowed() const { return is_constant() && constant() == k_overflow; }

Dim Dim::operator+(const Dim& other) const {
  if (overflowed() || other.overflowed()) return Dim(k_overflow);
  std::vector<Term> terms = m_terms;
  terms.insert(terms.end(), other.m_terms.begin(), other.m_terms.end());
  return from_terms(std::move(terms));
}

Dim Dim::operator-(const Dim& other) const { return *this + other * Dim(-1); }

Dim Dim::operator*(const Dim& other) const {
  if (overflowed() || other.overflowed()) return Dim(k_overflow);
  std::vector<Term> terms;
  terms.reserve(m_terms.size() * other.m_terms.size());
  for (const Term& a : m_terms) {
    for (const Term& b : other.m_terms) {
      std::optional<Term> product = multiply(a, b);
      if (!product) return Dim(k_overflow);
      terms.push_back(std::move(*product));
    }
  }
  return from_terms(std::move(terms));
}

std::optional<Dim> Dim::divided_by(const Dim& other) const {
  if (other.m_terms.empty() || overflowed() || other.overflowed()) return std::nullopt;
  Dim rest = *this;
  std::vector<Term> quotient;
  while (!rest.m_terms.empty()) {
    std::optional<Term> step = divide(rest.m_terms.front(), other.m_terms.front());
    if (!step || quotient.size() == k_dim_terms) return std::nullopt;
    quotient.push_back(*step);
    rest = rest - from_terms({std::move(*step)}) * other;
    if (rest.overflowed()) return std::nullopt;
  }
  return from_terms(std::move(quotient));
}

std::optional<int64_t> Dim::evaluate(std::span<const int64_t> values) const {
  if (overflowed()) return std::nullopt;
  int64_t sum = 0;
  for (const Term& term : m_terms) {
    int64_t product = term.coefficient;
    for (SymbolId id : term.symbols) {
      if (id >= values.size() || __builtin_mul_overflow(product, values[id], &product)) return std::nullopt;
    }
    if (__builtin_add_overflow(sum, product, &sum)) return std::nullopt;
  }
  return sum;
}

std::string Dim::to_string(std::span<const std::string> names) const {
  if (is_constant()) return fmt::to_string(constant());
  std::string text;
  for (const Term& term : m_terms) {
    const bool negative = term.coefficient < 0;
    if (!text.empty())
      text += negative ? " - " : " + ";
    else if (negative)
      text += '-';
    // In unsigned, so that the most negative coefficient has a magnitude.
    const uint64_t magnitude = negative ? -static_cast<uint64_t>(term.coefficient) : term.coefficient;
    std::string_view times;
    if (magnitude != 1 || term.symbols.empty()) text += fmt::to_string(magnitude), times = "*";
    for (SymbolId id : term.symbols) {
      text += times;
      text += id < names.size() ? names[id] : fmt::format("s{}", id);
      times = "*";
    }
  }
  return text;
}

std::vector<int64_t> constants(std::span<const Dim> dims) {
  std::vector<int64_t> values;
  values.reserve(dims.size());
  for (const Dim& dim : dims) values.push_back(dim.constant());
  return values;
}

}  // namespace kiln
