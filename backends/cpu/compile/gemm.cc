#include "backends/cpu/compile/gemm.h"

#include <algorithm>

#include "backends/cpu/compile/gemm_kernels.h"
#include "backends/cpu/compile/gemm_packing.h"
#include "backends/cpu/compile/scalar_emitter.h"
#include "base/limits.h"

/// The loops around the micro-kernel.
///
///   for each slab of columns the call has tasks of        a slab of B: second-level cache
///     for each block of k                                 pack the slab
///       for each group of rows                            pack the group of A, if it is packed
///         for each tile of rows, for each tile of columns: the micro-kernel
///
/// A task is one part of the rows of one slab, and parts of one slab lie next to each other in the grid. A call is
/// given a contiguous range of tasks; it merges the parts of each slab, so a slab is packed once per call however
/// fine the grid is: many tasks cost nothing, and threads share evenly.
namespace kiln::cpu {
namespace {

using llvm::Value;

class GemmDriver {
 public:
  GemmDriver(Emitter& emitter, const GemmProblem& problem, const GemmSchedule& schedule);

  Expected<LaunchShape> emit();

 private:
  // Where the parts of a task's workspace begin.
  struct Workspace {
    int64_t scratch = 0, a = 0, b = 0, columns = 0, partial = 0, total = 0;
  };
  struct Block {  // of k
    Value* k = nullptr;
    Value* count = nullptr;
    Value* flags = nullptr;
  };
  struct Range {
    Value* begin = nullptr;
    Value* end = nullptr;
  };

  bool dot() const { return m_schedule.form == GemmSchedule::Form::dot; }
  bool packs_a() const { return m_schedule.read_a != GemmSchedule::ReadA::direct; }
  bool packs_b() const { return m_schedule.read_b != GemmSchedule::ReadB::direct; }
  int64_t unit() const { return dot() ? 1 : m_problem.lanes; }  // columns per column unit
  int64_t tail() const { return dot() ? 0 : m_problem.gemm->n % m_problem.lanes; }
  int64_t k_block() const { return std::max<int64_t>(1, std::min<int64_t>(m_schedule.k_block, m_problem.gemm->k)); }
  bool partial_in_workspace() const { return m_blocks > 1 && m_problem.partial_sums == nullptr; }
  int64_t partial_row_bytes() const;
  Workspace plan_workspace() const;

  void emit_slab(Value* linear, const Range& parts);
  Block emit_block(Value* number) const;
  void pack_slab(const Range& tiles, const Block& block);
  void pack_group(const Range& rows, const Block& block);
  void emit_group(const Range& rows, const Range& tiles, const Block& block);
  void for_row_shape(Value* tile, const std::function<void(int64_t rows)>& body);
  void for_column_shape(Value* tile, const std::function<void(const TileShape&)>& body);
  void for_segments(const Range& tiles, const Split& split, int64_t plain_end,
                    const std::function<void(const Range&, int64_t width)>& body);
  Value* workspace(int64_t offset) { return m_emission.e.advance(m_workspace, offset); }
  Value* minimum(Value* a, Value* b) { return m_emission.e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, a, b); }
  Value* maximum(Value* a, Value* b) { return m_emission.e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smax, a, b); }

  const GemmProblem& m_problem;
  const GemmSchedule& m_schedule;
  GemmEmission m_emission;
  Split m_rows;     // tiles of m
  Split m_columns;  // tiles of column units
  Split m_slabs;    // of column tiles
  Split m_parts;    // of row tiles
  int64_t m_blocks;
  GemmKernels m_kernels;
  GemmPacking m_pack_a, m_pack_b;
  Workspace m_layout;

  // While the entry is written.
  GemmPlace m_place;
  Value* m_workspace = nullptr;
  Value* m_partial = nullptr;  // the slab's partial sums at row 0
};

Split slabs_of(const GemmSchedule& schedule, const Split& columns) {
  const int64_t per_slab = std::max<int64_t>(1, schedule.slab_vectors / schedule.tile_vectors);
  return Split::of(columns.count, per_slab);
}

