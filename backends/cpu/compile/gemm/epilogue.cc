#include "backends/cpu/compile/gemm/epilogue.h"

namespace kiln::cpu {

using llvm::Value;

/// Has a tile function's parameters; k_count and flags are the rows and columns of the tile in scratch.
llvm::Function* GemmEpilogue::function() {
  if (m_function != nullptr) return m_function;
  Emitter& e = m_g.e;
  const auto resume = e.ir.saveIP();
  GemmTileCall call;
  m_function = begin_tile_function(m_g, "epilogue", call);
  Value* rows = call.k_count;
  Value* columns = call.flags;
  const int64_t lanes = m_g.sum_lanes();
  const int64_t row_bytes = m_rows.vectors * m_g.sum_vector_bytes();
  const auto alignment = static_cast<uint64_t>(m_g.sum_vector_bytes());
  GemmBody body(m_g, m_g.problem.gemm->epilogue, call.place);
  const auto column_of_vectors = [&](Value* column, Value* mask) {
    Scope& some = body.lanes(body.inner_dim(), e.ir.CreateAdd(call.n, column), 0, mask);
    Value* source = e.advance(call.scratch, e.ir.CreateMul(column, e.index(m_g.sum_bytes())));
    e.loop(e.index(0), rows, 1, [&](Value* row) {
      Value* sum = e.load(m_g.sum_vector(), e.advance(source, e.ir.CreateMul(row, e.index(row_bytes))), alignment);
      emit_stores(m_g, body, body.at(some, body.outer_dim(), e.ir.CreateAdd(call.m, row)), sum);
    });
  };
  Value* whole = m_rows.has_whole ? e.ir.CreateAnd(columns, e.index(-lanes)) : e.index(0);
  e.loop(e.index(0), whole, lanes, [&](Value* column) { column_of_vectors(column, nullptr); });
  if (m_rows.has_tail) {
    e.if_then(e.ir.CreateICmpSLT(whole, columns),
              [&] { column_of_vectors(whole, e.prefix_mask(e.ir.CreateSub(columns, whole), m_g.lanes())); });
  }
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return m_function;
}

void GemmEpilogue::run(const GemmTileCall& call, Value* rows, Value* columns) {
  GemmTileCall of_tile = call;
  of_tile.k_count = rows;
  of_tile.flags = columns;
  call_tile_function(m_g, function(), of_tile);
}

void prepare_stores(const GemmEmission& emission, GemmBody& body, Scope& columns) {
  std::vector<ExprId> roots;
  for (const Store& store : emission.problem.gemm->stores) roots.push_back(store.value);
  body.emitter().prepare(columns, roots);
}

void emit_stores(const GemmEmission& emission, GemmBody& body, Scope& scope, Value* sum) {
  // An i64 sum of which nobody sees the upper half is an i32 until here.
  const DType sums = emission.problem.types.accumulator, leaf = accumulator_of(emission.problem.gemm->dtype);
  body.emitter().set_accumulator(scope, body.emitter().scalars().cast(sum, sums, leaf));
  for (const Store& store : emission.problem.gemm->stores) body.emitter().store(scope, store);
}

}  // namespace kiln::cpu
