#include "backends/cpu/compile/gemm/pieces.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace kiln::cpu {

using llvm::Value;

namespace {

/// Without the innermost piece.
Pieces outer_pieces(const Pieces& pieces) {
  Pieces outer = pieces;
  outer.extents.pop_back();
  outer.strides.pop_back();
  return outer;
}

}  // namespace

Value* offset_in_pieces(Emitter& e, const Pieces& pieces, int64_t element_bytes, Value* index) {
  Value* offset = e.index(0);
  for (size_t d = pieces.extents.size(); d-- > 0;) {
    Value* at = d == 0 ? index : e.ir.CreateURem(index, e.index(pieces.extents[d]));
    if (d > 0) index = e.ir.CreateUDiv(index, e.index(pieces.extents[d]));
    offset = e.ir.CreateAdd(offset, e.ir.CreateMul(at, e.index(pieces.strides[d] * element_bytes)));
  }
  return offset;
}

// One step after another: {offset, index in the innermost piece, in the one around it, …}.

Values PieceCounter::begin(Value* index) const {
  Values at{offset_in_pieces(e, m_pieces, m_bytes, index)};
  for (size_t d = m_pieces.extents.size(); d-- > 1;) {
    at.push_back(e.ir.CreateURem(index, e.index(m_pieces.extents[d])));
    index = e.ir.CreateUDiv(index, e.index(m_pieces.extents[d]));
  }
  return at;
}

Values PieceCounter::next(const Values& at) const {
  const auto bytes = [&](size_t d) { return m_pieces.strides[d] * m_bytes; };
  size_t d = m_pieces.extents.size() - 1;
  Values next{e.ir.CreateAdd(at[0], e.index(bytes(d)))};
  Value* is_carried = nullptr;  // null: the innermost index always moves
  for (size_t i = 1; i < at.size(); ++i, --d) {
    Value* step = is_carried == nullptr ? e.index(1) : e.ir.CreateZExt(is_carried, e.i64());
    Value* moved = e.ir.CreateAdd(at[i], step);
    is_carried = e.ir.CreateICmpEQ(moved, e.index(m_pieces.extents[d]));
    next.push_back(e.ir.CreateSelect(is_carried, e.index(0), moved));
    Value* jump = e.index(bytes(d - 1) - bytes(d) * m_pieces.extents[d]);
    next[0] = e.ir.CreateAdd(next[0], e.ir.CreateSelect(is_carried, jump, e.index(0)));
  }
  return next;
}

// Lanes.

PieceLanes::PieceLanes(Emitter& emitter, const Pieces& pieces, int64_t element_bytes, Value* index, int lanes,
                       Value* mask, bool is_aligned)
    : e(emitter), m_pieces(pieces), m_bytes(element_bytes), m_lanes(lanes) {
  const bool is_dense = pieces.strides.back() == 1;
  const bool has_runs = is_dense || e.target().interleaves(pieces.strides.back(), m_bytes);
  has_runs ? find_runs(index, mask, is_aligned) : find_offsets(index, mask);
}

void PieceLanes::find_runs(Value* index, Value* mask, bool is_aligned) {
  const int64_t extent = m_pieces.extents.back(), rows = m_pieces.elements() / extent;
  Value* step = e.index(m_pieces.strides.back() * m_bytes);
  const Pieces outer = outer_pieces(m_pieces);
  Value* row = e.ir.CreateUDiv(index, e.index(extent));
  Value* first = e.ir.CreateURem(index, e.index(extent));
  const auto offset_of_row = [&](Value* at) { return offset_in_pieces(e, outer, m_bytes, at); };
  Value* start = e.ir.CreateAdd(offset_of_row(row), e.ir.CreateMul(first, step));
  const bool stays = rows == 1 || (is_aligned && extent % m_lanes == 0);
  if (stays) {
    m_runs.push_back({start, mask});
    return;
  }
  Value* lane = Emitter::iota(e.i32(), m_lanes);
  const auto splat = [&](Value* number) { return e.splat(e.ir.CreateTrunc(number, e.i32()), m_lanes); };
  const auto both = [&](Value* a) { return mask == nullptr ? a : e.ir.CreateAnd(a, mask); };
  Value* rest = e.ir.CreateSub(e.index(extent), first);  // lanes of the first run
  m_runs.push_back({start, both(e.ir.CreateICmpULT(lane, splat(rest)))});
  const int64_t most = std::min(rows - 1, (m_lanes - 2) / extent + 1);
  for (int64_t i = 0; i < most; ++i) {
    Value* before = e.ir.CreateAdd(rest, e.index(i * extent));  // lanes of the runs before
    Value* at =
        e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, e.ir.CreateAdd(row, e.index(i + 1)), e.index(rows - 1));
    Value* offset = e.ir.CreateSub(offset_of_row(at), e.ir.CreateMul(before, step));
    Value* in_run = e.ir.CreateSub(lane, splat(before));
    m_runs.push_back({offset, both(e.ir.CreateICmpULT(in_run, Emitter::integer(lane->getType(), extent)))});
  }
}

void PieceLanes::find_offsets(Value* index, Value* mask) {
  int64_t reach = 0;
  for (size_t d = 0; d < m_pieces.extents.size(); ++d) {
    reach += std::abs(m_pieces.strides[d]) * (m_pieces.extents[d] - 1) * m_bytes;
  }
  const bool is_narrow = std::max(reach, m_pieces.elements()) < INT32_MAX;  // 32-bit offsets gather twice as many lanes
  llvm::Type* element = is_narrow ? e.i32() : e.i64();
  llvm::Type* type = Emitter::vector(element, m_lanes);
  Value* first = is_narrow ? e.ir.CreateTrunc(index, element) : index;
  Value* at = e.ir.CreateAdd(e.splat(first, m_lanes), Emitter::iota(element, m_lanes));
  at = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, at, Emitter::integer(type, m_pieces.elements() - 1));
  m_offsets = Emitter::integer(type, 0);
  for (size_t d = m_pieces.extents.size(); d-- > 0;) {
    llvm::Constant* extent = Emitter::integer(type, m_pieces.extents[d]);
    Value* in_piece = d == 0 ? at : e.ir.CreateURem(at, extent);
    if (d > 0) at = e.ir.CreateUDiv(at, extent);
    Value* bytes = Emitter::integer(type, m_pieces.strides[d] * m_bytes);
    m_offsets = e.ir.CreateAdd(m_offsets, e.ir.CreateMul(in_piece, bytes));
  }
  m_mask = mask == nullptr ? Emitter::integer(Emitter::vector(e.i1(), m_lanes), 1) : mask;
}

Value* PieceLanes::load(llvm::Type* vector, Value* pointer) const {
  const llvm::Align alignment(static_cast<uint64_t>(m_bytes));
  Value* loaded = llvm::Constant::getNullValue(vector);
  if (m_offsets != nullptr) {
    return e.ir.CreateMaskedGather(vector, e.advance(pointer, m_offsets), alignment, m_mask, loaded);
  }
  for (const Run& run : m_runs) {
    Value* from = e.advance(pointer, run.offset);
    if (m_pieces.strides.back() > 1) {
      Value* apart = e.interleaved_load(vector, from, m_pieces.strides.back(), run.mask);
      loaded = run.mask == nullptr ? apart : e.ir.CreateSelect(run.mask, apart, loaded);
    } else if (run.mask == nullptr) {
      loaded = e.load(vector, from);
    } else {
      loaded = e.ir.CreateMaskedLoad(vector, from, alignment, run.mask, loaded);
    }
  }
  return loaded;
}

}  // namespace kiln::cpu