GemmDriver::GemmDriver(Emitter& emitter, const GemmProblem& problem, const GemmSchedule& schedule)
    : m_problem(problem),
      m_schedule(schedule),
      m_emission{emitter, problem, schedule},
      m_rows(Split::of(problem.gemm->m, schedule.tile_rows)),
      m_columns(Split::of((problem.gemm->n + unit() - 1) / unit(), schedule.tile_vectors)),
      m_slabs(slabs_of(schedule, m_columns)),
      m_parts{m_rows.count, std::min<int64_t>(schedule.row_parts, m_rows.count)},
      m_blocks(std::max<int64_t>(1, (problem.gemm->k + k_block() - 1) / k_block())),
      m_kernels(m_emission, partial_row_bytes()),
      m_pack_a(m_emission, true),
      m_pack_b(m_emission, false),
      m_layout(plan_workspace()) {}

int64_t GemmDriver::partial_row_bytes() const {
  if (const Access* access = m_problem.partial_sums) {
    return access->strides[access->strides.size() - 2] * m_problem.element_bytes;
  }
  return m_slabs.largest() * m_columns.largest() * m_emission.vector_bytes();
}

GemmDriver::Workspace GemmDriver::plan_workspace() const {
  Workspace layout;
  const auto take = [&](int64_t bytes) {
    const int64_t offset = layout.total;
    layout.total += (bytes + 63) / 64 * 64;
    return offset;
  };
  const int64_t tile_bytes = m_columns.largest() * m_emission.vector_bytes();
  layout.scratch = take(m_kernels.scratch_bytes());
  if (packs_a()) {
    const int64_t group_rows = m_schedule.group_rows + m_rows.largest();
    const bool rows = m_schedule.read_a == GemmSchedule::ReadA::rows;
    layout.a = take(group_rows * (rows ? packed_row_bytes(m_emission) : k_block() * m_problem.element_bytes));
  }
  if (packs_b()) layout.b = take((m_slabs.largest() * k_block() + m_problem.lanes) * tile_bytes);
  if (m_schedule.read_b == GemmSchedule::ReadB::transposed && m_pack_b.transposes_from_scratch()) {
    layout.columns = take(m_columns.largest() * m_problem.lanes * packed_row_bytes(m_emission));
  }
  if (partial_in_workspace()) layout.partial = take(m_parts.largest() * m_rows.largest() * partial_row_bytes());
  return layout;
}

Expected<LaunchShape> GemmDriver::emit() {
  if (m_layout.total > static_cast<int64_t>(limits::k_task_workspace_bytes)) {
    return error(StatusCode::resource_exhausted, "gemm: workspace is {} bytes, limit {}", m_layout.total,
                 limits::k_task_workspace_bytes);
  }
  Emitter& e = m_emission.e;
  const Emitter::Entry entry = e.begin_entry();
  m_place = {entry.buffers, entry.status, nullptr};
  m_workspace = entry.workspace;
  Value* parts = e.index(m_parts.count);
  Value* end = e.ir.CreateUDiv(e.ir.CreateAdd(entry.last_task, e.index(m_parts.count - 1)), parts);
  e.loop(e.ir.CreateUDiv(entry.first_task, parts), end, 1, [&](Value* slab) {
    Value* first = e.ir.CreateMul(slab, parts);
    const Range range{maximum(e.ir.CreateSub(entry.first_task, first), e.index(0)),
                      minimum(e.ir.CreateSub(entry.last_task, first), parts)};
    if (partial_in_workspace()) {
      e.loop(range.begin, range.end, 1,
             [&](Value* part) { emit_slab(slab, {part, e.ir.CreateAdd(part, e.index(1))}); });
    } else {
      emit_slab(slab, range);
    }
  });
  e.ir.CreateRetVoid();
  return LaunchShape{static_cast<uint64_t>(m_problem.batches * m_slabs.count * m_parts.count),
                     static_cast<uint64_t>(m_layout.total)};
}

void GemmDriver::emit_slab(Value* linear, const Range& parts) {
  Emitter& e = m_emission.e;
  Value* slab = e.ir.CreateURem(linear, e.index(m_slabs.count));
  m_place.batch = e.ir.CreateUDiv(linear, e.index(m_slabs.count));
  const Range tiles{m_emission.start_of(m_slabs, slab), m_emission.start_of(m_slabs, e.ir.CreateAdd(slab, e.index(1)))};
  const Range rows{m_emission.start_of(m_parts, parts.begin), m_emission.start_of(m_parts, parts.end)};
  Value* column = e.ir.CreateMul(m_emission.start_of(m_columns, tiles.begin), e.index(unit()));
  m_partial = m_place.buffers;
  if (m_problem.partial_sums != nullptr) {
    m_partial = m_emission.address(*m_problem.partial_sums, m_place, e.index(0), column);
  } else if (partial_in_workspace()) {
    Value* row = m_emission.start_of(m_rows, rows.begin);
    m_partial = e.advance(workspace(m_layout.partial), e.ir.CreateMul(row, e.index(-partial_row_bytes())));
  }
  e.loop(e.index(0), e.index(m_blocks), 1, [&](Value* number) {
    const Block block = emit_block(number);
    if (packs_b()) pack_slab(tiles, block);
    const int64_t group = std::max<int64_t>(1, m_schedule.group_rows / m_schedule.tile_rows);
    if (!packs_a()) return emit_group(rows, tiles, block);
    e.loop(rows.begin, rows.end, group, [&](Value* first) {
      const Range some{first, minimum(e.ir.CreateAdd(first, e.index(group)), rows.end)};
      pack_group(some, block);
      emit_group(some, tiles, block);
    });
  });
}

