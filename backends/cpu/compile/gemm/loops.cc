#include "backends/cpu/compile/gemm/loops.h"

#include "backends/cpu/compile/gemm/packing.h"
#include "base/ceil_div.h"

/// The loops around the kernel of a tile.
///
///   for each slab of columns the call has tasks of        a slab of B: second-level cache
///     for each block of k                                 pack the slab
///       for each group of rows                            pack the group of A, if it is packed
///         for each tile of rows, for each tile of columns: the kernel
///
/// A task is one part of the rows of one slab, and parts of one slab lie next to each other in the grid. A call is
/// given a contiguous range of tasks; it merges the parts of each slab, so a slab is packed once per call however
/// fine the grid is: many tasks cost nothing, and threads share evenly.
namespace kiln::cpu {
namespace {

using llvm::Value;

class GemmLoops {
 public:
  GemmLoops(GemmEmission& emission, GemmTileKernel& kernel);

  LaunchShape emit();

 private:
  // Where the parts of a task's workspace begin.
  struct Workspace {
    int64_t scratch = 0, a = 0, b = 0, columns = 0, partial = 0, total = 0;
  };
  struct Block {             // of k
    Value* k = nullptr;      // its first element
    Value* count = nullptr;  // of steps
    Value* flags = nullptr;
  };
  struct Range {
    Value* begin = nullptr;
    Value* end = nullptr;
  };
  /// m or n as it is cut into tiles, in rows or in units. Where it is known, the pieces of a split; where it is the launch's, as
  /// many whole tiles as there are, and one of what is left.
  struct Cut {
    Split split;             // of the launch's: one tile
    Value* count = nullptr;  // of tiles
    Value* total = nullptr;  // of the launch's
    Value* first = nullptr;  // of the launch's: where they begin
  };
  /// Tiles of one width, in rows or in units; `exist`: how many rows or columns of the only one, null for all.
  struct Run {
    Range tiles;
    int64_t width = 1;
    Value* exist = nullptr;
  };

  int64_t unit() const { return m_blocking.unit; }
  /// One step of k of a packed unit of B.
  int64_t packed_unit_bytes() const { return unit() * m_g.packed_bytes(); }
  /// A whole unit of a block of a packed B.
  Value* packed_unit_bytes(const Block& block) const {
    return m_g.e.ir.CreateMul(m_g.e.ir.CreateAdd(block.count, m_g.e.index(m_g.extra_steps())),
                              m_g.e.index(packed_unit_bytes()));
  }
  Workspace plan_workspace() const;
  bool is_sized() const { return m_problem.sized != nullptr; }

  void cut();
  bool has_groups() const { return m_problem.gemm->groups.has_value(); }
  void emit_groups(const Emitter::Entry& entry);
  Value* for_groups(const std::function<void(Value* before, Value* weight)>& body);
  Value* end_of_group() const;
  void emit_parts(const Range& all);
  Value* start_of(const Cut& cut, Value* tile) const;
  Range parts_of(const Emitter::Entry& entry) const;
  void emit_slab(Value* linear, const Range& parts);
  Block emit_block(Value* number) const;
  void pack_slab(const Range& tiles, const Block& block);
  void pack_group(const Range& rows, const Block& block);
  void emit_group(const Range& rows, const Range& tiles, const Block& block);
  void run_tile(Value* row_tile, Value* tile, const GemmTileCall& call);
  void for_row_shape(Value* tile, const std::function<void(int64_t rows)>& body);
  void for_column_shape(Value* tile, const std::function<void(const TileShape&)>& body);
  void run_sized_tile(const GemmTileCall& call);
  void for_runs(const Range& tiles, const Cut& cut, int64_t unit, const std::function<void(const Run&)>& body);
  void for_known_runs(const Range& tiles, const Split& split, int64_t plain_end,
                      const std::function<void(const Run&)>& body);
  Value* workspace(int64_t offset) { return m_g.e.advance(m_workspace, offset); }
  void either(Value* condition, const std::function<void()>& then, const std::function<void()>& otherwise) {
    const auto nothing = [](const std::function<void()>& body) {
      return [&body] {
        body();
        return Values{};
      };
    };
    m_g.e.if_else(condition, nothing(then), nothing(otherwise));
  }
  Value* minimum(Value* a, Value* b) const { return m_g.e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, a, b); }
  Value* maximum(Value* a, Value* b) const { return m_g.e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smax, a, b); }

