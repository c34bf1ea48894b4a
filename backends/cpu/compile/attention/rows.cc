#include "backends/cpu/compile/attention/rows.h"

namespace kiln::cpu {

using llvm::Value;

void RowMover::load(const RowsLayout& layout, Value* tensor, Value* block, Value* count, Value* last, double scale) {
  e.ir.CreateCall(mover(layout, scale, Move::load), {tensor, block, count, last, layout.row_bytes});
}

void RowMover::store(const RowsLayout& layout, Value* block, Value* tensor, Value* count, double scale) {
  e.ir.CreateCall(mover(layout, scale, Move::store), {tensor, block, count, count, layout.row_bytes});
}

void RowMover::load_halves(const RowsLayout& layout, Value* tensor, Value* block, Value* count, Value* last) {
  e.ir.CreateCall(mover(layout, 1, Move::load_halves), {tensor, block, count, last, layout.row_bytes});
}

/// (tensor, block, count, last row that exists, bytes between the tensor's rows)
llvm::Function* RowMover::mover(const RowsLayout& layout, double scale, Move move) {
  llvm::Function*& function = m_movers[{layout.kind(), scale, move}];
  if (function != nullptr) return function;
  const auto resume = e.ir.saveIP();
  const bool loads = move != Move::store, converts = move != Move::load_halves;
  function = e.begin_function(loads ? "load_rows" : "store_rows", e.ir.getVoidTy(),
                              {e.pointer(), e.pointer(), e.i64(), e.i64(), e.i64()});
  const auto bytes = static_cast<int64_t>(size_of(layout.dtype)), block_bytes = converts ? int64_t{4} : bytes;
  const int64_t row_bytes = converts ? padded_bytes(layout.columns) : halves_bytes(layout.columns);
  const int lanes = layout.column_stride == 1 ? e.lanes() * 4 / static_cast<int>(block_bytes) : 1;
  llvm::Type* memory = Emitter::vector(m_scalars.memory_type(layout.dtype), lanes);
  llvm::Type* block_type = Emitter::vector(e.f32(), lanes);
  const auto scaled = [&](Value* value) {
    return scale == 1 ? value : e.ir.CreateFMul(value, Emitter::real(value->getType(), scale));
  };
  e.loop(e.index(0), function->getArg(2), 1, [&](Value* row) {
    Value* number = loads ? e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, row, function->getArg(3)) : row;
    Value* in_tensor = e.advance(function->getArg(0), e.ir.CreateMul(number, function->getArg(4)));
    Value* in_block = e.advance(function->getArg(1), e.ir.CreateMul(row, e.index(row_bytes)));
    const auto move_some = [&](Value* column, Value* mask) {
      Value* source = e.advance(in_tensor, e.ir.CreateMul(column, e.index(layout.column_stride * bytes)));
      Value* target = e.advance(in_block, e.ir.CreateMul(column, e.index(block_bytes)));
      if (loads) {
        Value* pattern = mask ? e.masked_load(memory, source, mask) : e.load(memory, source);
        e.store(converts ? scaled(m_scalars.from_memory(layout.dtype, pattern)) : pattern, target);
      } else {
        Value* pattern = m_scalars.to_memory(layout.dtype, scaled(e.load(block_type, target)));
        mask ? e.masked_store(pattern, source, mask) : e.store(pattern, source);
      }
    };
    const int64_t whole = layout.columns / lanes * lanes;
    e.loop(e.index(0), e.index(whole), lanes, [&](Value* column) { move_some(column, nullptr); });
    if (whole < layout.columns) move_some(e.index(whole), e.prefix_mask(e.index(layout.columns - whole), lanes));
    for (int64_t at = layout.columns * block_bytes; loads && lanes == 1 && at < row_bytes; at += block_bytes) {
      e.store(llvm::Constant::getNullValue(converts ? e.f32() : memory), e.advance(in_block, at));
    }
  });
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return function;
}

void RowMover::load_row_pairs(const RowsLayout& layout, Value* tensor, Value* block, Value* count) {
  e.ir.CreateCall(pair_loader(layout), {tensor, block, count, layout.row_bytes});
}