GemmDriver::Block GemmDriver::emit_block(Value* number) const {
  Emitter& e = m_emission.e;
  Block block;
  block.k = e.ir.CreateMul(number, e.index(k_block()));
  const int64_t k = m_problem.gemm->k;
  if (m_blocks == 1) {
    block.count = e.index(k);
    block.flags = e.index(GemmKernels::k_first | GemmKernels::k_last);
    return block;
  }
  Value* last = e.ir.CreateICmpEQ(number, e.index(m_blocks - 1));
  block.count = e.ir.CreateSelect(last, e.index(k - (m_blocks - 1) * k_block()), e.index(k_block()));
  Value* first = e.ir.CreateICmpEQ(number, e.index(0));
  block.flags = e.ir.CreateOr(e.ir.CreateSelect(first, e.index(GemmKernels::k_first), e.index(0)),
                              e.ir.CreateSelect(last, e.index(GemmKernels::k_last), e.index(0)));
  return block;
}

/// Calls `body` for the runs of equally wide tiles within `tiles`; tiles from `plain_end` on are left out.
void GemmDriver::for_segments(const Range& tiles, const Split& split, int64_t plain_end,
                              const std::function<void(const Range&, int64_t)>& body) {
  Emitter& e = m_emission.e;
  const int64_t bigger = std::min(split.bigger(), plain_end);
  const auto segment = [&](int64_t from, int64_t to, int64_t width) {
    if (from >= to) return;
    const Range part{maximum(tiles.begin, e.index(from)), minimum(tiles.end, e.index(to))};
    e.if_then(e.ir.CreateICmpSLT(part.begin, part.end), [&] { body(part, width); });
  };
  segment(0, bigger, split.small() + 1);
  segment(bigger, plain_end, split.small());
}

void GemmDriver::pack_slab(const Range& tiles, const Block& block) {
  Emitter& e = m_emission.e;
  Value* first_unit = m_emission.start_of(m_columns, tiles.begin);
  Value* unit_bytes = e.ir.CreateMul(block.count, e.index(m_emission.vector_bytes()));
  const auto call_for = [&](Value* tile) {
    Value* unit_index = m_emission.start_of(m_columns, tile);
    GemmPacking::Call call;
    call.place = m_place;
    call.first = e.ir.CreateMul(unit_index, e.index(m_problem.lanes));
    call.k = block.k;
    call.k_count = block.count;
    call.count = e.index(1);
    call.source =
        m_problem.b.plain ? m_emission.address(*m_problem.b.plain, m_place, block.k, call.first) : m_place.buffers;
    call.target = e.advance(workspace(m_layout.b), e.ir.CreateMul(e.ir.CreateSub(unit_index, first_unit), unit_bytes));
    return call;
  };
  if (m_schedule.read_b == GemmSchedule::ReadB::transposed) {
    e.loop(tiles.begin, tiles.end, 1, [&](Value* tile) {
      for_column_shape(tile, [&](const TileShape& shape) {
        m_pack_b.transposed(shape, workspace(m_layout.columns), call_for(tile));
      });
    });
    return;
  }
  const int64_t plain_end = m_columns.count - (tail() != 0);
  for_segments(tiles, m_columns, plain_end, [&](const Range& some, int64_t vectors) {
    GemmPacking::Call call = call_for(some.begin);
    call.count = e.ir.CreateSub(some.end, some.begin);
    m_pack_b.panels(vectors * m_problem.lanes, call);
  });
  if (tail() == 0) return;
  e.if_then(e.ir.CreateICmpEQ(tiles.end, e.index(m_columns.count)), [&] {
    m_pack_b.panels((m_columns.small() - 1) * m_problem.lanes + tail(), call_for(e.index(m_columns.count - 1)));
  });
}