  GemmEmission& m_g;
  const GemmProblem& m_problem;
  const GemmBlocking& m_blocking;
  const GemmGrid& m_grid;
  GemmTileKernel& m_kernel;
  GemmPacking m_pack_a, m_pack_b;
  Workspace m_layout;

  // While the entry is written.
  GemmPlace m_place;
  Cut m_rows, m_columns;
  Value *m_slabs = nullptr, *m_parts = nullptr, *m_blocks = nullptr;  // how many
  Value* m_workspace = nullptr;
  Value* m_partial = nullptr;  // the slab's partial sums at row 0
};

GemmLoops::GemmLoops(GemmEmission& emission, GemmTileKernel& kernel)
    : m_g(emission),
      m_problem(emission.problem),
      m_blocking(emission.blocking),
      m_grid(emission.grid),
      m_kernel(kernel),
      m_pack_a(emission, true),
      m_pack_b(emission, false),
      m_layout(plan_workspace()) {}

GemmLoops::Workspace GemmLoops::plan_workspace() const {
  Workspace layout;
  const auto take = [&](int64_t bytes) {
    const int64_t offset = layout.total;
    layout.total += round_up(bytes, 64);
    return offset;
  };
  const int64_t k_block = m_blocking.k_block, row_bytes = packed_row_bytes(m_g);
  layout.scratch = take(m_kernel.scratch_bytes());
  if (m_blocking.packs_a()) {
    const int64_t group_rows = m_blocking.group_rows + m_grid.rows.largest();
    layout.a = take(group_rows * (m_blocking.read_a == ReadA::rows ? row_bytes : k_block * m_g.packed_bytes()));
  }
  if (m_blocking.packs_b()) {
    const int64_t tile_bytes = m_grid.columns.largest() * packed_unit_bytes();
    layout.b = take((m_grid.slabs.largest() * (k_block + m_g.extra_steps()) + m_g.sum_lanes()) * tile_bytes);
  }
  if (m_blocking.read_b == ReadB::transposed && m_pack_b.transposes_from_scratch()) {
    layout.columns = take(m_grid.columns.largest() * unit() * row_bytes);
  }
  if (m_g.has_partial_sums_in_workspace()) {
    layout.partial = take(m_grid.parts.largest() * m_grid.rows.largest() * m_g.partial_row_bytes());
  }
  return layout;
}

LaunchShape GemmLoops::emit() {
  Emitter& e = m_g.e;
  const Emitter::Entry entry = e.begin_entry();
  m_place = {.buffers = entry.buffers, .status = entry.status, .extents = entry.extents};
  m_g.load_numbers(m_place);
  m_workspace = entry.workspace;
  m_kernel.enter(workspace(m_layout.scratch));
  if (has_groups()) {
    emit_groups(entry);
  } else {
    cut();
    emit_parts(parts_of(entry));
  }
  m_kernel.leave(workspace(m_layout.scratch));
  e.ir.CreateRetVoid();
  int64_t tasks = m_problem.batches * m_grid.slabs.count * m_grid.parts.count;
  if (is_sized()) tasks = m_problem.sized->launch.carries_tasks() ? 0 : worthwhile_tasks(m_problem);
  return LaunchShape{static_cast<uint64_t>(tasks), static_cast<uint64_t>(m_layout.total)};
}

void GemmLoops::emit_parts(const Range& all) {
  Emitter& e = m_g.e;
  Value* end = e.ceil_div(all.end, m_parts);
  e.loop(e.ir.CreateUDiv(all.begin, m_parts), end, 1, [&](Value* slab) {
    Value* first = e.ir.CreateMul(slab, m_parts);
    const Range range{maximum(e.ir.CreateSub(all.begin, first), e.index(0)),
                      minimum(e.ir.CreateSub(all.end, first), m_parts)};
    if (!m_g.has_partial_sums_in_workspace()) return emit_slab(slab, range);
    const int64_t at_once = is_sized() ? m_grid.parts.total : 1;
    e.loop(range.begin, range.end, at_once, [&](Value* part) {
      Value* next = e.ir.CreateAdd(part, e.index(at_once));
      emit_slab(slab, {part, at_once == 1 ? next : minimum(next, range.end)});
    });
  });
}

