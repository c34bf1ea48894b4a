#include "backends/level_zero/compile/attention_products.h"

#include <optional>

#include "backends/level_zero/compile/matrix_panel.h"
#include "base/ceil_div.h"

namespace kiln::level_zero {
namespace {

/// By multiply-adds of lanes.
class LaneProducts final : public AttentionProducts {
 public:
  LaneProducts(Emitter& emitter, AttentionTiles& tiles, const AttentionSchedule& schedule)
      : e(emitter), m_tiles(tiles), m_schedule(schedule) {}

  Tile tile(int64_t depth, Uses uses) override {
    m_locals.push_back(m_tiles.tile(uses.as_rows ? m_schedule.tile_rows() : m_schedule.tile_columns(), depth));
    return Tile{m_locals.size() - 1};
  }
  void fill(Tile tile, const AttentionTensor& tensor, Id first) override { m_tiles.fill(local(tile), tensor, first); }
  AttentionTiles::Block products(Tile rows, Tile columns) override {
    return m_tiles.products(local(rows), local(columns));
  }
  Sums sums(int64_t depth) override {
    m_sums.push_back(m_tiles.zeros(ceil_div(depth, m_schedule.lanes)));
    return Sums{m_sums.size() - 1};
  }
  void accumulate(Sums sums, const AttentionTiles::Block& weights, Tile tile) override {
    m_tiles.accumulate(values(sums), weights, local(tile));
  }
  void scale(Sums sums, const Ids& factors) override {
    const AttentionTiles::Block block = values(sums);
    for (size_t i = 0; i < block.size(); ++i) {
      for (const Id value : block[i])
        e.store(value, e.op(spv::Op::OpFMul, e.type_of(factors[i]), {e.load(value), factors[i]}));
    }
  }
  AttentionTiles::Block values(Sums sums) override { return m_sums[static_cast<size_t>(sums)]; }

 private:
  const LocalTile& local(Tile tile) const { return m_locals[static_cast<size_t>(tile)]; }

  Emitter& e;
  AttentionTiles& m_tiles;
  const AttentionSchedule m_schedule;
  std::vector<LocalTile> m_locals;
  std::vector<AttentionTiles::Block> m_sums;
};

/// By matrix units. Each 8 rows of a sub-group are a vector's elements. A lane's columns of one product, rounded to halves, are
/// what it holds of another's weights: of each 16, where a sub-group has 8 lanes, two that are 8 apart. So neighbours along k
/// of that product are such columns.
class UnitProducts final : public AttentionProducts {
 public:
  UnitProducts(Emitter& emitter, AttentionTiles& tiles, DType dtype, const AttentionSchedule& schedule,
               const DeviceFamily& family)
      : e(emitter),
        m_tiles(tiles),
        m_schedule(schedule),
        m_dtype(dtype),
        m_panels(emitter, dtype, family, schedule.group_size()) {}

  /// A panel for each use, as their vectors differ.
  Tile tile(int64_t depth, Uses uses) override {
    const int64_t whole = attention_pitch(depth) - 1, columns = m_schedule.tile_columns();
    Panels panels;
    if (uses.as_rows) panels.rows = m_panels.local(MatrixPanel::of_a(m_schedule.tile_rows(), whole, m_schedule.lanes));
    if (uses.as_columns) panels.columns = m_panels.local(MatrixPanel::of_b(whole, columns));
    if (uses.by_weights) panels.by_weights = m_panels.local(MatrixPanel::of_b(columns, whole));
    m_tile_panels.push_back(panels);
    return Tile{m_tile_panels.size() - 1};
  }