void GemmDriver::pack_group(const Range& rows, const Block& block) {
  Emitter& e = m_emission.e;
  Value* group_first = m_emission.start_of(m_rows, rows.begin);
  GemmPacking::Call call;
  call.place = m_place;
  call.k = block.k;
  call.k_count = block.count;
  if (m_schedule.read_a == GemmSchedule::ReadA::rows) {
    call.first = group_first;
    call.count = e.ir.CreateSub(m_emission.start_of(m_rows, rows.end), group_first);
    call.source = m_place.buffers;
    call.target = workspace(m_layout.a);
    m_pack_a.rows(call);
    return;
  }
  for_segments(rows, m_rows, m_rows.count, [&](const Range& some, int64_t height) {
    call.first = m_emission.start_of(m_rows, some.begin);
    call.count = e.ir.CreateSub(some.end, some.begin);
    call.source =
        m_problem.a.plain ? m_emission.address(*m_problem.a.plain, m_place, call.first, block.k) : m_place.buffers;
    Value* offset = e.ir.CreateMul(e.ir.CreateSub(call.first, group_first), block.count);
    call.target = e.advance(workspace(m_layout.a), e.ir.CreateMul(offset, e.index(m_problem.element_bytes)));
    m_pack_a.panels(height, call);
  });
}

void GemmDriver::emit_group(const Range& rows, const Range& tiles, const Block& block) {
  Emitter& e = m_emission.e;
  Value* group_first = m_emission.start_of(m_rows, rows.begin);
  Value* slab_first = m_emission.start_of(m_columns, tiles.begin);
  // Base addresses at row 0 and column 0, or at the start of what is packed.
  Value* a_base =
      packs_a() ? workspace(m_layout.a) : m_emission.address(*m_problem.a.plain, m_place, e.index(0), block.k);
  Value* a_row_bytes = m_schedule.read_a == GemmSchedule::ReadA::rows ? e.index(packed_row_bytes(m_emission))
                       : packs_a() ? e.ir.CreateMul(block.count, e.index(m_problem.element_bytes))
                                   : e.index(m_problem.a.tile_stride * m_problem.element_bytes);
  Value* b_base =
      packs_b() ? workspace(m_layout.b) : m_emission.address(*m_problem.b.plain, m_place, block.k, e.index(0));
  Value* b_unit_bytes = packs_b() ? e.ir.CreateMul(block.count, e.index(m_emission.vector_bytes()))
                                  : e.index(unit() * m_problem.b.tile_stride * m_problem.element_bytes);
  e.loop(rows.begin, rows.end, 1, [&](Value* row_tile) {
    GemmKernels::Call call;
    call.place = m_place;
    call.scratch = workspace(m_layout.scratch);
    call.k_count = block.count;
    call.flags = block.flags;
    call.m = m_emission.start_of(m_rows, row_tile);
    call.a = e.advance(a_base, e.ir.CreateMul(packs_a() ? e.ir.CreateSub(call.m, group_first) : call.m, a_row_bytes));
    Value* partial_row = e.advance(m_partial, e.ir.CreateMul(call.m, e.index(partial_row_bytes())));
    e.loop(tiles.begin, tiles.end, 1, [&](Value* tile) {
      Value* column = m_emission.start_of(m_columns, tile);
      Value* in_slab = e.ir.CreateSub(column, slab_first);
      call.n = e.ir.CreateMul(column, e.index(unit()));
      call.b = e.advance(b_base, e.ir.CreateMul(packs_b() ? in_slab : column, b_unit_bytes));
      call.partial = e.advance(partial_row, e.ir.CreateMul(in_slab, e.index(unit() * m_problem.element_bytes)));
      for_row_shape(row_tile, [&](int64_t height) {
        for_column_shape(tile, [&](TileShape shape) {
          shape.rows = height;
          m_kernels.run(shape, call);
        });
      });
    });
  });
}

void GemmDriver::for_row_shape(Value* tile, const std::function<void(int64_t)>& body) {
  Emitter& e = m_emission.e;
  if (m_rows.bigger() == 0) return body(m_rows.small());
  e.if_else(
      e.ir.CreateICmpSLT(tile, e.index(m_rows.bigger())),
      [&] {
        body(m_rows.small() + 1);
        return Values{};
      },
      [&] {
        body(m_rows.small());
        return Values{};
      });
}