/// Where the group at m_place.batch ends, as data say.
Value* GemmLoops::end_of_group() const {
  Emitter& e = m_g.e;
  const GemmGroups& groups = *m_problem.gemm->groups;
  const DType dtype = m_problem.spec->buffers[groups.ends.buffer].dtype;
  const auto bytes = static_cast<int64_t>(size_of(dtype));
  Value* buffer = e.load(e.pointer(), e.advance(m_place.buffers, int64_t{groups.ends.buffer} * 8), 8);
  Value* offset = e.ir.CreateMul(m_g.batch_indices(m_place)[0], e.index(groups.ends.strides[0] * bytes));
  Value* end = e.load(dtype == DType::i32 ? e.i32() : e.i64(),
                      e.advance(e.advance(buffer, groups.ends.offset * bytes), offset), static_cast<uint64_t>(bytes));
  return e.ir.CreateSExt(end, e.i64());
}

/// Calls `body` for each group, whose rows or elements along k the place has then: with how much all parts before weigh, and one
/// of the group's. The weight of all.
Value* GemmLoops::for_groups(const std::function<void(Value* before, Value* weight)>& body) {
  Emitter& e = m_g.e;
  const bool are_rows = m_g.has_groups(GemmGroups::Along::m);
  Value* extent = are_rows ? m_g.whole_m(m_place) : m_g.whole_k(m_place);
  Value* groups = m_g.batch_extent(m_place, 0);
  Value* all = are_rows ? e.ir.CreateAdd(groups, e.index(1)) : groups;  // rows of no group come last
  return e.loop(e.index(0), all, 1, {e.index(0), e.index(0)}, [&](Value* group, const Values& now) {
    m_place.batch = group;
    m_place.begin = now[0];
    // No group begins before another one ends, nor ends where nothing is.
    Value* end = maximum(minimum(end_of_group(), extent), now[0]);
    m_place.end = are_rows ? e.ir.CreateSelect(e.ir.CreateICmpEQ(group, groups), extent, end) : end;
    cut();
    Value* weight = are_rows ? e.index(1) : e.ir.CreateAdd(m_g.steps(m_place), e.index(1));
    body(now[1], weight);
    Value* parts = e.ir.CreateMul(m_slabs, m_parts);
    return Values{m_place.end, e.ir.CreateAdd(now[1], e.ir.CreateMul(parts, weight))};
  })[1];
}

/// Tasks share what all groups weigh evenly: which parts are a task's is known once the ends are.
void GemmLoops::emit_groups(const Emitter::Entry& entry) {
  Emitter& e = m_g.e;
  Value* total = for_groups([](Value*, Value*) {});
  Value* tasks = m_g.tasks(m_place);
  Value* first = e.even_start(entry.first_task, total, tasks);
  Value* last = e.even_start(entry.last_task, total, tasks);
  for_groups([&](Value* before, Value* weight) {
    Value* parts = e.ir.CreateMul(m_slabs, m_parts);
    const auto part = [&](Value* at) {
      Value* within = maximum(e.ir.CreateSub(at, before), e.index(0));
      return minimum(e.ceil_div(within, weight), parts);
    };
    const Range range{part(first), part(last)};
    e.if_then(e.ir.CreateICmpSLT(range.begin, range.end), [&] { emit_parts(range); });
  });
}

/// Counts what the grid has. Where sizes are the launch's, each tile of rows is a part of its own.
void GemmLoops::cut() {
  Emitter& e = m_g.e;
  if (!is_sized()) {
    m_rows = {m_grid.rows, e.index(m_grid.rows.count)};
    m_columns = {m_grid.columns, e.index(m_grid.columns.count)};
    m_slabs = e.index(m_grid.slabs.count);
    m_parts = e.index(m_grid.parts.count);
    m_blocks = e.index(m_grid.blocks);
    return;
  }
  const auto pieces = [&](Value* total, int64_t size) { return e.ceil_div(total, e.index(size)); };
  Value* first = m_g.first_m(m_place);
  Value *m = e.ir.CreateSub(m_g.m(m_place), first), *n = m_g.n(m_place), *units = pieces(n, unit());
  m_rows = {m_grid.rows, pieces(m, m_blocking.tile_rows), m, first};
  m_columns = {m_grid.columns, pieces(units, m_blocking.tile_units), units, e.index(0)};
  m_parts = m_rows.count;
  m_blocks = m_grid.blocks == 1 ? e.index(1) : pieces(m_g.steps(m_place), m_blocking.k_block);
  if (has_groups()) m_blocks = maximum(m_blocks, e.index(1));  // one of nothing
  m_slabs = pieces(m_columns.count, m_grid.slabs.total);
  if (!m_blocking.packs_b() || m_blocking.packs_a()) return;
  // Narrow slabs have A read more often, wide ones are packed by several threads: that costs more where B is the larger.
  Value* narrow = maximum(m_slabs, minimum(m_columns.count, m_g.tasks(m_place)));
  m_slabs = e.ir.CreateSelect(e.ir.CreateICmpSGE(n, m), narrow, m_slabs);
}

