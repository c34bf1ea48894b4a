#include <algorithm>

#include "backends/cpu/compile/gemm/packing.h"
#include "backends/cpu/compile/gemm/pieces.h"

/// Packing an operand in pieces.
///
/// Where the lanes of a vector lie is worked out once for a vector of the lanes' dim; along the other dim an index walks
/// through the pieces. So the lanes are outside and the walk is inside: neighbouring elements of a kernel's window read the
/// same lines of the image again, from the nearest cache.
namespace kiln::cpu {

using llvm::Value;

/// The operand's first element of the batch.
Value* GemmPacking::pieced_base(const Call& call) const {
  return m_g.address(*operand().pieced->access, call.place, m_g.e.index(0), m_g.e.index(0));
}

llvm::Type* GemmPacking::loaded_vector(int64_t lanes) const {
  ScalarEmitter scalars(m_g.e);
  return Emitter::vector(scalars.memory_type(operand().loaded), static_cast<int>(lanes));
}

void GemmPacking::emit_pieced_panels(int64_t width, const Call& call) {
  Emitter& e = m_g.e;
  const PiecedAccess& pieced = *operand().pieced;
  const int64_t bytes = m_g.packed_bytes(), lanes = m_g.sum_lanes(), element_bytes = operand().element_bytes();
  const int64_t step_bytes = m_is_a ? width * bytes : (width + lanes - 1) / lanes * m_g.packed_vector_bytes();
  Value* panel_bytes = panel_bytes_of(call, step_bytes);
  Value* base = pieced_base(call);
  const PieceCounter along_k(e, pieced.k, element_bytes);
  e.loop(e.index(0), call.count, 1, {call.target}, [&](Value* tile, const Values& panel) {
    Value* index = e.ir.CreateAdd(call.first, e.ir.CreateMul(tile, e.index(width)));
    std::vector<PieceLanes> vectors;
    for (int64_t done = 0; done < width; done += lanes) {
      Value* mask = m_g.mask(std::min(lanes, width - done), lanes);
      vectors.emplace_back(e, pieced.tile, element_bytes, e.ir.CreateAdd(index, e.index(done)), m_g.lanes(), mask,
                           !m_is_a);
    }
    Values carried = along_k.begin(call.k);
    carried.push_back(panel[0]);
    e.loop(e.index(0), call.k_count, 1, carried, [&](Value* step, const Values& now) {
      Value* k = e.ir.CreateAdd(call.k, e.ir.CreateMul(step, e.index(m_g.k_group())));
      Values at(now.begin(), now.end() - 1);
      std::vector<Values> elements(vectors.size());  // of the step, of each vector
      for (int64_t i = 0; i < m_g.k_group(); ++i) {
        Value* from = e.advance(base, PieceCounter::offset(at));
        for (size_t v = 0; v < vectors.size(); ++v) {
          elements[v].push_back(with_offset(m_g.as_multiplied(operand(), vectors[v].load(loaded_vector(lanes), from))));
        }
        at = next_element(along_k, at, e.ir.CreateAdd(k, e.index(i)));
      }
      for (size_t v = 0; v < vectors.size(); ++v) {
        const int64_t done = static_cast<int64_t>(v) * lanes;
        m_g.store_lanes(join(call.place, elements[v], k), e.advance(now.back(), done * bytes),
                        m_is_a ? std::min(lanes, width - done) : lanes);
      }
      at.push_back(e.advance(now.back(), step_bytes));
      return at;
    });
    return Values{e.advance(panel[0], panel_bytes)};
  });
}

/// Behind the last element along k there is none: the walk stays where it is.
Values GemmPacking::next_element(const PieceCounter& along_k, const Values& at, Value* k) const {
  Emitter& e = m_g.e;
  Values next = along_k.next(at);
  if (missing_elements() == 0) return next;
  Value* is_last = e.ir.CreateICmpSGE(k, e.index(m_g.problem.gemm->k - 1));
  for (size_t d = 0; d < next.size(); ++d) next[d] = e.ir.CreateSelect(is_last, at[d], next[d]);
  return next;
}

void GemmPacking::emit_pieced_rows(const Call& call) {
  Emitter& e = m_g.e;
  const PiecedAccess& pieced = *operand().pieced;
  const int64_t lanes = m_g.sum_lanes(), bytes = m_g.packed_bytes() / m_g.k_group();
  const int64_t element_bytes = operand().element_bytes(), row_bytes = packed_row_bytes(m_g);
  Value* base = pieced_base(call);
  Value* count = element_count(call);
  const PieceCounter along_rows(e, pieced.tile, element_bytes);
  const auto vector_at = [&](Value* element, Value* mask) {
    const PieceLanes vector(e, pieced.k, element_bytes, e.ir.CreateAdd(call.k, element), m_g.lanes(), mask,
                            has_whole_vectors());
    Values carried = along_rows.begin(call.first);
    carried.push_back(e.advance(call.target, e.ir.CreateMul(element, e.index(bytes))));
    e.loop(e.index(0), call.count, 1, carried, [&](Value*, const Values& now) {
      Value* loaded = vector.load(loaded_vector(lanes), e.advance(base, PieceCounter::offset(now)));
      Value* value = with_offset(m_g.as_multiplied(operand(), loaded));
      if (mask != nullptr && pads_steps()) {
        value = e.ir.CreateSelect(mask, value, llvm::Constant::getNullValue(value->getType()));
      }
      e.store(value, now.back());
      Values next = along_rows.next({now.begin(), now.end() - 1});
      next.push_back(e.advance(now.back(), row_bytes));
      return next;
    });
  };
  Value* whole = e.ir.CreateAnd(count, e.index(-lanes));
  e.loop(e.index(0), whole, lanes, [&](Value* element) { vector_at(element, nullptr); });
  if (!has_short_vector()) return;
  e.if_then(e.ir.CreateICmpSLT(whole, count),
            [&] { vector_at(whole, e.prefix_mask(e.ir.CreateSub(count, whole), m_g.lanes())); });
  if (pads_steps()) emit_missing_steps(call, count);
}

}  // namespace kiln::cpu
