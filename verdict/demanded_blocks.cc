#include "verdict/demanded_blocks.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/ceil_div.h"

namespace kiln {

namespace {

constexpr double k_share_of_columns = 0.4;  // of the work, at most, for columns of all rows
constexpr double k_share_without_lines = 0.25;
constexpr double k_least_share = 0.1;  // of what rows cost, for their elements
constexpr size_t k_fewest_rows = 16;
constexpr int64_t k_most_groups = 16;
constexpr size_t k_block_elements = size_t{1} << 18;

/// So far apart that every tile holds one, and that places in the tiles differ.
int64_t distance_in(int64_t tile) { return std::max<int64_t>(tile - 1, 1); }

std::vector<int64_t> from_to(int64_t begin, int64_t end) {
  std::vector<int64_t> list(static_cast<size_t>(end - begin));
  std::iota(list.begin(), list.end(), begin);
  return list;
}

/// `most` of the list, evenly spread; the first and the last among them.
std::vector<int64_t> thinned(const std::vector<int64_t>& list, size_t most) {
  if (list.size() <= most || most < 2) return list;
  std::vector<int64_t> kept;
  for (size_t i = 0; i < most; ++i) kept.push_back(list[i * (list.size() - 1) / (most - 1)]);
  return kept;
}

/// Runs of `width` columns, one in every `distance` from `phase` on, and both ends.
std::vector<int64_t> runs(int64_t extent, int64_t distance, int64_t width, int64_t phase) {
  std::vector<int64_t> list;
  if (width < distance) list.push_back(0);
  for (int64_t begin = width < distance ? phase : 0; begin < extent; begin += distance) {
    for (int64_t i = begin; i < std::min(begin + std::min(width, distance), extent); ++i) {
      if (list.empty() || i > list.back()) list.push_back(i);
    }
  }
  if (list.back() != extent - 1) list.push_back(extent - 1);
  return list;
}

class Chooser {
 public:
  Chooser(const Demand& demand, double work) : m_demand(demand), m_work(work) {
    const std::vector<int64_t>& dims = demand.dims;
    const int64_t count = std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
    m_columns = dims.empty() ? 1 : dims.back();
    m_rows = count == 0 ? 0 : count / m_columns;
    m_height = dims.size() < 2 ? 1 : dims[dims.size() - 2];
    m_tile_rows = std::clamp<int64_t>(demand.tile_rows, 1, std::max<int64_t>(m_height, 1));
    m_tile_columns = std::clamp<int64_t>(demand.tile_columns, 1, std::max<int64_t>(m_columns, 1));
  }

  DemandedBlocks choose() {
    if (m_rows == 0) return {};
    if (work_of(static_cast<size_t>(m_rows), static_cast<size_t>(m_columns)) <= m_work) {
      const std::vector<int64_t> all_rows = from_to(0, m_rows), all_columns = from_to(0, m_columns);
      add(all_rows, all_columns);
      count_tiles(all_rows, all_columns, {});
      return std::move(m_result);
    }
    int64_t distance = distance_in(m_tile_columns);
    const size_t tiles_wide = runs(m_columns, distance, 1, distance / 2).size();
    m_work = affordable_work(tiles_wide);
    const std::vector<int64_t> rows = choose_rows(m_work / work_of(1, tiles_wide));
    const double one_a_tile = work_of(rows.size(), tiles_wide);
    const std::vector<int64_t> whole_columns = choose_whole_columns(m_work - one_a_tile);
    const double of_rows = static_cast<double>(rows.size()) * m_demand.row_work;
    const double left = std::max(m_work - work_of_columns(whole_columns.size()) - of_rows, k_least_share * of_rows);
    const double width = left / (one_a_tile - of_rows);
    if (width < 1) {
      distance = std::min(static_cast<int64_t>(static_cast<double>(distance) / std::max(width, 1e-3)), m_columns);
    }
    const auto wide = std::clamp<int64_t>(static_cast<int64_t>(std::min(width, 1e9)), 1, distance);
    add_groups(rows, distance, wide);
    if (!whole_columns.empty()) add(from_to(0, m_rows), whole_columns);
    count_tiles(rows, runs(m_columns, distance, wide, 0), whole_columns);
    return std::move(m_result);
  }

 private:
  double work_of(size_t rows, size_t columns) const {
    return static_cast<double>(rows) * (m_demand.row_work + static_cast<double>(columns) * m_demand.element_work);
  }
  double work_of_columns(size_t columns) const {
    return columns == 0 ? 0 : work_of(static_cast<size_t>(m_rows), columns);
  }

