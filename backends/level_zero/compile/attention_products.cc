#include "backends/level_zero/compile/attention_products.h"

#include "backends/level_zero/compile/matrix_panel.h"

namespace kiln::level_zero {
namespace {

/// By multiply-adds of lanes.
class LaneProducts final : public AttentionProducts {
 public:
  LaneProducts(AttentionTiles& tiles, const AttentionSpec& spec, const AttentionSchedule& schedule)
      : m_tiles(tiles),
        m_queries(tiles.tile(schedule.tile_rows(), spec.head_dim)),
        m_keys(tiles.tile(schedule.tile_columns(), spec.head_dim)),
        m_values(tiles.tile(schedule.tile_columns(), spec.value_dim)) {}

  void fill_queries(const AttentionTensor& queries, Id first) override { m_tiles.fill(m_queries, queries, first); }
  void fill_keys_and_values(const AttentionTensor& keys, const AttentionTensor& values, Id first) override {
    m_tiles.fill(m_keys, keys, first);
    m_tiles.fill(m_values, values, first);
  }
  AttentionTiles::Block products() override { return m_tiles.products(m_queries, m_keys); }
  void accumulate(const AttentionTiles::Block& sums, const AttentionTiles::Block& weights) override {
    m_tiles.accumulate(sums, weights, m_values);
  }

 private:
  AttentionTiles& m_tiles;
  const LocalTile m_queries, m_keys, m_values;
};

/// By matrix units that work for as many lanes as a sub-group has, so that a lane's column of the first product, rounded to
/// halves, is what it holds of the second's weights. Each 8 rows of a sub-group are a vector's elements.
class UnitProducts final : public AttentionProducts {
 public:
  UnitProducts(Emitter& emitter, AttentionTiles& tiles, const AttentionSpec& spec, const AttentionSchedule& schedule,
               const DeviceFamily& family)
      : e(emitter),
        m_tiles(tiles),
        m_schedule(schedule),
        m_dtype(spec.dtype),
        m_panels(emitter, spec.dtype, family, schedule.group_size()) {
    const int64_t depth = whole_depth(spec.head_dim), columns = schedule.tile_columns();
    m_queries = m_panels.local(MatrixPanel::of_a(schedule.tile_rows(), depth, family.matrix_lanes));
    m_keys = m_panels.local(MatrixPanel::of_b(depth, columns));
    m_values = m_panels.local(MatrixPanel::of_b(columns, whole_depth(spec.value_dim)));
  }

  void fill_queries(const AttentionTensor& queries, Id first) override {
    m_panels.fill(m_queries, lies_along_depth(queries), [&](Id row, Id column, uint32_t element, uint32_t neighbour) {
      const Id of_vector = e.add(first, e.mul(row, number(MatrixUnit::k_rows)));
      const Id depth = e.add(e.mul(column, number(m_queries.run)), number(neighbour));
      return m_tiles.load_or_zero(queries, e.add(of_vector, number(element)), depth);
    });
  }

  void fill_keys_and_values(const AttentionTensor& keys, const AttentionTensor& values, Id first) override {
    m_panels.fill(m_keys, !lies_along_depth(keys), [&](Id row, Id column, uint32_t element, uint32_t neighbour) {
      return m_tiles.load_or_zero(keys, e.add(first, column), along_k(row, element, neighbour));
    });
    m_panels.fill(m_values, lies_along_depth(values), [&](Id row, Id column, uint32_t element, uint32_t neighbour) {
      return m_tiles.load_or_zero(values, e.add(first, along_k(row, element, neighbour)), column);
    });
  }

  AttentionTiles::Block products() override {
    const AttentionTiles::Block sums = m_tiles.zeros(m_schedule.columns);
    e.loop(
        number(0), number(m_keys.rows), number(1),
        [&](Id step) {
          const Id of_lane = e.add(e.mul(step, number(k_sub_group_size)), e.lane());
          for (size_t block = 0; block < blocks(); ++block) {
            const Id a = m_panels.vector(m_queries, row_of_vectors(block), of_lane);
            for (size_t c = 0; c < sums.front().size(); ++c) {
              multiply_add(sums, block, c, {a}, {m_panels.vector(m_keys, step, column(c))});
            }
          }
        },
        spv::LoopControlMask::DontUnroll);
    return sums;
  }

