#include "jit/build/many_sizes/fit_numbers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace kiln {

namespace {

constexpr size_t k_sum_degree = 2, k_term_degree = 4;
constexpr long double k_zero = 1e-12L;  // of a pivot, in columns whose largest value is 1

using Monomial = std::vector<SymbolId>;
using Values = std::vector<int64_t>;  // by sample

/// Of ascending degree.
std::vector<Monomial> monomials(size_t symbols, size_t degree) {
  std::vector<Monomial> all{{}};
  for (size_t begin = 0, d = 1; d <= degree; ++d) {
    const size_t end = all.size();
    for (size_t i = begin; i < end; ++i) {
      const SymbolId first = all[i].empty() ? 0 : all[i].back();
      for (SymbolId symbol = first; symbol < symbols; ++symbol) {
        Monomial longer = all[i];
        longer.push_back(symbol);
        all.push_back(std::move(longer));
      }
    }
    begin = end;
  }
  return all;
}

/// Polynomials through the values that numbers have at some sizes.
class Fit {
 public:
  explicit Fit(std::span<const Sizes> sizes)
      : m_sizes(sizes),
        m_terms(monomials(sizes.front().size(), k_term_degree)),
        m_sum(monomials(sizes.front().size(), k_sum_degree)) {
    solve();
  }

  std::optional<Dim> through(const Values& values) const {
    for (const Monomial& monomial : m_terms) {
      const std::optional<int64_t> unit = Dim::from_terms({{monomial, 1}}).evaluate(m_sizes.front());
      if (!unit || *unit == 0 || values.front() % *unit != 0) continue;
      Dim term = Dim::from_terms({{monomial, values.front() / *unit}});
      if (is_through(term, values)) return term;
    }
    Dim sum = sum_through(values);
    return is_through(sum, values) ? std::optional(std::move(sum)) : std::nullopt;
  }

 private:
  bool is_through(const Dim& polynomial, const Values& values) const {
    for (size_t i = 0; i < m_sizes.size(); ++i) {
      if (polynomial.evaluate(m_sizes[i]) != values[i]) return false;
    }
    return true;
  }

  /// Gauss-Jordan elimination of the monomials' values, with the same steps on the unit matrix: m_inverse then gives, of the
  /// values of a number, its coefficients. A monomial that the samples do not tell from others has none.
  void solve() {
    const size_t rows = m_sizes.size();
    std::vector<std::vector<long double>> left(rows);
    m_inverse.assign(rows, std::vector<long double>(rows, 0));
    for (size_t r = 0; r < rows; ++r) {
      m_inverse[r][r] = 1;
      for (const Monomial& monomial : m_sum) {
        long double value = 1;
        for (const SymbolId symbol : monomial) value *= static_cast<long double>(m_sizes[r][symbol]);
        left[r].push_back(value);
      }
    }
    size_t row = 0;
    for (size_t column = 0; column < m_sum.size(); ++column) {
      long double largest = 0;
      for (size_t r = 0; r < rows; ++r) largest = std::max(largest, std::abs(left[r][column]));
      size_t pivot = row;
      for (size_t r = row; r < rows; ++r)
        if (std::abs(left[r][column]) > std::abs(left[pivot][column])) pivot = r;
      if (row == rows || std::abs(left[pivot][column]) <= k_zero * largest) {
        m_rows.push_back(std::nullopt);
        continue;
      }
      std::swap(left[row], left[pivot]);
      std::swap(m_inverse[row], m_inverse[pivot]);
      eliminate(left, row, column);
      m_rows.push_back(row++);
    }
  }

  void eliminate(std::vector<std::vector<long double>>& left, size_t row, size_t column) {
    const auto scale = [](std::vector<long double>& line, long double by) {
      for (long double& value : line) value *= by;
    };
    const auto subtract = [](std::vector<long double>& line, const std::vector<long double>& other, long double by) {
      for (size_t i = 0; i < line.size(); ++i) line[i] -= other[i] * by;
    };
    const long double pivot = left[row][column];
    scale(left[row], 1 / pivot);
    scale(m_inverse[row], 1 / pivot);
    for (size_t r = 0; r < left.size(); ++r) {
      if (r == row) continue;
      const long double factor = left[r][column];
      subtract(left[r], left[row], factor);
      subtract(m_inverse[r], m_inverse[row], factor);
    }
  }

  Dim sum_through(const Values& values) const {
    std::vector<Dim::Term> terms;
    for (size_t m = 0; m < m_sum.size(); ++m) {
      if (!m_rows[m]) continue;
      long double coefficient = 0;
      for (size_t i = 0; i < values.size(); ++i)
        coefficient += m_inverse[*m_rows[m]][i] * static_cast<long double>(values[i]);
      if (std::abs(coefficient) < static_cast<long double>(INT64_MAX))
        terms.push_back({m_sum[m], static_cast<int64_t>(std::llround(coefficient))});
    }
    return Dim::from_terms(std::move(terms));
  }

  const std::span<const Sizes> m_sizes;
  const std::vector<Monomial> m_terms, m_sum;
  std::vector<std::vector<long double>> m_inverse;
  std::vector<std::optional<size_t>> m_rows;  // of m_inverse, by monomial of a sum
};

}  // namespace

size_t sum_terms(size_t symbols) { return monomials(symbols, k_sum_degree).size(); }

Expected<std::vector<SizedNumber>> fit_numbers(std::span<const Sizes> sizes,
                                               std::span<const std::vector<uint8_t>> samples) {
  const size_t bytes = samples.front().size();
  const auto is_as_long = [&](const std::vector<uint8_t>& sample) { return sample.size() == bytes; };
  // FlatBuffers begin on a boundary, so no bytes are left over.
  if (!std::ranges::all_of(samples, is_as_long) || bytes % sizeof(int64_t) != 0) {
    return error(StatusCode::unimplemented, "sizes add parts, or take them away");
  }
  const Fit fit(sizes);
  std::vector<SizedNumber> numbers;
  Values values(samples.size());
  // Numbers are aligned as seen from the end.
  for (size_t before_end = sizeof(int64_t); before_end <= bytes; before_end += sizeof(int64_t)) {
    for (size_t i = 0; i < samples.size(); ++i)
      std::memcpy(&values[i], samples[i].data() + (bytes - before_end), sizeof(int64_t));
    if (std::ranges::all_of(values, [&](int64_t value) { return value == values.front(); })) continue;
    std::optional<Dim> value = fit.through(values);
    if (!value) {
      return error(StatusCode::unimplemented, "a number does not follow from sizes: it is {} for sizes {}",
                   fmt::join(values, ", "), fmt::join(sizes, ", "));
    }
    numbers.push_back({static_cast<uint32_t>(before_end), std::move(*value)});
  }
  return numbers;
}

}  // namespace kiln
