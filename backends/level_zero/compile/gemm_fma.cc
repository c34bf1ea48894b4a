#include "backends/level_zero/compile/gemm_kinds.h"
#include "backends/level_zero/compile/product.h"
#include "backends/level_zero/compile/tile_schedule.h"
#include "backends/schedule_bytes.h"

// Matrix products by the multiply-adds of lanes. A work-group makes a tile of C; its sub-groups lie one above the other in it.
//
//   A   each sub-group holds its own rows in registers: for 16 values of k at a time, lane l has the one of k + l.
//       A shuffle hands the value of one k to all lanes.
//   B   16 x (tile columns), computed once by the whole group, in local memory; lane l uses columns l, l + 16, …
//   C   sums in registers: `rows` x `columns` of each lane.
//
// Sums run along k in order, one multiply-add each, so the order is fixed whatever the tile.
namespace kiln::level_zero {
namespace {

using spv::Op;

constexpr uint32_t k_step = k_sub_group_size;  // of k

struct FmaSchedule : TileSchedule {
  static constexpr std::string_view k_implementation = k_gemm_fma;
  static constexpr uint32_t k_version = 1;

  ProductTile tile() const { return {tile_rows(), tile_columns(), k_step}; }
};

constexpr FmaSchedule k_fma_schedules[] = {{8, 8, 4}, {4, 4, 2}, {2, 1, 4}};
constexpr int k_most_sums = 64;   // of a lane, in registers
constexpr double k_spilling = 4;  // how much longer a kernel takes for which a family has too few registers

int64_t local_bytes(const GemmSpec& gemm, const FmaSchedule& schedule) {
  return schedule.tile_columns() * k_step * static_cast<int64_t>(size_of(accumulator_of(gemm.dtype)));
}

double cost(const GemmSpec& gemm, const DeviceFamily& family, const FmaSchedule& schedule) {
  const double loads = 1.0 / schedule.rows + 1.0 / schedule.columns;
  const int64_t words = static_cast<int64_t>(size_of(accumulator_of(gemm.dtype)) / 4);
  const int64_t registers = words * (schedule.rows * schedule.columns + schedule.rows + schedule.columns);
  return product_cost(gemm, schedule.tile(), loads) * (registers > family.registers ? k_spilling : 1);
}

class FmaEmitter {
 public:
  FmaEmitter(Emitter& emitter, const KernelSpec& spec, const GemmSpec& gemm, const FmaSchedule& schedule)
      : e(emitter),
        m_gemm(gemm),
        m_schedule(schedule),
        m_product(emitter, spec, gemm, schedule.tile(), schedule.group_size(), k_sub_group_size) {}

  void run() {
    m_row = e.add(m_product.first_row(), e.mul(e.widen(e.sub_group_id()), e.index(m_schedule.rows)));
    m_lane = e.widen(e.lane());
    begin_sums();
    if (m_gemm.k > 0) {
      m_tile = e.local_array(compute_type(), static_cast<uint32_t>(m_schedule.tile_columns()) * k_step);
      e.loop(e.index(0), e.index(m_gemm.k), e.index(k_step), [&](Id k) { step(k); });
    }
    finish_sums();
  }

 private:
  DType compute() const { return m_product.dtype(); }
  Id compute_type() { return m_product.scalars().register_type(compute()); }
  uint32_t alignment() const { return static_cast<uint32_t>(size_of(compute())); }

  void begin_sums() {
    for (int i = 0; i < m_schedule.rows * m_schedule.columns; ++i) {
      m_sums.push_back(e.variable(compute_type()));
      e.store(m_sums.back(), m_product.scalars().identity(Combiner::sum, compute()));
    }
  }

  /// All of the group takes part: 16 values of k.
  void step(Id k) {
    Ids a;
    for (int i = 0; i < m_schedule.rows; ++i) {
      const Id row = e.add(m_row, e.index(i));
      a.push_back(m_product.a(row, e.add(k, m_lane)));
    }
    fill_tile(k);
    e.barrier(/*global_memory=*/false);
    const Id narrow = e.integer(32);
    e.loop(e.constant(narrow, 0), e.constant(narrow, k_step), e.constant(narrow, 1), [&](Id inner) {
      Ids b;
      const Id line = e.add(e.mul(e.widen(inner), e.index(m_schedule.tile_columns())), m_lane);
      for (int j = 0; j < m_schedule.columns; ++j) {
        const Id element = e.add(line, e.index(int64_t{j} * k_sub_group_size));
        b.push_back(e.load(e.array_pointer(m_tile, element), alignment()));
      }
      for (int i = 0; i < m_schedule.rows; ++i) {
        const Id x = e.shuffle(a[static_cast<size_t>(i)], inner);
        for (int j = 0; j < m_schedule.columns; ++j) multiply_add(sum(i, j), x, b[static_cast<size_t>(j)]);
      }
    });
    e.barrier(/*global_memory=*/false);
  }