  void accumulate(const AttentionTiles::Block& sums, const AttentionTiles::Block& weights) override {
    for (size_t block = 0; block < blocks(); ++block) {
      Ids a;  // for every 16 keys
      for (size_t j = 0; j < weights.front().size(); ++j) a.push_back(halves_of(weights, block, j));
      for (size_t c = 0; c < sums.front().size(); ++c) {
        Ids b;
        for (size_t j = 0; j < a.size(); ++j) {
          b.push_back(m_panels.vector(m_values, number(static_cast<int64_t>(j)), column(c)));
        }
        multiply_add(sums, block, c, a, b);
      }
    }
  }

 private:
  static int64_t whole_depth(int64_t depth) { return attention_pitch(depth) - 1; }
  static bool lies_along_depth(const AttentionTensor& tensor) {
    const std::vector<int64_t>& strides = tensor.access->strides;
    return strides[2] != 1 || strides[3] == 1;
  }

  Id number(int64_t value) { return m_tiles.number(value); }
  size_t blocks() const { return m_schedule.rows / MatrixUnit::k_rows; }
  static size_t first_row(size_t block) { return block * MatrixUnit::k_rows; }
  /// The sub-group's, of the queries' panel.
  Id row_of_vectors(size_t block) {
    const Id first = e.mul(e.sub_group_id(), number(static_cast<int64_t>(blocks())));
    return e.add(first, number(static_cast<int64_t>(block)));
  }
  Id column(size_t c) { return m_tiles.column_of(number(0), static_cast<int>(c)); }
  /// Along k of the product: of a vector of keys or values in that row.
  Id along_k(Id row, uint32_t element, uint32_t neighbour) {
    return e.add(e.mul(row, number(MatrixUnit::k_depth)), number(int64_t{element} * MatrixUnit::b_run() + neighbour));
  }

  /// The block's 8 numbers of a column.
  Id halves_of(const AttentionTiles::Block& numbers, size_t block, size_t c) {
    Ids halves;
    for (size_t r = 0; r < MatrixUnit::k_rows; ++r) {
      halves.push_back(m_tiles.scalars().to_memory(m_dtype, e.load(numbers[first_row(block) + r][c])));
    }
    return m_panels.unit().operand(halves);
  }

  /// The block's 8 sums of a column += the products of each of `a` and `b`.
  void multiply_add(const AttentionTiles::Block& sums, size_t block, size_t c, const Ids& a, const Ids& b) {
    Ids old;
    for (size_t r = 0; r < MatrixUnit::k_rows; ++r) old.push_back(e.load(sums[first_row(block) + r][c]));
    Id vector = e.compose(m_panels.unit().sums_type(), old);
    for (size_t i = 0; i < a.size(); ++i) vector = m_panels.unit().multiply_add(a[i], b[i], vector);
    for (uint32_t r = 0; r < MatrixUnit::k_rows; ++r) e.store(sums[first_row(block) + r][c], e.component(vector, r));
  }

  Emitter& e;
  AttentionTiles& m_tiles;
  const AttentionSchedule m_schedule;
  const DType m_dtype;
  MatrixPanels m_panels;
  MatrixPanel m_queries, m_keys, m_values;
};

}  // namespace

std::unique_ptr<AttentionProducts> AttentionProducts::create(Emitter& emitter, AttentionTiles& tiles,
                                                             const AttentionSpec& spec,
                                                             const AttentionSchedule& schedule,
                                                             const DeviceFamily& family) {
  if (schedule.by_units) return std::make_unique<UnitProducts>(emitter, tiles, spec, schedule, family);
  return std::make_unique<LaneProducts>(tiles, spec, schedule);
}

}  // namespace kiln::level_zero