Value* GemmLoops::start_of(const Cut& cut, Value* tile) const {
  if (cut.total == nullptr) return m_g.start_of(cut.split, tile);
  Value* start = minimum(m_g.e.ir.CreateMul(tile, m_g.e.index(cut.split.total)), cut.total);
  return m_g.e.ir.CreateAdd(cut.first, start);
}

/// The parts of slabs, counted through all of them, that a call is to compute.
GemmLoops::Range GemmLoops::parts_of(const Emitter::Entry& entry) const {
  if (!is_sized()) return {entry.first_task, entry.last_task};
  Emitter& e = m_g.e;
  Value* parts = e.ir.CreateMul(m_slabs, m_parts);
  for (size_t dim = 0; dim < m_problem.gemm->batch.size(); ++dim) {
    parts = e.ir.CreateMul(parts, m_g.batch_extent(m_place, dim));
  }
  Value* tasks = m_g.tasks(m_place);
  return {e.even_start(entry.first_task, parts, tasks), e.even_start(entry.last_task, parts, tasks)};
}

void GemmLoops::emit_slab(Value* linear, const Range& parts) {
  Emitter& e = m_g.e;
  Value* slab = e.ir.CreateURem(linear, m_slabs);
  if (!has_groups()) m_place.batch = e.ir.CreateUDiv(linear, m_slabs);
  const auto slab_start = [&](Value* number) { return e.even_start(number, m_columns.count, m_slabs); };
  const Range tiles{slab_start(slab), slab_start(e.ir.CreateAdd(slab, e.index(1)))};
  const auto part_start = [&](Value* number) {
    return is_sized() ? number : e.even_start(number, m_rows.count, m_parts);
  };
  const Range rows{part_start(parts.begin), part_start(parts.end)};
  Value* column = e.ir.CreateMul(start_of(m_columns, tiles.begin), e.index(unit()));
  m_partial = m_place.buffers;
  if (m_problem.partial_sums != nullptr) {
    m_partial = m_g.address(*m_problem.partial_sums, m_place, e.index(0), column);
  } else if (m_g.has_partial_sums_in_workspace()) {
    Value* row = start_of(m_rows, rows.begin);
    m_partial = e.advance(workspace(m_layout.partial), e.ir.CreateMul(row, e.index(-m_g.partial_row_bytes())));
  }
  e.loop(e.index(0), m_blocks, 1, [&](Value* number) {
    const Block block = emit_block(number);
    if (m_blocking.packs_b()) pack_slab(tiles, block);
    const int64_t group = std::max<int64_t>(1, m_blocking.group_rows / m_blocking.tile_rows);
    if (!m_blocking.packs_a()) return emit_group(rows, tiles, block);
    e.loop(rows.begin, rows.end, group, [&](Value* first) {
      const Range some{first, minimum(e.ir.CreateAdd(first, e.index(group)), rows.end)};
      pack_group(some, block);
      emit_group(some, tiles, block);
    });
  });
}

GemmLoops::Block GemmLoops::emit_block(Value* number) const {
  Emitter& e = m_g.e;
  Block block;
  block.k = e.ir.CreateAdd(m_g.first_k(m_place), e.ir.CreateMul(number, e.index(m_blocking.k_block * m_g.k_group())));
  const int64_t steps = m_problem.steps();
  if (m_grid.blocks == 1) {
    block.count = m_g.steps(m_place);
    block.flags = e.index(GemmTileCall::k_first | GemmTileCall::k_last);
    return block;
  }
  Value* last = e.ir.CreateICmpEQ(number, e.ir.CreateSub(m_blocks, e.index(1)));
  Value* before = e.ir.CreateMul(number, e.index(m_blocking.k_block));
  block.count = is_sized() ? minimum(e.ir.CreateSub(m_g.steps(m_place), before), e.index(m_blocking.k_block))
                           : e.ir.CreateSelect(last, e.index(steps - (m_grid.blocks - 1) * m_blocking.k_block),
                                               e.index(m_blocking.k_block));
  Value* first = e.ir.CreateICmpEQ(number, e.index(0));
  block.flags = e.ir.CreateOr(e.ir.CreateSelect(first, e.index(GemmTileCall::k_first), e.index(0)),
                              e.ir.CreateSelect(last, e.index(GemmTileCall::k_last), e.index(0)));
  return block;
}

