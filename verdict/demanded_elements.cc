// Which elements of an output are compared with the reference.
//
// A wrong kernel is seldom wrong everywhere: a tile is shifted, a row of tiles ends early, the last vector of each row is
// missing. So the elements must leave no large rectangle unseen, of any shape: a tile of 6 x 64 as well as a column of
// one. Random points need many times more for that than a lattice does. The Fibonacci lattice, points
// (i / F(m), frac(i F(m-1) / F(m))), leaves no axis-parallel box of more than 2 / F(m) of the unit square empty, which is
// the best there is up to a small constant (Breneis and Hinrichs, "Fibonacci lattices have minimal dispersion on the
// two-dimensional torus", 2020). A rectangle of elements is such a box, so the bound holds for elements as it stands.
//
// What the lattice is too coarse for are the edges of very wide or tall matrices, where tails go wrong: they have points
// of their own.

#include "verdict/demanded_elements.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <unordered_set>
#include <utility>

namespace kiln {

namespace {

constexpr size_t k_points_per_edge = 48;  // four edges, the corners among them: at most 200 points

/// Collects distinct elements in order.
class Chosen {
 public:
  Chosen(int64_t columns, size_t budget) : m_columns(columns), m_budget(budget) {}
  void add(int64_t row, int64_t column) {
    const int64_t flat = row * m_columns + column;
    if (m_elements.size() < m_budget && m_seen.insert(flat).second) m_elements.push_back(flat);
  }
  std::vector<int64_t> take() { return std::move(m_elements); }

 private:
  int64_t m_columns;
  size_t m_budget;
  std::vector<int64_t> m_elements;
  std::unordered_set<int64_t> m_seen;
};

void add_edges(int64_t rows, int64_t columns, std::mt19937_64& random, Chosen& chosen) {
  const int64_t row_list[] = {0, rows - 1, rows / 2}, column_list[] = {0, columns - 1, columns / 2};
  for (int64_t row : row_list) {
    for (int64_t column : column_list) chosen.add(row, column);
  }
  const auto below = [&](int64_t extent) { return static_cast<int64_t>(random() % static_cast<uint64_t>(extent)); };
  for (size_t i = 0; i + 2 < k_points_per_edge; ++i) {
    chosen.add(rows - 1, below(columns));
    chosen.add(0, below(columns));
  }
  for (size_t i = 0; i + 2 < k_points_per_edge; ++i) {
    const int64_t row = below(rows);  // both ends of it: a reference that costs a row is paid once
    chosen.add(row, columns - 1);
    chosen.add(row, 0);
  }
}

void add_lattice(int64_t rows, int64_t columns, size_t most, std::mt19937_64& random, Chosen& chosen) {
  uint64_t size = 1, before = 1;  // consecutive Fibonacci numbers
  while (size + before <= most) before = std::exchange(size, size + before);

  // Point i lies in row floor(i rows / size); a row's points are consecutive.
  std::vector<uint64_t> row_begin{0};
  const auto row_of = [&](uint64_t point) { return static_cast<int64_t>(point * static_cast<uint64_t>(rows) / size); };
  for (uint64_t point = 1; point < size; ++point) {
    if (row_of(point) != row_of(point - 1)) row_begin.push_back(point);
  }
  std::vector<size_t> order(row_begin.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  row_begin.push_back(size);
  for (size_t each : order) {
    for (uint64_t point = row_begin[each]; point < row_begin[each + 1]; ++point) {
      const uint64_t fraction = point * before % size;
      chosen.add(row_of(point), static_cast<int64_t>(fraction * static_cast<uint64_t>(columns) / size));
    }
  }
}

}  // namespace

std::vector<int64_t> demanded_elements(const std::vector<int64_t>& dims, size_t budget, uint64_t seed) {
  const int64_t count = std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
  if (static_cast<uint64_t>(count) <= budget) {
    std::vector<int64_t> all(static_cast<size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  const int64_t columns = dims.back(), rows = count / columns;
  std::mt19937_64 random(seed);
  Chosen chosen(columns, budget);
  add_edges(rows, columns, random, chosen);
  constexpr size_t k_edge_points = 4 * k_points_per_edge + 8;
  if (budget > k_edge_points) add_lattice(rows, columns, budget - k_edge_points, random, chosen);
  return chosen.take();
}

}  // namespace kiln
