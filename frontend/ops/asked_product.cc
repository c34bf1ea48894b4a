#include "frontend/ops/asked_product.h"

#include <algorithm>

#include "frontend/ops/row_products.h"

namespace kiln {

void NeededLines::add(int64_t number) {
  const auto at = static_cast<size_t>(number);
  if (at >= m_known.size()) m_known.resize(std::max(at + 1, 2 * m_known.size()), 0);
  if (m_known[at] == 0) {
    m_numbers.push_back(number);
    m_known[at] = m_numbers.size();
  }
  m_places.push_back(m_known[at] - 1);
}

void AskedProduct::add(int64_t row, int64_t column, size_t place) {
  rows.add(row);
  columns.add(column);
  places.push_back(place);
}

void multiply_blocks(const AskedProduct& asked, size_t length, const ReadLines& read_rows,
                     const ReadLines& read_columns, std::span<double> out) {
  constexpr size_t k_block_elements = size_t{1} << 22;  // 32 MiB
  const size_t most = std::max<size_t>(k_block_elements / std::max<size_t>(length, 1), 4);
  const std::span<const int64_t> rows = asked.rows.numbers(), columns = asked.columns.numbers();
  std::vector<double> left, right, products;
  for (size_t c = 0; c < columns.size(); c += most) {
    const size_t width = std::min(most, columns.size() - c);
    right.resize(width * length);
    read_columns(columns.subspan(c, width), right.data());
    for (size_t r = 0; r < rows.size(); r += most) {
      const size_t height = std::min(most, rows.size() - r);
      left.resize(height * length);
      read_rows(rows.subspan(r, height), left.data());
      products.resize(height * width);
      row_products(left.data(), height, right.data(), width, length, products.data());
      for (size_t i = 0; i < asked.places.size(); ++i) {
        const size_t row = asked.rows.place_of(i) - r,
                     column = asked.columns.place_of(i) - c;  // huge where it is before
        if (row < height && column < width) out[asked.places[i]] = products[row * width + column];
      }
    }
  }
}

}  // namespace kiln