  /// All of it where it buys what is looked for, whole rows and columns; else enough for an element of each tile, and a
  /// share.
  double affordable_work(size_t tiles_wide) const {
    const size_t rows = choose_rows(1e9).size();
    const bool by_rows = m_demand.row_work > 0;
    const double lines = by_rows ? work_of(static_cast<size_t>(m_rows), tiles_wide)
                                 : work_of(rows, static_cast<size_t>(m_columns)) + work_of_columns(tiles_wide);
    if (lines <= m_work) return m_work;
    return std::min(std::max(work_of(rows, tiles_wide), k_share_without_lines * m_work), m_work);
  }

  /// None where every row is looked at anyway, or costs much by itself.
  std::vector<int64_t> choose_whole_columns(double left) const {
    if (m_tile_rows == 1 || m_demand.row_work > 0) return {};
    const int64_t distance = distance_in(m_tile_columns);
    const double affordable =
        std::clamp(left, 0.0, k_share_of_columns * m_work) / (static_cast<double>(m_rows) * m_demand.element_work);
    const auto most = static_cast<size_t>(std::min(affordable, 1e9));
    return most < 2 ? std::vector<int64_t>{} : thinned(runs(m_columns, distance, 1, distance / 2), most);
  }

  std::vector<int64_t> choose_rows(double affordable) const {
    std::vector<int64_t> rows;
    for (int64_t matrix = 0; matrix < m_rows / m_height; ++matrix) {
      for (const int64_t row : runs(m_height, distance_in(m_tile_rows), 1, distance_in(m_tile_rows) / 2))
        rows.push_back(matrix * m_height + row);
    }
    const auto most = static_cast<size_t>(std::clamp(affordable, double{k_fewest_rows}, 1e9));
    return thinned(rows, most);
  }

  /// Parts of the rows look at other columns of the tiles, so that what is wrong in one lane of all tiles shows. Neighbours
  /// stay together: what the reference needs for a row often serves the next one.
  void add_groups(const std::vector<int64_t>& rows, int64_t distance, int64_t width) {
    const auto wanted = static_cast<size_t>(std::min((distance + width - 1) / width, k_most_groups));
    const size_t groups = std::min(wanted, rows.size());
    for (size_t group = 0; group < groups; ++group) {
      const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(group * rows.size() / groups);
      const auto end = rows.begin() + static_cast<std::ptrdiff_t>((group + 1) * rows.size() / groups);
      const std::vector<int64_t> members(begin, end);
      const auto phase = static_cast<int64_t>(group) * distance / static_cast<int64_t>(groups);
      add(members, runs(m_columns, distance, width, phase));
    }
  }

  /// Cut so that no block is too large to be evaluated at once.
  void add(const std::vector<int64_t>& rows, const std::vector<int64_t>& columns) {
    if (rows.empty() || columns.empty()) return;
    const size_t high = std::min(rows.size(), k_block_elements);
    const size_t wide = std::max<size_t>(k_block_elements / high, 1);
    for (size_t c = 0; c < columns.size(); c += wide) {
      for (size_t r = 0; r < rows.size(); r += high) {
        const auto from = [](const std::vector<int64_t>& list, size_t begin, size_t count) {
          const auto first = list.begin() + static_cast<std::ptrdiff_t>(begin);
          return std::vector<int64_t>(first, first + static_cast<std::ptrdiff_t>(std::min(count, list.size() - begin)));
        };
        m_result.blocks.push_back({from(rows, r, high), from(columns, c, wide)});
      }
    }
  }

  void count_tiles(const std::vector<int64_t>& rows, const std::vector<int64_t>& columns,
                   const std::vector<int64_t>& whole_columns) {
    const auto distinct = [](const std::vector<int64_t>& list, const std::function<int64_t(int64_t)>& tile_of) {
      std::vector<int64_t> tiles;
      for (const int64_t each : list) tiles.push_back(tile_of(each));
      std::ranges::sort(tiles);
      return static_cast<uint64_t>(std::ranges::unique(tiles).begin() - tiles.begin());
    };
    const int64_t tiles_high = ceil_div(m_height, m_tile_rows);
    const auto row_tile = [&](int64_t row) { return row / m_height * tiles_high + row % m_height / m_tile_rows; };
    const auto column_tile = [&](int64_t column) { return column / m_tile_columns; };
    const auto all_high = static_cast<uint64_t>(m_rows / m_height * tiles_high);
    const uint64_t high = distinct(rows, row_tile);
    m_result.tiles = all_high * static_cast<uint64_t>(ceil_div(m_columns, m_tile_columns));
    m_result.tiles_met =
        high * distinct(columns, column_tile) + (all_high - high) * distinct(whole_columns, column_tile);
  }

  const Demand& m_demand;
  double m_work;
  int64_t m_rows = 0, m_columns = 1, m_height = 1, m_tile_rows = 1, m_tile_columns = 1;
  DemandedBlocks m_result;
};

}  // namespace

DemandedBlocks demanded_blocks(const Demand& demand, double share) {
  return Chooser(demand, share * demand.work).choose();
}

}  // namespace kiln