  /// Neighbouring items read neighbours along the dim in which more of B's accesses are adjacent.
  void fill_tile(Id k) {
    const bool along_k = m_product.b_lies_along_k();
    const int64_t inner = along_k ? k_step : m_schedule.tile_columns();
    const int64_t elements = m_schedule.tile_columns() * k_step;
    e.loop(e.local_id(), e.index(elements), e.index(m_schedule.group_size()), [&](Id number) {
      const Id fast = e.op(Op::OpUMod, e.integer(64), {number, e.index(inner)});
      const Id slow = e.op(Op::OpUDiv, e.integer(64), {number, e.index(inner)});
      const Id line = along_k ? fast : slow, column = along_k ? slow : fast;
      const Id value = m_product.b(e.add(k, line), e.add(m_product.first_column(), column));
      const Id place = along_k ? e.add(e.mul(line, e.index(m_schedule.tile_columns())), column) : number;
      e.store(e.array_pointer(m_tile, place), value, alignment());
    });
  }

  void multiply_add(Id total, Id x, Id y) {
    const Id old = e.load(total), type = compute_type();
    const Id next = is_floating(compute()) ? e.math(OpenCLLIB::Fma, type, {x, y, old}) : e.add(e.mul(x, y), old);
    e.store(total, next);
  }

  void finish_sums() {
    for (int i = 0; i < m_schedule.rows; ++i) {
      const Id row = e.add(m_row, e.index(i));
      for (int j = 0; j < m_schedule.columns; ++j) {
        const Id column = e.add(e.add(m_product.first_column(), m_lane), e.index(int64_t{j} * k_sub_group_size));
        m_product.finish(row, column, e.load(sum(i, j)));
      }
    }
  }

  Id sum(int i, int j) const { return m_sums[static_cast<size_t>(i) * m_schedule.columns + j]; }

  Emitter& e;
  const GemmSpec& m_gemm;
  const FmaSchedule m_schedule;
  ProductEmitter m_product;
  Ids m_sums;
  Id m_row = 0;  // the sub-group's first
  Id m_lane = 0, m_tile = 0;
};

/// Why there is no kernel of the schedule, or ok.
Status validate(const FmaSchedule& schedule, const GemmSpec& gemm, const DeviceFamily& family) {
  const auto refuse = [&](std::string_view why) { return refused("gemm", schedule, why); };
  KILN_RETURN_IF_ERROR(validate("gemm", schedule));
  if (schedule.rows * schedule.columns > k_most_sums) return refuse("too many sums for a lane");
  if (groups_of(gemm, schedule.tile()) > k_max_groups) return refuse("too many work-groups");
  if (local_bytes(gemm, schedule) > family.local_memory_bytes) return refuse("more local memory than a group has");
  return {};
}

}  // namespace

std::vector<GemmCandidate> fma_candidates(const GemmSpec& gemm, const DeviceFamily& family) {
  std::vector<GemmCandidate> candidates;
  for (const FmaSchedule& schedule : k_fma_schedules) {
    if (!validate(schedule, gemm, family).ok()) continue;
    candidates.push_back({{encode_choices(schedule), schedule.describe()}, cost(gemm, family, schedule)});
  }
  return candidates;
}

Expected<EmittedKernel> emit_fma(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes,
                                 const DeviceFamily& family) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<FmaSchedule>(bytes));
  KILN_RETURN_IF_ERROR(validate(schedule, gemm, family));
  FmaEmitter(emitter, spec, gemm, schedule).run();
  const auto groups = static_cast<uint32_t>(groups_of(gemm, schedule.tile()));
  return EmittedKernel{{groups, schedule.group_size(), static_cast<uint32_t>(spec.buffers.size())}};
}

}  // namespace kiln::level_zero
