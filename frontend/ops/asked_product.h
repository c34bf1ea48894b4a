#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace kiln {

/// The rows (or columns) of a matrix that some elements of a product need, each once.
class NeededLines {
 public:
  /// The next element needs the line of this number, from 0 on.
  void add(int64_t number);
  /// In the order in which they were needed first.
  const std::vector<int64_t>& numbers() const { return m_numbers; }
  /// Where in numbers() the line is that an element needs.
  size_t place_of(size_t element) const { return m_places[element]; }
  int64_t number_of(size_t element) const { return m_numbers[m_places[element]]; }

 private:
  std::vector<int64_t> m_numbers;
  std::vector<size_t> m_places;  // of each element's line
  std::vector<size_t> m_known;   // of each number: one more than its place; 0: not needed yet
};

/// The elements of one product of two matrices that are asked for.
struct AskedProduct {
  NeededLines rows, columns;
  std::vector<size_t> places;  // of each element in what is asked

  void add(int64_t row, int64_t column, size_t place);
};

/// Writes the lines of such numbers, one after another.
using ReadLines = std::function<void(std::span<const int64_t> numbers, double* out)>;

/// Computes products of blocks of rows and columns, lines of `length` numbers each, and writes those that are asked for to
/// their places in `out`. A block holds products that nobody asked for: it is for lines that many elements share.
void multiply_blocks(const AskedProduct& asked, size_t length, const ReadLines& read_rows,
                     const ReadLines& read_columns, std::span<double> out);

}  // namespace kiln
