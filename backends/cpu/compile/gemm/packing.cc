#include "backends/cpu/compile/gemm/packing.h"

#include <algorithm>
#include <optional>

#include "backends/cpu/compile/gemm/body.h"

/// Packing: an operand's elements in the order the micro-kernel reads them.
///
/// Panels are written with k outside and the tiles inside, so that the source is read along its contiguous rows, a
/// whole group or slab wide: read tile by tile instead, a source whose rows are a multiple of 4 KiB apart would map
/// every line into the same cache sets and fetch each line several times.
namespace kiln::cpu {

using llvm::Value;

int64_t packed_row_bytes(const GemmEmission& emission) {
  const int64_t lanes = emission.sum_lanes();
  return ((emission.blocking.k_block + lanes - 1) / lanes + 1) * emission.packed_vector_bytes();
}

llvm::Function* GemmPacking::begin(const std::string& name, Call& call) {
  Emitter& e = m_g.e;
  llvm::Type* p = e.pointer();
  llvm::Function* function = e.begin_function((m_is_a ? "a_" : "b_") + name, e.ir.getVoidTy(),
                                              {p, p, p, p, e.i64(), e.i64(), e.i64(), e.i64(), e.i64()});
  llvm::Argument* argument = function->arg_begin();
  call.place.buffers = argument;
  call.place.status = argument + 1;
  call.source = argument + 2;
  call.target = argument + 3;
  call.k_count = argument + 4;
  call.count = argument + 5;
  call.first = argument + 6;
  call.k = argument + 7;
  call.place.batch = argument + 8;
  return function;
}

void GemmPacking::invoke(llvm::Function* function, const Call& call) {
  m_g.e.ir.CreateCall(function, {call.place.buffers, call.place.status, call.source, call.target, call.k_count,
                                 call.count, call.first, call.k, call.place.batch});
}

int GemmPacking::tile_dim(const GemmBody& body) const { return m_is_a ? body.outer_dim() : body.inner_dim(); }
int GemmPacking::k_dim(const GemmBody& body) const { return m_is_a ? body.inner_dim() : body.outer_dim(); }

Value* GemmPacking::evaluate(GemmBody& body, Scope& scope) const {
  const DType dtype = m_g.problem.types.element;
  Value* value = body.emitter().evaluate_lanes(scope, operand().value);
  // In registers f16 and bf16 are f32 already.
  return is_floating(dtype) ? value : body.emitter().scalars().cast(value, dtype, m_g.problem.types.multiply);
}

// Panels.

void GemmPacking::panels(int64_t width, const Call& call) {
  llvm::Function*& function = m_panels[width];
  if (function == nullptr) {
    const auto resume = m_g.e.ir.saveIP();
    Call inner;
    function = begin(fmt::format("panels_{}", width), inner);
    emit_panels(width, inner);
    m_g.e.ir.CreateRetVoid();
    m_g.e.ir.restoreIP(resume);
  }
  invoke(function, call);
}

void GemmPacking::emit_panels(int64_t width, const Call& call) {
  Emitter& e = m_g.e;
  const int64_t bytes = m_g.packed_bytes(), lanes = m_g.sum_lanes();
  const int64_t step_bytes = m_is_a ? width * bytes : (width + lanes - 1) / lanes * m_g.packed_vector_bytes();
  const bool plain = operand().plain != nullptr && operand().tile_stride == 1;
  std::optional<GemmBody> body;
  if (!plain) body.emplace(m_g, *operand().body, call.place);
  Value* panel_bytes = e.ir.CreateMul(call.k_count, e.index(step_bytes));
  e.loop(e.index(0), call.k_count, 1, [&](Value* k) {
    Value* source = plain ? e.advance(call.source, e.ir.CreateMul(k, e.index(operand().k_stride * bytes))) : nullptr;
    Value* target = e.advance(call.target, e.ir.CreateMul(k, e.index(step_bytes)));
    e.loop(e.index(0), call.count, 1, {target}, [&](Value* tile, const Values& at) {
      if (plain) {
        copy_plain(width, e.advance(source, e.ir.CreateMul(tile, e.index(width * bytes))), at[0]);
      } else {
        Value* index = e.ir.CreateAdd(call.first, e.ir.CreateMul(tile, e.index(width)));
        for (int64_t done = 0; done < width; done += lanes) {
          const int64_t active = std::min(lanes, width - done);
          Value* mask = active == lanes ? nullptr : m_g.mask(active);
          Scope& some = body->lanes(tile_dim(*body), index, done, mask);
          Value* value = evaluate(*body, body->at(some, k_dim(*body), e.ir.CreateAdd(call.k, k)));
          m_g.store_lanes(value, e.advance(at[0], done * bytes), m_is_a ? active : lanes);
        }
      }
      return Values{e.advance(at[0], panel_bytes)};
    });
  });
}

/// `width` contiguous elements. Narrow pieces are vectors of their own size: no masks where none are needed.
void GemmPacking::copy_plain(int64_t width, Value* source, Value* target) {
  Emitter& e = m_g.e;
  const int64_t bytes = m_g.packed_bytes();
  int64_t done = 0;
  for (int64_t piece = m_g.sum_lanes(); piece >= 1; piece /= 2) {
    for (; width - done >= piece; done += piece) {
      llvm::Type* type = Emitter::vector(m_g.packed_element(), static_cast<int>(piece));
      e.store(e.load(type, e.advance(source, done * bytes)), e.advance(target, done * bytes));
    }
  }
  for (; !m_is_a && done % m_g.sum_lanes() != 0; ++done) {
    e.store(llvm::Constant::getNullValue(m_g.packed_element()), e.advance(target, done * bytes));
  }
}

// Rows.

void GemmPacking::rows(const Call& call) {
  if (m_rows == nullptr) {
    const auto resume = m_g.e.ir.saveIP();
    Call inner;
    m_rows = begin("rows", inner);
    emit_rows(inner);
    m_g.e.ir.CreateRetVoid();
    m_g.e.ir.restoreIP(resume);
  }
  invoke(m_rows, call);
}

void GemmPacking::emit_rows(const Call& call) {
  Emitter& e = m_g.e;
  const int64_t lanes = m_g.sum_lanes();
  const int64_t k = m_g.problem.gemm->k, block = m_g.blocking.k_block;
  const bool whole_vectors = k % lanes == 0 && (block % lanes == 0 || k <= block);
  GemmBody body(m_g, *operand().body, call.place);
  e.loop(e.index(0), call.count, 1, [&](Value* row) {
    Value* target = e.advance(call.target, e.ir.CreateMul(row, e.index(packed_row_bytes(m_g))));
    const auto at = [&](Value* step, Value* mask) {
      Scope& some = body.lanes(k_dim(body), e.ir.CreateAdd(call.k, step), 0, mask);
      Value* value = evaluate(body, body.at(some, tile_dim(body), e.ir.CreateAdd(call.first, row)));
      // A row is a whole number of vectors long, so the masked lanes may be written too.
      e.store(value, e.advance(target, e.ir.CreateMul(step, e.index(m_g.packed_bytes()))));
    };
    Value* whole = e.ir.CreateAnd(call.k_count, e.index(-lanes));
    e.loop(e.index(0), whole, lanes, [&](Value* step) { at(step, nullptr); });
    if (whole_vectors) return;
    e.if_then(e.ir.CreateICmpSLT(whole, call.k_count),
              [&] { at(whole, e.prefix_mask(e.ir.CreateSub(call.k_count, whole), m_g.lanes())); });
  });
}

// Transposed.

void GemmPacking::transposed(const TileShape& shape, Value* scratch, const Call& call) {
  Emitter& e = m_g.e;
  const int64_t lanes = m_g.sum_lanes(), bytes = m_g.packed_bytes();
  Value* source = call.source;
  int64_t row_bytes = operand().tile_stride * bytes;
  if (transposes_from_scratch()) {
    const int64_t columns = shape.vectors * lanes - (shape.tail ? lanes - shape.tail : 0);
    Call evaluate_rows = call;
    evaluate_rows.target = scratch;
    evaluate_rows.count = e.index(columns);
    rows(evaluate_rows);
    source = scratch;
    row_bytes = packed_row_bytes(m_g);
  }
  const int64_t step_bytes = shape.vectors * m_g.packed_vector_bytes();
  const auto blocks = [&](Value* k, Value* rest) {
    for (int64_t v = 0; v < shape.vectors; ++v) {
      const int64_t columns = shape.tail != 0 && v == shape.vectors - 1 ? shape.tail : lanes;
      Value* from = e.advance(e.advance(source, v * lanes * row_bytes), e.ir.CreateMul(k, e.index(bytes)));
      Value* to =
          e.advance(e.advance(call.target, v * m_g.packed_vector_bytes()), e.ir.CreateMul(k, e.index(step_bytes)));
      e.ir.CreateCall(transpose_block(columns, shape.vectors, row_bytes, rest == nullptr),
                      {from, to, rest == nullptr ? e.index(0) : rest});
    }
  };
  Value* whole = e.ir.CreateAnd(call.k_count, e.index(-lanes));
  e.loop(e.index(0), whole, lanes, [&](Value* k) { blocks(k, nullptr); });
  const int64_t k = m_g.problem.gemm->k, block = m_g.blocking.k_block;
  if (k % lanes == 0 && (k <= block || block % lanes == 0)) return;
  e.if_then(e.ir.CreateICmpSLT(whole, call.k_count), [&] { blocks(whole, e.ir.CreateSub(call.k_count, whole)); });
}

/// (source, target, k steps when not whole): sum_lanes() rows of k become sum_lanes() steps of one vector.
llvm::Function* GemmPacking::transpose_block(int64_t columns, int64_t vectors, int64_t source_row_bytes, bool whole) {
  llvm::Function*& function = m_transposes[{columns, vectors, whole}];
  if (function != nullptr) return function;
  Emitter& e = m_g.e;
  const auto resume = e.ir.saveIP();
  function = e.begin_function(fmt::format("transpose_{}_{}_{}", columns, vectors, whole), e.ir.getVoidTy(),
                              {e.pointer(), e.pointer(), e.i64()});
  Value* mask = whole ? nullptr : e.prefix_mask(function->getArg(2), m_g.lanes());
  Values rows;
  for (int64_t column = 0; column < m_g.sum_lanes(); ++column) {
    Value* pointer = e.advance(function->getArg(0), column * source_row_bytes);
    rows.push_back(column >= columns ? llvm::Constant::getNullValue(m_g.packed_vector())
                   : whole           ? e.load(m_g.packed_vector(), pointer)
                                     : e.masked_load(m_g.packed_vector(), pointer, mask));
  }
  e.transpose(rows);
  for (int64_t k = 0; k < m_g.sum_lanes(); ++k) {
    e.store(rows[k], e.advance(function->getArg(1), k * vectors * m_g.packed_vector_bytes()),
            static_cast<uint64_t>(m_g.packed_vector_bytes()));
  }
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return function;
}

}  // namespace kiln::cpu
