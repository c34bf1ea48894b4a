#include "backends/cpu/compile/attention/tiles.h"

#include <fmt/format.h>

namespace kiln::cpu {

using llvm::Value;

namespace {
constexpr int64_t k_unroll = 2;
}

void TileProducts::run(const TileProduct& kind, Value* a, Value* b, Value* c, Value* count, Value* factor, Value* valid,
                       Value* a_bytes) {
  Value* none = llvm::PoisonValue::get(e.pointer());
  e.ir.CreateCall(function(kind),
                  {a, b, c, factor != nullptr ? factor : none, count, valid != nullptr ? valid : e.index(kind.rows),
                   a_bytes != nullptr ? a_bytes : e.index(0)});
}

llvm::Function* TileProducts::function(const TileProduct& kind) {
  auto [found, is_new] = m_functions.try_emplace(kind, nullptr);
  if (!is_new) return found->second;
  const auto resume = e.ir.saveIP();
  llvm::Type* p = e.pointer();
  llvm::Function* function = e.begin_function(fmt::format("product_{}x{}", kind.rows, kind.vectors), e.ir.getVoidTy(),
                                              {p, p, p, p, e.i64(), e.i64(), e.i64()});
  found->second = function;
  const int lanes = e.lanes();
  const int64_t vector_bytes = lanes * 4;
  const auto alignment = static_cast<uint64_t>(vector_bytes);
  llvm::Type* vector = Emitter::vector(e.f32(), lanes);
  Value* c = function->getArg(2);
  Value* factor = function->getArg(3);
  const auto factor_at = [&](int64_t v) { return e.advance(factor, v * vector_bytes); };
  const auto c_at = [&](int64_t row, int64_t v) { return e.advance(c, row * kind.c_row + v * vector_bytes); };

  Values factors;
  if (kind.start == TileProduct::Start::rescale) {
    for (int64_t v = 0; v < kind.vectors; ++v) factors.push_back(e.load(vector, factor_at(v), alignment));
  }
  Values sums;
  for (int64_t row = 0; row < kind.rows; ++row) {
    for (int64_t v = 0; v < kind.vectors; ++v) {
      Value* sum = Emitter::real(vector, 0);
      if (kind.start != TileProduct::Start::zero) sum = e.load(vector, c_at(row, v), alignment);
      if (kind.start == TileProduct::Start::rescale) sum = e.ir.CreateFMul(sum, factors[v]);
      sums.push_back(sum);
    }
  }
  sums = multiply(kind, function, sums);
  for (Value*& sum : sums) {
    if (kind.scale != 1) sum = e.ir.CreateFMul(sum, Emitter::real(vector, kind.scale));
  }
  for (int64_t row = 0; row < kind.rows; ++row) {
    for (int64_t v = 0; v < kind.vectors; ++v) e.store(sums[row * kind.vectors + v], c_at(row, v), alignment);
  }
  for (int64_t v = 0; kind.maximum && v < kind.vectors; ++v) {
    Value* largest = e.load(vector, factor_at(v), alignment);
    for (int64_t row = 0; row < kind.rows; ++row) {
      Value* sum = sums[row * kind.vectors + v];
      largest = e.ir.CreateSelect(e.ir.CreateFCmpOGT(sum, largest), sum, largest);
    }
    e.store(largest, factor_at(v), alignment);
  }
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return function;
}

Values TileProducts::multiply(const TileProduct& kind, llvm::Function* function, const Values& sums) {
  const int lanes = e.lanes();
  const int64_t vector_bytes = lanes * 4;
  llvm::Type* step_type = kind.pairs ? e.i32() : e.f32();
  const uint64_t a_alignment = kind.pairs ? 2 : 4;
  llvm::Type* vector = Emitter::vector(step_type, lanes);
  const auto stride = [&](int64_t bytes) {
    return bytes == TileProduct::k_of_argument ? function->getArg(6) : e.index(bytes);
  };
  const auto times = [&](int64_t count, Value* bytes) {
    return count == 1 ? bytes : count == 0 ? e.index(0) : e.ir.CreateMul(e.index(count), bytes);
  };
  Value *a_row = stride(kind.a_row), *a_step = stride(kind.a_step);
  const bool has_rows = kind.clamped || kind.a_row == TileProduct::k_of_argument;
  Values rows;  // where each row of A starts
  for (int64_t row = 0; has_rows && row < kind.rows; ++row) {
    Value* distance = times(row, a_row);
    if (kind.clamped) {
      Value* last = e.ir.CreateSub(function->getArg(5), e.index(1));
      distance = e.ir.CreateMul(e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, e.index(row), last), a_row);
    }
    rows.push_back(e.advance(function->getArg(0), distance));
  }
  // Carried: A (an offset where its rows have starts), B, the sums.
  Values carried{has_rows ? static_cast<Value*>(e.index(0)) : function->getArg(0), function->getArg(1)};
  carried.insert(carried.end(), sums.begin(), sums.end());
  const auto a_at = [&](Value* a, int64_t row, int64_t step) {
    Value* at_step = times(step, a_step);
    if (has_rows) return e.advance(e.advance(rows[row], a), at_step);
    if (kind.a_step != TileProduct::k_of_argument) return e.advance(a, row * kind.a_row + step * kind.a_step);
    return e.advance(e.advance(a, at_step), row * kind.a_row);
  };
  const auto rounds = [&](Value* count, int64_t unroll) {
    carried = e.loop(e.index(0), count, 1, carried, [&](Value*, const Values& now) {
      Values next = now;
      for (int64_t step = 0; step < unroll; ++step) {
        Values columns;
        for (int64_t v = 0; v < kind.vectors; ++v) {
          columns.push_back(e.load(vector, e.advance(now[1], step * kind.b_step + v * vector_bytes),
                                   static_cast<uint64_t>(kind.b_is_aligned ? vector_bytes : 4)));
        }
        for (int64_t row = 0; row < kind.rows; ++row) {
          Value* broadcast = e.splat(e.load(step_type, a_at(now[0], row, step), a_alignment), lanes);
          for (int64_t v = 0; v < kind.vectors; ++v) {
            Value*& sum = next[2 + row * kind.vectors + v];
            sum = kind.pairs ? e.fma_of_pairs(broadcast, columns[v], sum) : e.fma(broadcast, columns[v], sum);
          }
        }
      }
      Value* past = times(unroll, a_step);
      next[0] = has_rows ? e.ir.CreateAdd(now[0], past) : e.advance(now[0], past);
      next[1] = e.advance(now[1], unroll * kind.b_step);
      return next;
    });
  };
  Value* count = function->getArg(4);
  rounds(e.ir.CreateUDiv(count, e.index(k_unroll)), k_unroll);
  rounds(e.ir.CreateURem(count, e.index(k_unroll)), 1);
  return {carried.begin() + 2, carried.end()};
}