  void fill(Tile tile, const AttentionTensor& tensor, Id first) override {
    const auto& [rows, columns, by_weights] = panels(tile);
    const auto element = [&](Id row, Id depth) { return m_tiles.load_or_zero(tensor, e.add(first, row), depth); };
    const bool is_along_depth = lies_along_depth(tensor);
    if (rows) {
      m_panels.fill(*rows, is_along_depth, [&](Id row, Id column, Id place, uint32_t neighbour) {
        const Id of_vector = e.add(e.mul(row, number(MatrixUnit::k_rows)), place);
        return element(of_vector, e.add(e.mul(column, number(rows->run)), number(neighbour)));
      });
    }
    if (columns) {
      m_panels.fill(*columns, !is_along_depth, [&](Id row, Id column, Id place, uint32_t neighbour) {
        return element(column, along_k(row, place, neighbour));
      });
    }
    if (by_weights) {
      m_panels.fill(*by_weights, is_along_depth, [&](Id row, Id column, Id place, uint32_t neighbour) {
        return element(weighted(row, place, neighbour), column);
      });
    }
  }

  AttentionTiles::Block products(Tile rows, Tile columns) override {
    const MatrixPanel &of_rows = *panels(rows).rows, &of_columns = *panels(columns).columns;
    const Vectors sums = zeros(static_cast<size_t>(m_schedule.columns));
    e.loop(
        number(0), number(of_columns.rows), number(1),
        [&](Id step) {
          const Id of_lane = e.add(e.mul(step, number(m_schedule.lanes)), e.lane());
          for (size_t block = 0; block < sums.size(); ++block) {
            const Id a = m_panels.vector(of_rows, row_of_vectors(block), of_lane);
            for (size_t c = 0; c < sums[block].size(); ++c) {
              multiply_add(sums[block][c], a, m_panels.vector(of_columns, step, column(c)));
            }
          }
        },
        spv::LoopControlMask::DontUnroll);
    return rows_of(sums);
  }

  Sums sums(int64_t depth) override {
    m_sums.push_back(zeros(static_cast<size_t>(ceil_div(depth, m_schedule.lanes))));
    return Sums{m_sums.size() - 1};
  }

  void accumulate(Sums sums, const AttentionTiles::Block& weights, Tile tile) override {
    const MatrixPanel& panel = *panels(tile).by_weights;
    const Vectors& vectors = m_sums[static_cast<size_t>(sums)];
    for (size_t block = 0; block < vectors.size(); ++block) {
      Ids a;  // for every 16 columns
      for (size_t c = 0; c < weights.front().size(); c += a_run()) a.push_back(halves_of(weights, block, c));
      for (size_t c = 0; c < vectors[block].size(); ++c) {
        for (size_t j = 0; j < a.size(); ++j) {
          multiply_add(vectors[block][c], a[j], m_panels.vector(panel, number(static_cast<int64_t>(j)), column(c)));
        }
      }
    }
  }

  void scale(Sums sums, const Ids& factors) override {
    const Vectors& vectors = m_sums[static_cast<size_t>(sums)];
    for (size_t block = 0; block < vectors.size(); ++block) {
      const auto first = factors.begin() + static_cast<ptrdiff_t>(first_row(block));
      const Id of_rows = e.compose(m_panels.unit().sums_type(), {first, first + MatrixUnit::k_rows});
      for (const Id vector : vectors[block]) {
        e.store(vector, e.op(spv::Op::OpFMul, e.type_of(of_rows), {e.load(vector), of_rows}));
      }
    }
  }

  AttentionTiles::Block values(Sums sums) override { return rows_of(m_sums[static_cast<size_t>(sums)]); }

 private:
  /// Variables of 8 sums of a lane: of each 8 of the sub-group's rows, for each of the lane's columns.
  using Vectors = std::vector<Ids>;
  struct Panels {
    std::optional<MatrixPanel> rows, columns, by_weights;
  };

  const Panels& panels(Tile tile) const { return m_tile_panels[static_cast<size_t>(tile)]; }
  static bool lies_along_depth(const AttentionTensor& tensor) {
    const std::vector<int64_t>& strides = tensor.access->strides;
    return strides[2] != 1 || strides[3] == 1;
  }