/// (tensor, block, rows of the tensor, bytes between them)
llvm::Function* RowMover::pair_loader(const RowsLayout& layout) {
  llvm::Function*& function = m_pair_loaders[layout.kind()];
  if (function != nullptr) return function;
  const auto resume = e.ir.saveIP();
  function = e.begin_function("load_row_pairs", e.ir.getVoidTy(), {e.pointer(), e.pointer(), e.i64(), e.i64()});
  const auto bytes = static_cast<int64_t>(size_of(layout.dtype));
  const int lanes = layout.column_stride == 1 ? e.lanes() : 1;
  llvm::Type *half = Emitter::vector(e.i16(), lanes), *pair = Emitter::vector(e.i32(), lanes);
  const auto load = [&](Value* tensor_row, Value* column, Value* mask) {
    Value* from = e.advance(tensor_row, e.ir.CreateMul(column, e.index(layout.column_stride * bytes)));
    return e.ir.CreateZExt(mask ? e.masked_load(half, from, mask) : e.load(half, from), pair);
  };
  const auto join = [&](Value* number, bool has_second) {
    Value* row_bytes = function->getArg(3);
    Value* pair_bytes = e.ir.CreateShl(row_bytes, e.index(1));
    Value* first = e.advance(function->getArg(0), e.ir.CreateMul(number, pair_bytes));
    Value* second = e.advance(first, row_bytes);
    Value* in_block = e.advance(function->getArg(1), e.ir.CreateMul(number, e.index(padded_bytes(layout.columns))));
    const auto move = [&](Value* column, Value* mask) {
      Value* joined = load(first, column, mask);
      if (has_second) {
        joined = e.ir.CreateOr(joined, e.ir.CreateShl(load(second, column, mask), Emitter::integer(pair, 16)));
      }
      e.store(joined, e.advance(in_block, e.ir.CreateMul(column, e.index(4))));
    };
    const int64_t whole = layout.columns / lanes * lanes;
    e.loop(e.index(0), e.index(whole), lanes, [&](Value* column) { move(column, nullptr); });
    if (whole < layout.columns) move(e.index(whole), e.prefix_mask(e.index(layout.columns - whole), lanes));
    for (int64_t pad = layout.columns; lanes == 1 && pad < padded(layout.columns); ++pad) {
      e.store(Emitter::integer(e.i32(), 0), e.advance(in_block, pad * 4));
    }
  };
  Value* whole = e.ir.CreateLShr(function->getArg(2), e.index(1));
  e.loop(e.index(0), whole, 1, [&](Value* number) { join(number, true); });
  e.if_then(e.ir.CreateTrunc(function->getArg(2), e.i1()), [&] { join(whole, false); });
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return function;
}

void RowMover::transpose(Value* from, int64_t from_row_bytes, Value* to, int64_t to_row_bytes, int64_t rows,
                         int64_t columns) {
  llvm::Function* block = transpose_block(from_row_bytes, to_row_bytes);
  e.loop(e.index(0), e.index(rows), e.lanes(), [&](Value* row) {
    e.loop(e.index(0), e.index(columns), e.lanes(), [&](Value* column) {
      const auto at = [&](Value* base, Value* i, int64_t row_bytes, Value* j) {
        return e.advance(e.advance(base, e.ir.CreateMul(i, e.index(row_bytes))), e.ir.CreateMul(j, e.index(4)));
      };
      e.ir.CreateCall(block, {at(from, row, from_row_bytes, column), at(to, column, to_row_bytes, row)});
    });
  });
}

llvm::Function* RowMover::transpose_block(int64_t from_row_bytes, int64_t to_row_bytes) {
  llvm::Function*& function = m_transposes[{from_row_bytes, to_row_bytes}];
  if (function != nullptr) return function;
  const auto resume = e.ir.saveIP();
  function = e.begin_function("transpose_block", e.ir.getVoidTy(), {e.pointer(), e.pointer()});
  const auto alignment = static_cast<uint64_t>(e.lanes()) * 4;
  Values rows;
  for (int i = 0; i < e.lanes(); ++i) {
    rows.push_back(
        e.load(Emitter::vector(e.f32(), e.lanes()), e.advance(function->getArg(0), i * from_row_bytes), alignment));
  }
  e.transpose(rows);
  for (int i = 0; i < e.lanes(); ++i) e.store(rows[i], e.advance(function->getArg(1), i * to_row_bytes), alignment);
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return function;
}

}  // namespace kiln::cpu
