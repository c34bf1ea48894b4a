#include <fmt/format.h>

#include "backends/level_zero/compile/gemm_kinds.h"
#include "backends/level_zero/compile/matrix_panel.h"
#include "backends/level_zero/compile/product.h"
#include "backends/level_zero/compile/tile_schedule.h"
#include "backends/schedule_bytes.h"

// Matrix products of halves by the matrix units (DPAS). A work-group makes a tile of C; its sub-groups have blocks of it,
// `down` x `across` of them, a block being `rows` x `columns` of what the units multiply at once.
//
//   A, B   a panel of each, `steps` times 16 deep, computed once by the whole group, in local memory, in vectors as the units
//          take them, those of neighbouring lanes side by side
//   C      sums in registers, vectors of 8 rows
//
// The units add the 16 products of a step in an order of their own; steps follow in order.
namespace kiln::level_zero {
namespace {

using spv::Op;

struct DpasSchedule {
  static constexpr std::string_view k_implementation = k_gemm_dpas;
  static constexpr uint32_t k_version = 1;

  uint8_t down = 4, across = 4;   // sub-groups
  uint8_t rows = 4, columns = 2;  // of a sub-group, in units of what is multiplied at once
  uint8_t steps = 2;              // between barriers

  static auto fields(auto& s) { return std::tie(s.down, s.across, s.rows, s.columns, s.steps); }
  int64_t sub_groups() const { return int64_t{down} * across; }
  int64_t block_rows() const { return int64_t{rows} * MatrixUnit::k_rows; }
  int64_t block_columns(uint32_t lanes) const { return int64_t{columns} * lanes; }
  ProductTile tile(uint32_t lanes) const {
    return {down * block_rows(), across * block_columns(lanes), int64_t{steps} * MatrixUnit::k_depth};
  }
  std::string describe(uint32_t lanes) const {
    const ProductTile t = tile(lanes);
    return fmt::format("dpas tile {}x{} k {}, sub-groups of {}x{}", t.rows, t.columns, t.depth, block_rows(),
                       block_columns(lanes));
  }
};

// With these no family's compiler was seen to run out of registers.
constexpr DpasSchedule k_dpas_schedules[] = {{4, 4, 4, 2, 1}, {4, 2, 2, 2, 2}, {2, 4, 1, 2, 2}, {2, 2, 1, 1, 2}};

MatrixPanel panel_of_a(const ProductTile& tile, uint32_t lanes) {
  return MatrixPanel::of_a(tile.rows, tile.depth, lanes);
}

MatrixPanel panel_of_b(const ProductTile& tile) { return MatrixPanel::of_b(tile.depth, tile.columns); }

int64_t local_bytes(const ProductTile& tile, uint32_t lanes) {
  return panel_of_a(tile, lanes).bytes() + panel_of_b(tile).bytes();
}

class DpasEmitter {
 public:
  DpasEmitter(Emitter& emitter, const KernelSpec& spec, const GemmSpec& gemm, const DpasSchedule& schedule,
              const DeviceFamily& family)
      : e(emitter),
        m_gemm(gemm),
        m_schedule(schedule),
        m_lanes(family.matrix_lanes),
        m_group_size(schedule.sub_groups() * m_lanes),
        m_product(emitter, spec, gemm, schedule.tile(m_lanes), static_cast<uint32_t>(m_group_size), m_lanes),
        m_panels(emitter, gemm.dtype, family, m_group_size) {}

  void run() {
    place_block();
    begin_sums();
    m_a = m_panels.local(panel_of_a(m_schedule.tile(m_lanes), m_lanes));
    m_b = m_panels.local(panel_of_b(m_schedule.tile(m_lanes)));
    // Unrolled, it would need more registers than there are.
    e.loop(
        e.index(0), e.index(m_gemm.k), e.index(m_schedule.tile(m_lanes).depth), [&](Id k) { pass(k); },
        spv::LoopControlMask::DontUnroll);
    finish_sums();
  }

 private:
  Id number(int64_t value) { return e.constant(e.integer(32), value); }

  /// The sub-group's block in the tile.
  void place_block() {
    const Id across = number(m_schedule.across), type = e.integer(32);
    m_row = e.mul(e.op(Op::OpUDiv, type, {e.sub_group_id(), across}), number(m_schedule.rows));
    m_column = e.mul(e.op(Op::OpUMod, type, {e.sub_group_id(), across}), number(m_schedule.block_columns(m_lanes)));
    m_column = e.add(m_column, e.lane());
  }

  void begin_sums() {
    for (int i = 0; i < m_schedule.rows * m_schedule.columns; ++i) {
      m_sums.push_back(e.variable(m_panels.unit().sums_type()));
      e.store(m_sums.back(), e.null(m_panels.unit().sums_type()));
    }
  }

  void fill_a(Id k) {
    m_panels.fill(m_a, m_product.a_lies_along_k(), [&](Id row, Id column, Id element, uint32_t neighbour) {
      const Id first = e.add(m_product.first_row(), e.widen(e.mul(row, number(MatrixUnit::k_rows))));
      const Id at = e.add(k, e.widen(e.mul(column, number(m_a.run))));
      return m_product.a(e.add(first, e.widen(element)), e.add(at, e.index(neighbour)));
    });
  }