Value* softmax_exp2(Emitter& e, Value* x) {
  llvm::Type* type = x->getType();
  llvm::Type* integers = Emitter::like(x, e.i32());
  constexpr int k_least = -100;       // becomes exponent 0: the float 0
  constexpr double k_scale = 0x1p27;  // 2^(127 - 100), made up for by the shifted exponent
  Value* least = Emitter::real(type, k_least);
  Value* clamped = e.ir.CreateSelect(e.ir.CreateFCmpOLT(x, least), least, x);
  Value* whole = e.unary(llvm::Intrinsic::rint, clamped);
  Value* rest = e.ir.CreateFSub(clamped, whole);
  // Cephes exp2f: minimax on [-1/2, 1/2].
  constexpr double k_terms[] = {1.535336188319500e-4,
                                1.339887440266574e-3,
                                9.618437357674640e-3,
                                5.550332471162809e-2,
                                2.402264791363012e-1,
                                6.931472028550421e-1,
                                1.0};
  Value* power = Emitter::real(type, k_terms[0] * k_scale);
  for (int term = 1; term < 7; ++term) power = e.fma(power, rest, Emitter::real(type, k_terms[term] * k_scale));
  Value* exponent = e.ir.CreateAdd(e.ir.CreateFPToSI(whole, integers), Emitter::integer(integers, -k_least));
  Value* scale = e.ir.CreateBitCast(e.ir.CreateShl(exponent, Emitter::integer(integers, 23)), type);
  return e.ir.CreateFMul(power, scale);
}

}  // namespace kiln::cpu
