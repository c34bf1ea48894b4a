#include "backends/cpu/compile/gemm/loops.h"

#include "backends/cpu/compile/gemm/packing.h"

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

  int64_t unit() const { return m_blocking.unit; }
  /// One step of k of a packed unit of B.
  int64_t packed_unit_bytes() const { return unit() * m_g.packed_bytes(); }
  /// A whole unit of a block of a packed B.
  Value* packed_unit_bytes(const Block& block) const {
    return m_g.e.ir.CreateMul(m_g.e.ir.CreateAdd(block.count, m_g.e.index(m_g.extra_steps())),
                              m_g.e.index(packed_unit_bytes()));
  }
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
  Value* workspace(int64_t offset) { return m_g.e.advance(m_workspace, offset); }
  Value* minimum(Value* a, Value* b) { return m_g.e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, a, b); }
  Value* maximum(Value* a, Value* b) { return m_g.e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smax, a, b); }

  GemmEmission& m_g;
  const GemmProblem& m_problem;
  const GemmBlocking& m_blocking;
  const GemmGrid& m_grid;
  GemmTileKernel& m_kernel;
  GemmPacking m_pack_a, m_pack_b;
  Workspace m_layout;

  // While the entry is written.
  GemmPlace m_place;
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
    layout.total += (bytes + 63) / 64 * 64;
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
  m_place = {entry.buffers, entry.status, nullptr};
  m_workspace = entry.workspace;
  m_kernel.enter(workspace(m_layout.scratch));
  Value* parts = e.index(m_grid.parts.count);
  Value* end = e.ir.CreateUDiv(e.ir.CreateAdd(entry.last_task, e.index(m_grid.parts.count - 1)), parts);
  e.loop(e.ir.CreateUDiv(entry.first_task, parts), end, 1, [&](Value* slab) {
    Value* first = e.ir.CreateMul(slab, parts);
    const Range range{maximum(e.ir.CreateSub(entry.first_task, first), e.index(0)),
                      minimum(e.ir.CreateSub(entry.last_task, first), parts)};
    if (m_g.has_partial_sums_in_workspace()) {
      e.loop(range.begin, range.end, 1,
             [&](Value* part) { emit_slab(slab, {part, e.ir.CreateAdd(part, e.index(1))}); });
    } else {
      emit_slab(slab, range);
    }
  });
  m_kernel.leave(workspace(m_layout.scratch));
  e.ir.CreateRetVoid();
  return LaunchShape{static_cast<uint64_t>(m_problem.batches * m_grid.slabs.count * m_grid.parts.count),
                     static_cast<uint64_t>(m_layout.total)};
}