  void fill_b(Id k) {
    m_panels.fill(m_b, !m_product.b_lies_along_k(), [&](Id row, Id column, Id element, uint32_t neighbour) {
      const Id first = e.add(k, e.widen(e.mul(row, number(MatrixUnit::k_depth))));
      const Id at = e.add(first, e.widen(e.add(e.mul(element, number(m_b.run)), number(neighbour))));
      return m_product.b(at, e.add(m_product.first_column(), e.widen(column)));
    });
  }

  /// All of the group takes part: a panel of each operand, from k on.
  void pass(Id k) {
    fill_a(k);
    fill_b(k);
    e.barrier(/*global_memory=*/false);
    for (int64_t s = 0; s < m_schedule.steps; ++s) step(s);
    e.barrier(/*global_memory=*/false);
  }

  void step(int64_t step) {
    Ids b;
    for (int j = 0; j < m_schedule.columns; ++j) {
      b.push_back(m_panels.vector(m_b, number(step), e.add(m_column, number(int64_t{j} * m_lanes))));
    }
    const Id column = e.add(e.lane(), number(step * m_lanes));
    for (int i = 0; i < m_schedule.rows; ++i) {
      const Id a = m_panels.vector(m_a, e.add(m_row, number(i)), column);
      for (int j = 0; j < m_schedule.columns; ++j) {
        const Id sums = sums_of(i, j);
        e.store(sums, m_panels.unit().multiply_add(a, b[static_cast<size_t>(j)], e.load(sums)));
      }
    }
  }

  void finish_sums() {
    const Id first_row = e.add(m_product.first_row(), e.widen(e.mul(m_row, number(MatrixUnit::k_rows))));
    const Id first_column = e.add(m_product.first_column(), e.widen(m_column));
    for (int i = 0; i < m_schedule.rows; ++i) {
      for (int j = 0; j < m_schedule.columns; ++j) {
        const Id sums = e.load(sums_of(i, j));
        const Id column = e.add(first_column, e.index(int64_t{j} * m_lanes));
        for (uint32_t r = 0; r < MatrixUnit::k_rows; ++r) {
          const Id row = e.add(first_row, e.index(int64_t{i} * MatrixUnit::k_rows + r));
          m_product.finish(row, column, e.component(sums, r));
        }
      }
    }
  }

  Id sums_of(int i, int j) const { return m_sums[static_cast<size_t>(i) * m_schedule.columns + j]; }

  Emitter& e;
  const GemmSpec& m_gemm;
  const DpasSchedule m_schedule;
  const uint32_t m_lanes;
  const int64_t m_group_size;
  ProductEmitter m_product;
  MatrixPanels m_panels;
  MatrixPanel m_a, m_b;
  Ids m_sums;
  Id m_row = 0, m_column = 0;  // in the tile: the sub-group's first 8 rows, the lane's first column
};

/// Why there is no kernel of the schedule, or ok.
Status validate(const DpasSchedule& schedule, const GemmSpec& gemm, const DeviceFamily& family) {
  constexpr int64_t k_most_sub_groups = 32, k_most_blocks = 8;
  const uint32_t lanes = family.matrix_lanes;
  const auto refuse = [&](std::string_view why) {
    return invalid_argument("level zero gemm, {}: {}", schedule.describe(lanes), why);
  };
  if (!MatrixUnit::multiplies(gemm.dtype, family)) return refuse("no matrix units for such a product");
  if (schedule.sub_groups() * schedule.rows * schedule.columns * schedule.steps == 0) return refuse("a zero extent");
  if (schedule.sub_groups() > k_most_sub_groups) return refuse("the work-group is too large");
  if (schedule.rows * schedule.columns > k_most_blocks) return refuse("too many sums for a lane");
  const ProductTile tile = schedule.tile(lanes);
  if (groups_of(gemm, tile) > k_max_groups) return refuse("too many work-groups");
  if (local_bytes(tile, lanes) > family.local_memory_bytes) return refuse("more local memory than a group has");
  return {};
}

double cost(const GemmSpec& gemm, const DpasSchedule& schedule, uint32_t lanes) {
  constexpr double k_speed = 4;  // over multiply-adds of lanes, staging included: an estimate
  const auto rows = static_cast<double>(schedule.block_rows());
  const auto columns = static_cast<double>(schedule.block_columns(lanes));
  return product_cost(gemm, schedule.tile(lanes), k_speed * (1 / rows + 1 / columns)) / k_speed;
}

}  // namespace

std::vector<GemmCandidate> dpas_candidates(const GemmSpec& gemm, const DeviceFamily& family) {
  std::vector<GemmCandidate> candidates;
  for (const DpasSchedule& schedule : k_dpas_schedules) {
    if (gemm.k == 0 || !validate(schedule, gemm, family).ok()) continue;
    candidates.push_back({{encode_choices(schedule), schedule.describe(family.matrix_lanes)},
                          cost(gemm, schedule, family.matrix_lanes)});
  }
  return candidates;
}

Expected<EmittedKernel> emit_dpas(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                                  const DeviceFamily& family) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<DpasSchedule>(bytes));
  KILN_RETURN_IF_ERROR(validate(schedule, gemm, family));
  DpasEmitter(emitter, spec, gemm, schedule, family).run();
  const auto groups = static_cast<uint32_t>(groups_of(gemm, schedule.tile(family.matrix_lanes)));
  const auto group_size = static_cast<uint32_t>(schedule.sub_groups() * family.matrix_lanes);
  return EmittedKernel{{groups, group_size, static_cast<uint32_t>(spec.buffers.size())}, bit(Feature::matrix_units)};
}

}  // namespace kiln::level_zero