/// Calls `body` for the runs of equally wide tiles within `tiles`, in units of so many rows or columns.
void GemmLoops::for_runs(const Range& tiles, const Cut& cut, int64_t unit,
                         const std::function<void(const Run&)>& body) {
  if (cut.total == nullptr) {
    const int64_t tail = &cut == &m_columns ? m_grid.tail : 0;
    return for_known_runs(tiles, cut.split, cut.split.count - (tail != 0), body);
  }
  Emitter& e = m_g.e;
  Value* extent = &cut == &m_columns ? m_g.n(m_place) : cut.total;
  const int64_t width = cut.split.total;
  Value* whole_tiles = e.ir.CreateUDiv(extent, e.index(width * unit));
  const Range whole{tiles.begin, minimum(tiles.end, whole_tiles)};
  e.if_then(e.ir.CreateICmpSLT(whole.begin, whole.end), [&] { body({whole, width}); });
  e.if_then(e.ir.CreateICmpSLT(whole_tiles, tiles.end), [&] {
    Value* exist = e.ir.CreateSub(extent, e.ir.CreateMul(whole_tiles, e.index(width * unit)));
    body({{whole_tiles, tiles.end}, width, exist});
  });
}

/// Tiles from `plain_end` on are left out.
void GemmLoops::for_known_runs(const Range& tiles, const Split& split, int64_t plain_end,
                               const std::function<void(const Run&)>& body) {
  Emitter& e = m_g.e;
  const int64_t bigger = std::min(split.bigger(), plain_end);
  const auto segment = [&](int64_t from, int64_t to, int64_t width) {
    if (from >= to) return;
    const Range part{maximum(tiles.begin, e.index(from)), minimum(tiles.end, e.index(to))};
    e.if_then(e.ir.CreateICmpSLT(part.begin, part.end), [&] { body({part, width}); });
  };
  segment(0, bigger, split.small() + 1);
  segment(bigger, plain_end, split.small());
}

void GemmLoops::pack_slab(const Range& tiles, const Block& block) {
  Emitter& e = m_g.e;
  Value* first_unit = start_of(m_columns, tiles.begin);
  Value* unit_bytes = packed_unit_bytes(block);
  const auto call_for = [&](Value* tile) {
    Value* unit_index = start_of(m_columns, tile);
    GemmPacking::Call call;
    call.place = m_place;
    call.first = e.ir.CreateMul(unit_index, e.index(unit()));
    call.k = block.k;
    call.k_count = block.count;
    call.count = e.index(1);
    call.source = m_problem.b.plain ? m_g.address(*m_problem.b.plain, m_place, block.k, call.first) : m_place.buffers;
    call.target = e.advance(workspace(m_layout.b), e.ir.CreateMul(e.ir.CreateSub(unit_index, first_unit), unit_bytes));
    return call;
  };
  if (m_blocking.read_b == ReadB::transposed && is_sized()) {
    for_runs(tiles, m_columns, unit(), [&](const Run& run) {
      const TileShape shape{.vectors = run.width, .is_edge = run.exist != nullptr};
      e.loop(run.tiles.begin, run.tiles.end, 1, [&](Value* tile) {
        GemmPacking::Call call = call_for(tile);
        call.exist = run.exist;
        m_pack_b.transposed(shape, workspace(m_layout.columns), call);
      });
    });
    return;
  }
  if (m_blocking.read_b == ReadB::transposed) {
    e.loop(tiles.begin, tiles.end, 1, [&](Value* tile) {
      for_column_shape(tile, [&](const TileShape& shape) {
        m_pack_b.transposed(shape, workspace(m_layout.columns), call_for(tile));
        if (m_g.extra_steps() > 0) m_pack_b.offset_sums(shape.vectors, call_for(tile));
      });
    });
    return;
  }
  for_runs(tiles, m_columns, unit(), [&](const Run& run) {
    GemmPacking::Call call = call_for(run.tiles.begin);
    call.count = e.ir.CreateSub(run.tiles.end, run.tiles.begin);
    call.exist = run.exist;
    m_pack_b.panels(run.width * unit(), call);
    if (m_g.extra_steps() > 0) m_pack_b.offset_sums(run.width, call);
  });
  if (m_grid.tail == 0) return;
  e.if_then(e.ir.CreateICmpEQ(tiles.end, e.index(m_grid.columns.count)), [&] {
    const GemmPacking::Call call = call_for(e.index(m_grid.columns.count - 1));
    m_pack_b.panels((m_grid.columns.small() - 1) * unit() + m_grid.tail, call);
    if (m_g.extra_steps() > 0) m_pack_b.offset_sums(m_grid.columns.small(), call);
  });
}