void GemmLoops::emit_slab(Value* linear, const Range& parts) {
  Emitter& e = m_g.e;
  Value* slab = e.ir.CreateURem(linear, e.index(m_grid.slabs.count));
  m_place.batch = e.ir.CreateUDiv(linear, e.index(m_grid.slabs.count));
  const Range tiles{m_g.even_start_of(m_grid.slabs, slab),
                    m_g.even_start_of(m_grid.slabs, e.ir.CreateAdd(slab, e.index(1)))};
  const Range rows{m_g.even_start_of(m_grid.parts, parts.begin), m_g.even_start_of(m_grid.parts, parts.end)};
  Value* column = e.ir.CreateMul(m_g.start_of(m_grid.columns, tiles.begin), e.index(unit()));
  m_partial = m_place.buffers;
  if (m_problem.partial_sums != nullptr) {
    m_partial = m_g.address(*m_problem.partial_sums, m_place, e.index(0), column);
  } else if (m_g.has_partial_sums_in_workspace()) {
    Value* row = m_g.start_of(m_grid.rows, rows.begin);
    m_partial = e.advance(workspace(m_layout.partial), e.ir.CreateMul(row, e.index(-m_g.partial_row_bytes())));
  }
  e.loop(e.index(0), e.index(m_grid.blocks), 1, [&](Value* number) {
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
  block.k = e.ir.CreateMul(number, e.index(m_blocking.k_block * m_g.k_group()));
  const int64_t steps = m_problem.steps();
  if (m_grid.blocks == 1) {
    block.count = e.index(steps);
    block.flags = e.index(GemmTileCall::k_first | GemmTileCall::k_last);
    return block;
  }
  Value* last = e.ir.CreateICmpEQ(number, e.index(m_grid.blocks - 1));
  block.count =
      e.ir.CreateSelect(last, e.index(steps - (m_grid.blocks - 1) * m_blocking.k_block), e.index(m_blocking.k_block));
  Value* first = e.ir.CreateICmpEQ(number, e.index(0));
  block.flags = e.ir.CreateOr(e.ir.CreateSelect(first, e.index(GemmTileCall::k_first), e.index(0)),
                              e.ir.CreateSelect(last, e.index(GemmTileCall::k_last), e.index(0)));
  return block;
}

/// Calls `body` for the runs of equally wide tiles within `tiles`; tiles from `plain_end` on are left out.
void GemmLoops::for_segments(const Range& tiles, const Split& split, int64_t plain_end,
                             const std::function<void(const Range&, int64_t)>& body) {
  Emitter& e = m_g.e;
  const int64_t bigger = std::min(split.bigger(), plain_end);
  const auto segment = [&](int64_t from, int64_t to, int64_t width) {
    if (from >= to) return;
    const Range part{maximum(tiles.begin, e.index(from)), minimum(tiles.end, e.index(to))};
    e.if_then(e.ir.CreateICmpSLT(part.begin, part.end), [&] { body(part, width); });
  };
  segment(0, bigger, split.small() + 1);
  segment(bigger, plain_end, split.small());
}

void GemmLoops::pack_slab(const Range& tiles, const Block& block) {
  Emitter& e = m_g.e;
  Value* first_unit = m_g.start_of(m_grid.columns, tiles.begin);
  Value* unit_bytes = packed_unit_bytes(block);
  const auto call_for = [&](Value* tile) {
    Value* unit_index = m_g.start_of(m_grid.columns, tile);
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
  if (m_blocking.read_b == ReadB::transposed) {
    e.loop(tiles.begin, tiles.end, 1, [&](Value* tile) {
      for_column_shape(tile, [&](const TileShape& shape) {
        m_pack_b.transposed(shape, workspace(m_layout.columns), call_for(tile));
        if (m_g.extra_steps() > 0) m_pack_b.offset_sums(shape.vectors, call_for(tile));
      });
    });
    return;
  }
  const int64_t plain_end = m_grid.columns.count - (m_grid.tail != 0);
  for_segments(tiles, m_grid.columns, plain_end, [&](const Range& some, int64_t vectors) {
    GemmPacking::Call call = call_for(some.begin);
    call.count = e.ir.CreateSub(some.end, some.begin);
    m_pack_b.panels(vectors * unit(), call);
    if (m_g.extra_steps() > 0) m_pack_b.offset_sums(vectors, call);
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
  Value* group_first = m_g.start_of(m_grid.rows, rows.begin);
  GemmPacking::Call call;
  call.place = m_place;
  call.k = block.k;
  call.k_count = block.count;
  const auto source_of = [&](Value* row) {
    return m_problem.a.plain ? m_g.address(*m_problem.a.plain, m_place, row, block.k) : m_place.buffers;
  };
  if (m_blocking.read_a == ReadA::rows) {
    call.first = group_first;
    call.count = e.ir.CreateSub(m_g.start_of(m_grid.rows, rows.end), group_first);
    call.source = source_of(call.first);
    call.target = workspace(m_layout.a);
    m_pack_a.rows(call);
    return;
  }
  for_segments(rows, m_grid.rows, m_grid.rows.count, [&](const Range& some, int64_t height) {
    call.first = m_g.start_of(m_grid.rows, some.begin);
    call.count = e.ir.CreateSub(some.end, some.begin);
    call.source = source_of(call.first);
    Value* offset = e.ir.CreateMul(e.ir.CreateSub(call.first, group_first), block.count);
    call.target = e.advance(workspace(m_layout.a), e.ir.CreateMul(offset, e.index(m_g.packed_bytes())));
    m_pack_a.panels(height, call);
  });
}

void GemmLoops::emit_group(const Range& rows, const Range& tiles, const Block& block) {
  Emitter& e = m_g.e;
  Value* group_first = m_g.start_of(m_grid.rows, rows.begin);
  Value* slab_first = m_g.start_of(m_grid.columns, tiles.begin);
  // Base addresses at row 0 and column 0, or at the start of what is packed.
  Value* a_base =
      m_blocking.packs_a() ? workspace(m_layout.a) : m_g.address(*m_problem.a.plain, m_place, e.index(0), block.k);
  Value* a_row_bytes = m_blocking.read_a == ReadA::rows ? e.index(packed_row_bytes(m_g))
                       : m_blocking.packs_a()           ? e.ir.CreateMul(block.count, e.index(m_g.packed_bytes()))
                                              : e.index(m_problem.a.tile_stride * m_problem.a.element_bytes());
  const bool is_placed = m_blocking.read_b == ReadB::placed;
  Value* b_base = m_blocking.packs_b() ? workspace(m_layout.b)
                  : is_placed          ? m_g.panels_address(m_place, block.k)
                                       : m_g.address(*m_problem.b.plain, m_place, block.k, e.index(0));
  Value* b_unit_bytes = m_blocking.packs_b() ? packed_unit_bytes(block)
                        : is_placed          ? e.index(m_g.panel_bytes())
                                             : e.index(unit() * m_problem.b.tile_stride * m_problem.b.element_bytes());
  e.loop(rows.begin, rows.end, 1, [&](Value* row_tile) {
    GemmTileCall call;
    call.place = m_place;
    call.scratch = workspace(m_layout.scratch);
    call.k_count = block.count;
    call.flags = block.flags;
    call.m = m_g.start_of(m_grid.rows, row_tile);
    call.a = e.advance(
        a_base, e.ir.CreateMul(m_blocking.packs_a() ? e.ir.CreateSub(call.m, group_first) : call.m, a_row_bytes));
    Value* partial_row = e.advance(m_partial, e.ir.CreateMul(call.m, e.index(m_g.partial_row_bytes())));
    e.loop(tiles.begin, tiles.end, 1, [&](Value* tile) {
      Value* column = m_g.start_of(m_grid.columns, tile);
      Value* in_slab = e.ir.CreateSub(column, slab_first);
      call.n = e.ir.CreateMul(column, e.index(unit()));
      call.b = e.advance(b_base, e.ir.CreateMul(m_blocking.packs_b() ? in_slab : column, b_unit_bytes));
      call.partial = e.advance(partial_row, e.ir.CreateMul(in_slab, e.index(unit() * m_g.sum_bytes())));
      for_row_shape(row_tile, [&](int64_t height) {
        for_column_shape(tile, [&](TileShape shape) {
          shape.rows = height;
          m_kernel.run(shape, call);
        });
      });
    });
  });
}

void GemmLoops::for_row_shape(Value* tile, const std::function<void(int64_t)>& body) {
  Emitter& e = m_g.e;
  if (m_grid.rows.bigger() == 0) return body(m_grid.rows.small());
  e.if_else(
      e.ir.CreateICmpSLT(tile, e.index(m_grid.rows.bigger())),
      [&] {
        body(m_grid.rows.small() + 1);
        return Values{};
      },
      [&] {
        body(m_grid.rows.small());
        return Values{};
      });
}

void GemmLoops::for_column_shape(Value* tile, const std::function<void(const TileShape&)>& body) {
  Emitter& e = m_g.e;
  const int64_t last = m_grid.columns.count - 1;
  const int64_t plain = m_grid.columns.count - (m_grid.tail != 0);  // tiles of whole vectors
  const int64_t bigger = std::min(m_grid.columns.bigger(), plain);
  const auto whole = [&] {
    if (bigger == plain) return body({1, m_grid.columns.small() + 1, 0});
    if (bigger == 0) return body({1, m_grid.columns.small(), 0});
    e.if_else(
        e.ir.CreateICmpSLT(tile, e.index(bigger)),
        [&] {
          body({1, m_grid.columns.small() + 1, 0});
          return Values{};
        },
        [&] {
          body({1, m_grid.columns.small(), 0});
          return Values{};
        });
  };
  if (m_grid.tail == 0) return whole();
  const TileShape masked{1, m_grid.columns.small(), m_grid.tail};  // the last tile is never one of the bigger
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

}  // namespace

LaunchShape emit_gemm_loops(GemmEmission& emission, GemmTileKernel& kernel) {
  return GemmLoops(emission, kernel).emit();
}

}  // namespace kiln::cpu