  Id number(int64_t value) { return m_tiles.number(value); }
  static size_t first_row(size_t block) { return block * MatrixUnit::k_rows; }
  /// The sub-group's, of a panel of rows.
  Id row_of_vectors(size_t block) {
    const Id first = e.mul(e.sub_group_id(), number(m_schedule.rows / MatrixUnit::k_rows));
    return e.add(first, number(static_cast<int64_t>(block)));
  }
  Id column(size_t c) { return m_tiles.column_of(number(0), static_cast<int>(c)); }
  uint32_t a_run() { return m_panels.unit().a_run(); }
  /// Along k of the product: of a vector in that row.
  Id along_k(Id row, Id element, uint32_t neighbour) {
    return e.add(e.mul(row, number(MatrixUnit::k_depth)), in_vector(element, neighbour));
  }
  Id in_vector(Id element, uint32_t neighbour) {
    return e.add(e.mul(element, number(MatrixUnit::b_run())), number(neighbour));
  }
  /// The column whose weight is there along k.
  Id weighted(Id row, Id element, uint32_t neighbour) {
    const Id first = e.mul(row, number(MatrixUnit::k_depth)), at = in_vector(element, neighbour);
    const auto type = e.integer(32);
    const Id lane = e.op(spv::Op::OpUDiv, type, {at, number(a_run())}),
             of_lane = e.op(spv::Op::OpUMod, type, {at, number(a_run())});
    return e.add(first, e.add(lane, e.mul(of_lane, number(m_schedule.lanes))));
  }

  /// The block's 8 numbers of as many of a lane's columns as an element of weights has.
  Id halves_of(const AttentionTiles::Block& numbers, size_t block, size_t c) {
    Ids words;
    for (size_t r = 0; r < MatrixUnit::k_rows; ++r) {
      Ids halves;
      for (size_t i = 0; i < a_run(); ++i) {
        halves.push_back(m_tiles.scalars().to_memory(m_dtype, e.load(numbers[first_row(block) + r][c + i])));
      }
      words.push_back(m_panels.unit().pack(halves));
    }
    return m_panels.unit().operand(words);
  }

  Vectors zeros(size_t columns) {
    Vectors vectors(static_cast<size_t>(m_schedule.rows) / MatrixUnit::k_rows);
    const Id type = m_panels.unit().sums_type();
    for (Ids& block : vectors) {
      for (size_t c = 0; c < columns; ++c) e.store(block.emplace_back(e.variable(type)), e.null(type));
    }
    return vectors;
  }

  void multiply_add(Id sums, Id a, Id b) { e.store(sums, m_panels.unit().multiply_add(a, b, e.load(sums))); }

  AttentionTiles::Block rows_of(const Vectors& vectors) {
    AttentionTiles::Block rows = m_tiles.zeros(static_cast<int64_t>(vectors.front().size()));
    for (size_t block = 0; block < vectors.size(); ++block) {
      for (size_t c = 0; c < vectors[block].size(); ++c) {
        const Id vector = e.load(vectors[block][c]);
        for (uint32_t r = 0; r < MatrixUnit::k_rows; ++r)
          e.store(rows[first_row(block) + r][c], e.component(vector, r));
      }
    }
    return rows;
  }

  Emitter& e;
  AttentionTiles& m_tiles;
  const AttentionSchedule m_schedule;
  const DType m_dtype;
  MatrixPanels m_panels;
  std::vector<Panels> m_tile_panels;
  std::vector<Vectors> m_sums;
};

}  // namespace

std::unique_ptr<AttentionProducts> AttentionProducts::create(Emitter& emitter, AttentionTiles& tiles, DType dtype,
                                                             const AttentionSchedule& schedule,
                                                             const DeviceFamily& family) {
  if (schedule.by_units) return std::make_unique<UnitProducts>(emitter, tiles, dtype, schedule, family);
  return std::make_unique<LaneProducts>(emitter, tiles, schedule);
}

}  // namespace kiln::level_zero