void GemmLoops::pack_group(const Range& rows, const Block& block) {
  Emitter& e = m_g.e;
  Value* group_first = start_of(m_rows, rows.begin);
  GemmPacking::Call call;
  call.place = m_place;
  call.k = block.k;
  call.k_count = block.count;
  const auto source_of = [&](Value* row) {
    return m_problem.a.plain ? m_g.address(*m_problem.a.plain, m_place, row, block.k) : m_place.buffers;
  };
  if (m_blocking.read_a == ReadA::rows) {
    call.first = group_first;
    call.count = e.ir.CreateSub(start_of(m_rows, rows.end), group_first);
    call.source = source_of(call.first);
    call.target = workspace(m_layout.a);
    m_pack_a.rows(call);
    return;
  }
  for_runs(rows, m_rows, 1, [&](const Run& run) {
    call.first = start_of(m_rows, run.tiles.begin);
    call.count = e.ir.CreateSub(run.tiles.end, run.tiles.begin);
    call.exist = run.exist;
    call.source = source_of(call.first);
    Value* offset = e.ir.CreateMul(e.ir.CreateSub(call.first, group_first), block.count);
    call.target = e.advance(workspace(m_layout.a), e.ir.CreateMul(offset, e.index(m_g.packed_bytes())));
    m_pack_a.panels(run.width, call);
  });
}

void GemmLoops::emit_group(const Range& rows, const Range& tiles, const Block& block) {
  Emitter& e = m_g.e;
  Value* group_first = start_of(m_rows, rows.begin);
  Value* slab_first = start_of(m_columns, tiles.begin);
  // Base addresses at row 0 and column 0, or at the start of what is packed.
  Value* a_base =
      m_blocking.packs_a() ? workspace(m_layout.a) : m_g.address(*m_problem.a.plain, m_place, e.index(0), block.k);
  Value* a_row_bytes = m_blocking.read_a == ReadA::rows ? e.index(packed_row_bytes(m_g))
                       : m_blocking.packs_a()           ? e.ir.CreateMul(block.count, e.index(m_g.packed_bytes()))
                                                        : m_g.tile_bytes(m_place, m_problem.a);
  const bool is_placed = m_blocking.read_b == ReadB::placed;
  Value* b_base = m_blocking.packs_b() ? workspace(m_layout.b)
                  : is_placed          ? m_g.panels_address(m_place, block.k)
                                       : m_g.address(*m_problem.b.plain, m_place, block.k, e.index(0));
  Value* b_unit_bytes = m_blocking.packs_b() ? packed_unit_bytes(block)
                        : is_placed          ? e.index(m_g.panel_bytes())
                                             : e.ir.CreateMul(m_g.tile_bytes(m_place, m_problem.b), e.index(unit()));
  e.loop(rows.begin, rows.end, 1, [&](Value* row_tile) {
    GemmTileCall call;
    call.place = m_place;
    call.scratch = workspace(m_layout.scratch);
    call.k_count = block.count;
    call.flags = block.flags;
    call.m = start_of(m_rows, row_tile);
    call.a = e.advance(
        a_base, e.ir.CreateMul(m_blocking.packs_a() ? e.ir.CreateSub(call.m, group_first) : call.m, a_row_bytes));
    Value* partial_row = e.advance(m_partial, e.ir.CreateMul(call.m, m_g.partial_row_bytes(m_place)));
    e.loop(tiles.begin, tiles.end, 1, [&](Value* tile) {
      Value* column = start_of(m_columns, tile);
      Value* in_slab = e.ir.CreateSub(column, slab_first);
      call.n = e.ir.CreateMul(column, e.index(unit()));
      call.b = e.advance(b_base, e.ir.CreateMul(m_blocking.packs_b() ? in_slab : column, b_unit_bytes));
      call.partial = e.advance(partial_row, e.ir.CreateMul(in_slab, e.index(unit() * m_g.sum_bytes())));
      is_sized() ? run_sized_tile(call) : run_tile(row_tile, tile, call);
    });
  });
}