void GemmDriver::for_column_shape(Value* tile, const std::function<void(const TileShape&)>& body) {
  Emitter& e = m_emission.e;
  const int64_t last = m_columns.count - 1;
  const int64_t plain = m_columns.count - (tail() != 0);  // tiles of whole vectors
  const int64_t bigger = std::min(m_columns.bigger(), plain);
  const auto whole = [&] {
    if (bigger == plain) return body({1, m_columns.small() + 1, 0});
    if (bigger == 0) return body({1, m_columns.small(), 0});
    e.if_else(
        e.ir.CreateICmpSLT(tile, e.index(bigger)),
        [&] {
          body({1, m_columns.small() + 1, 0});
          return Values{};
        },
        [&] {
          body({1, m_columns.small(), 0});
          return Values{};
        });
  };
  if (tail() == 0) return whole();
  const TileShape masked{1, m_columns.small(), tail()};  // the last tile is never one of the bigger
  if (plain == 0) return body(masked);
  e.if_else(
      e.ir.CreateICmpEQ(tile, e.index(last)),
      [&] {
        body(masked);
        return Values{};
      },
      [&] {
        whole();
        return Values{};
      });
}

/// Why a body's expressions cannot be emitted, or ok.
Status body_claims(const Body& body) {
  for (const ScalarNode& node : body.exprs) {
    if (arity(node.op) == 0 || node.op == ScalarOp::cast) continue;
    const DType dtype = body.exprs[node.operands[node.op == ScalarOp::select ? 1 : 0]].dtype;
    if (!ScalarEmitter::supports(node.op, dtype)) {
      return error(StatusCode::unimplemented, "gemm: {} of {} has no meaning", to_string(node.op), to_string(dtype));
    }
  }
  return {};
}

/// The spec in the form that is compiled.
KernelSpec oriented(const KernelSpec& spec, const CpuTarget& target) {
  KernelSpec result = prefers_exchange(spec, target) ? exchanged(spec) : spec;
  auto& gemm = std::get<GemmSpec>(result.kernel);
  // Lanes are columns. Of a single column only the first lane is there; the others need places beside it.
  for (const Store& store : gemm.stores) {
    if (gemm.n == 1) gemm.epilogue.accesses[store.access].strides.back() = 1;
  }
  return result;
}

/// Schedule::tile. m and n are cut into tiles that differ by at most one row and one vector.
std::vector<int64_t> smallest_tile(const GemmSchedule& schedule, const GemmProblem& problem, bool is_exchanged) {
  const auto smallest = [](int64_t count, int64_t most) { return count / ((count + most - 1) / most); };
  const bool dot = schedule.form == GemmSchedule::Form::dot;
  const int64_t unit = dot ? 1 : problem.lanes, units = (problem.gemm->n + unit - 1) / unit;
  std::vector<int64_t> tile(problem.gemm->batch.size(), 1);
  tile.push_back(smallest(problem.gemm->m, schedule.tile_rows));
  tile.push_back(smallest(units, schedule.tile_vectors) * unit);
  if (is_exchanged) std::swap(tile[tile.size() - 2], tile[tile.size() - 1]);
  return tile;
}

}  // namespace

Status gemm_claims(const KernelSpec& spec, const CpuTarget& target) {
  const auto& gemm = std::get<GemmSpec>(spec.kernel);
  for (const Body* body : {&gemm.a, &gemm.b, &gemm.epilogue}) KILN_RETURN_IF_ERROR(body_claims(*body));
  static_cast<void>(target);
  return {};
}

std::vector<Schedule> gemm_candidates(const KernelSpec& spec, const CpuTarget& target) {
  const KernelSpec form = oriented(spec, target);
  const GemmProblem problem = analyse_gemm(form, target);
  std::vector<Schedule> schedules;
  for (const GemmSchedule& schedule : ranked_schedules(problem)) {
    schedules.push_back({encode(schedule), describe(schedule, problem),
                         smallest_tile(schedule, problem, prefers_exchange(spec, target))});
  }
  return schedules;
}

Expected<LaunchShape> emit_gemm(Emitter& emitter, const KernelSpec& spec, const Schedule& schedule) {
  KILN_ASSIGN_OR_RETURN(const GemmSchedule choices, decode_gemm_schedule(schedule.bytes));
  const KernelSpec form = oriented(spec, emitter.target());
  const GemmProblem problem = analyse_gemm(form, emitter.target());
  return GemmDriver(emitter, problem, choices).emit();
}

}  // namespace kiln::cpu