void GemmLoops::run_tile(Value* row_tile, Value* tile, const GemmTileCall& call) {
  for_row_shape(row_tile, [&](int64_t height) {
    for_column_shape(tile, [&](TileShape shape) {
      shape.rows = height;
      m_kernel.run(shape, call);
    });
  });
}

/// By the function of a whole tile where all of it exists. Edges have functions of as many vectors as there are columns, and one
/// of few rows.
void GemmLoops::run_sized_tile(const GemmTileCall& call) {
  Emitter& e = m_g.e;
  const TileShape whole{m_blocking.tile_rows, m_blocking.tile_units};
  Value* rows = e.ir.CreateSub(m_g.m(m_place), call.m);
  Value* columns = e.ir.CreateSub(m_g.n(m_place), call.n);
  GemmTileCall edge = call;
  edge.rows = minimum(rows, e.index(whole.rows));
  edge.columns = minimum(columns, e.index(whole.vectors * unit()));
  const auto run_edge = [&](int64_t height, int64_t vectors) { m_kernel.run({height, vectors, 0, true}, edge); };
  const std::function<void(int64_t)> by_columns = [&](int64_t vectors) {
    if (vectors == whole.vectors) return run_edge(whole.rows, vectors);
    either(
        e.ir.CreateICmpSLE(columns, e.index(vectors * unit())), [&] { run_edge(whole.rows, vectors); },
        [&] { by_columns(vectors + 1); });
  };
  const int64_t few = (whole.rows + 2) / 3;
  Value* is_whole = e.ir.CreateAnd(e.ir.CreateICmpSGE(rows, e.index(whole.rows)),
                                   e.ir.CreateICmpSGE(columns, e.index(whole.vectors * unit())));
  either(
      is_whole, [&] { m_kernel.run(whole, call); },
      [&] {
        if (few == whole.rows) return by_columns(1);
        either(e.ir.CreateICmpSLE(rows, e.index(few)), [&] { run_edge(few, whole.vectors); }, [&] { by_columns(1); });
      });
}

void GemmLoops::for_row_shape(Value* tile, const std::function<void(int64_t)>& body) {
  Emitter& e = m_g.e;
  if (m_grid.rows.bigger() == 0) return body(m_grid.rows.small());
  either(
      e.ir.CreateICmpSLT(tile, e.index(m_grid.rows.bigger())), [&] { body(m_grid.rows.small() + 1); },
      [&] { body(m_grid.rows.small()); });
}

void GemmLoops::for_column_shape(Value* tile, const std::function<void(const TileShape&)>& body) {
  Emitter& e = m_g.e;
  const int64_t last = m_grid.columns.count - 1;
  const int64_t plain = m_grid.columns.count - (m_grid.tail != 0);  // tiles of whole vectors
  const int64_t bigger = std::min(m_grid.columns.bigger(), plain);
  const auto whole = [&] {
    if (bigger == plain) return body({1, m_grid.columns.small() + 1, 0});
    if (bigger == 0) return body({1, m_grid.columns.small(), 0});
    either(
        e.ir.CreateICmpSLT(tile, e.index(bigger)), [&] { body({1, m_grid.columns.small() + 1, 0}); },
        [&] { body({1, m_grid.columns.small(), 0}); });
  };
  if (m_grid.tail == 0) return whole();
  const TileShape masked{1, m_grid.columns.small(), m_grid.tail};  // the last tile is never one of the bigger
  if (plain == 0) return body(masked);
  either(e.ir.CreateICmpEQ(tile, e.index(last)), [&] { body(masked); }, whole);
}

}  // namespace

LaunchShape emit_gemm_loops(GemmEmission& emission, GemmTileKernel& kernel) {
  return GemmLoops(emission, kernel).emit();
}

}  // namespace kiln::cpu
