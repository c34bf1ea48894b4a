#include "backends/cpu/compile/gemm_kernels.h"

#include "backends/cpu/compile/gemm_body.h"
#include "backends/cpu/compile/gemm_packing.h"

#include <algorithm>
#include <cassert>

/// The micro-kernel: a tile of C lives in registers while k runs.
///
/// Outer product form (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008; the tile
/// shapes are those of BLIS turned to rows of C): per k step the vectors of one row of B are loaded once and each
/// element of a column of A is broadcast against them. Pointers advance once per iteration, everything else is a
/// constant displacement, so on AVX-512 each broadcast becomes part of its multiply-add.
///
/// Dot form: both operands are contiguous along k. Lanes run along k, every sum is a vector, and at the end the
/// vectors of one row of the tile are folded into one: pairs of vectors are halved and joined, so n vectors cost
/// about 2n shuffles instead of n * log2(lanes). For few rows this saves the transposed packing of B, which could
/// not be repaid.
///
/// Rounding errors of a long sum grow with its length, and faster than those of a sum of short sums: so k is cut into runs
/// (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, §4.2: blocked summation). Each is summed from zero in
/// the registers and then added to the tile's totals, which wait in scratch; a full tile does that once in some thousand
/// cycles. Blocks of k are added to the partial sums in the same way.
///
/// The epilogue is straight-line when it is short. A long one over 24 sums would make the compiler interleave all of
/// them and spill; so the sums go to a scratch tile, which stays in the first-level cache, and one function loops
/// over it. That also compiles in half the time.
namespace kiln::cpu {

using llvm::Value;

void GemmKernels::run(const TileShape& shape, const Call& call) {
  llvm::Function* function = tile_function(shape);
  m_g.e.ir.CreateCall(function, {call.place.buffers, call.place.status, call.scratch, call.a, call.b, call.partial,
                                 call.k_count, call.flags, call.m, call.n, call.place.batch});
}

int64_t GemmKernels::run_steps() const {
  const int64_t block = std::max<int64_t>(1, std::min<int64_t>(m_g.schedule.k_block, m_g.problem.gemm->k));
  const int64_t runs = (block + k_longest_run - 1) / k_longest_run;
  return (block + runs - 1) / runs;
}

bool GemmKernels::has_runs() const {
  const bool dot = m_g.schedule.form == GemmSchedule::Form::dot;
  return !dot && run_steps() < std::min<int64_t>(m_g.schedule.k_block, m_g.problem.gemm->k);
}

int64_t GemmKernels::scratch_bytes() const {
  if (!m_g.schedule.rolled_epilogue && !has_runs()) return 0;
  const bool dot = m_g.schedule.form == GemmSchedule::Form::dot;
  return m_g.schedule.tile_rows * (dot ? 1 : m_g.schedule.tile_vectors) * m_g.vector_bytes();
}

int64_t GemmKernels::active(const TileShape& shape, int64_t vector) const {
  return shape.tail != 0 && vector == shape.vectors - 1 ? shape.tail : m_g.problem.lanes;
}

llvm::Function* GemmKernels::begin(const std::string& name, Call& call) {
  Emitter& e = m_g.e;
  llvm::Type* p = e.pointer();
  llvm::Function* function =
      e.begin_function(name, e.ir.getVoidTy(), {p, p, p, p, p, p, e.i64(), e.i64(), e.i64(), e.i64(), e.i64()});
  llvm::Argument* argument = function->arg_begin();
  call.place.buffers = argument;
  call.place.status = argument + 1;
  call.scratch = argument + 2;
  call.a = argument + 3;
  call.b = argument + 4;
  call.partial = argument + 5;
  call.k_count = argument + 6;
  call.flags = argument + 7;
  call.m = argument + 8;
  call.n = argument + 9;
  call.place.batch = argument + 10;
  return function;
}

llvm::Function* GemmKernels::tile_function(const TileShape& shape) {
  auto [found, is_new] = m_functions.try_emplace(shape, nullptr);
  if (!is_new) return found->second;
  if (m_g.schedule.rolled_epilogue) rolled_epilogue();
  const auto resume = m_g.e.ir.saveIP();
  Call call;
  found->second = begin("tile_" + shape.suffix(), call);
  const int64_t k = m_g.problem.gemm->k, block = m_g.schedule.k_block;
  if (k <= block || k % block == 0) call.k_count = m_g.e.index(std::min(k, block));
  if (m_g.schedule.form == GemmSchedule::Form::dot) {
    emit_dot(shape, call);
  } else {
    emit_outer_product(shape, call);
  }
  m_g.e.ir.CreateRetVoid();
  m_g.e.ir.restoreIP(resume);
  return found->second;
}

// Outer product.

GemmKernels::Steps GemmKernels::steps(const TileShape& shape) const {
  const int64_t bytes = m_g.problem.element_bytes;
  Steps steps;
  switch (m_g.schedule.read_a) {
    case GemmSchedule::ReadA::direct:
      steps.a_row = m_g.problem.a.tile_stride * bytes;
      steps.a_k = m_g.problem.a.k_stride * bytes;
      break;
    case GemmSchedule::ReadA::rows:
      steps.a_row = packed_row_bytes(m_g);
      steps.a_k = bytes;
      break;
    case GemmSchedule::ReadA::panels:
      steps.a_row = bytes;
      steps.a_k = shape.rows * bytes;
      break;
  }
  const bool direct = m_g.schedule.read_b == GemmSchedule::ReadB::direct;
  steps.b_k = direct ? m_g.problem.b.k_stride * bytes : shape.vectors * m_g.vector_bytes();
  return steps;
}

GemmKernels::Sums GemmKernels::step(const TileShape& shape, const Steps& steps, Value* a, Value* b, int64_t at,
                                    const Sums& sums) {
  Emitter& e = m_g.e;
  const bool packed = m_g.schedule.read_b != GemmSchedule::ReadB::direct;
  Values columns;
  for (int64_t v = 0; v < shape.vectors; ++v) {
    Value* pointer = e.advance(b, at * steps.b_k + v * m_g.vector_bytes());
    columns.push_back(packed ? e.load(m_g.vector(), pointer, static_cast<uint64_t>(m_g.vector_bytes()))
                             : m_g.load_lanes(pointer, active(shape, v)));
  }
  Sums next;
  for (int64_t row = 0; row < shape.rows; ++row) {
    Value* scalar = e.load(m_g.element(), e.advance(a, at * steps.a_k + row * steps.a_row));
    Value* broadcast = e.splat(scalar, m_g.lanes());
    for (int64_t v = 0; v < shape.vectors; ++v) {
      next.push_back(m_g.multiply_add(broadcast, columns[v], sums[row * shape.vectors + v]));
    }
  }
  return next;
}

GemmKernels::Sums GemmKernels::sum_run(const TileShape& shape, Operands& at, Value* count) {
  Emitter& e = m_g.e;
  const Steps by = steps(shape);
  Values carried{at.a, at.b};
  carried.resize(2 + static_cast<size_t>(shape.rows * shape.vectors), m_g.zero());
  const auto rounds = [&](Value* times, int64_t unroll) {
    carried = e.loop(e.index(0), times, 1, carried, [&](Value*, const Values& now) {
      Sums running(now.begin() + 2, now.end());
      for (int64_t i = 0; i < unroll; ++i) running = step(shape, by, now[0], now[1], i, running);
      Values next{e.advance(now[0], unroll * by.a_k), e.advance(now[1], unroll * by.b_k)};
      next.insert(next.end(), running.begin(), running.end());
      return next;
    });
  };
  const int64_t unroll = m_g.schedule.unroll;
  rounds(e.ir.CreateUDiv(count, e.index(unroll)), unroll);
  rounds(e.ir.CreateURem(count, e.index(unroll)), 1);
  at = {carried[0], carried[1]};
  return {carried.begin() + 2, carried.end()};
}

GemmKernels::Sums GemmKernels::multiply(const TileShape& shape, const Call& call) {
  Emitter& e = m_g.e;
  Operands at{call.a, call.b};
  if (!has_runs()) return sum_run(shape, at, call.k_count);
  const auto total_at = [&](size_t i) { return e.advance(call.scratch, static_cast<int64_t>(i) * m_g.vector_bytes()); };
  const auto alignment = static_cast<uint64_t>(m_g.vector_bytes());
  const auto sums = static_cast<size_t>(shape.rows * shape.vectors);
  for (size_t i = 0; i < sums; ++i) e.store(m_g.zero(), total_at(i), alignment);
  const auto add = [&](const Sums& run, bool keep) {
    Sums totals;
    for (size_t i = 0; i < sums; ++i) {
      totals.push_back(m_g.add(e.load(m_g.vector(), total_at(i), alignment), run[i]));
      if (keep) e.store(totals[i], total_at(i), alignment);
    }
    return totals;
  };
  const int64_t longest = run_steps();
  e.loop(e.index(0), call.k_count, longest, {at.a, at.b}, [&](Value* from, const Values& now) {
    Operands here{now[0], now[1]};
    Value* rest = e.ir.CreateSub(call.k_count, from);
    Value* count = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, rest, e.index(longest));
    add(sum_run(shape, here, count), true);
    return Values{here.a, here.b};
  });
  Sums totals;
  for (size_t i = 0; i < sums; ++i) totals.push_back(e.load(m_g.vector(), total_at(i), alignment));
  return totals;
}

void GemmKernels::prefetch_output(const TileShape& shape, const Call& call) {
  const Access* access = m_g.problem.partial_sums;
  if (!m_g.schedule.prefetch_output || access == nullptr) return;
  Value* start = m_g.address(*access, call.place, call.m, call.n);
  const int64_t row_bytes = access->strides[access->strides.size() - 2] * m_g.problem.element_bytes;
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t v = 0; v < shape.vectors; ++v) {
      Value* line = m_g.e.advance(start, row * row_bytes + v * m_g.vector_bytes());
      m_g.e.ir.CreateIntrinsic(llvm::Intrinsic::prefetch, {m_g.e.pointer()},
                               {line, m_g.e.ir.getInt32(1), m_g.e.ir.getInt32(3), m_g.e.ir.getInt32(1)});
    }
  }
}

void GemmKernels::emit_outer_product(const TileShape& shape, const Call& call) {
  Emitter& e = m_g.e;
  prefetch_output(shape, call);
  const bool one_block = m_g.problem.gemm->k <= m_g.schedule.k_block;
  if (one_block) return finish(shape, call, multiply(shape, call));

  const auto each = [&](const auto& visit) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t v = 0; v < shape.vectors; ++v) {
        visit(e.advance(call.partial, row * m_partial_row_bytes + v * m_g.vector_bytes()), active(shape, v));
      }
    }
  };
  const auto flag = [&](int64_t bit) {
    return e.ir.CreateICmpNE(e.ir.CreateAnd(call.flags, e.index(bit)), e.index(0));
  };
  const Sums block = multiply(shape, call);
  const Sums sums = e.if_else(
      flag(k_first), [&] { return block; },
      [&] {
        Sums total;
        each([&](Value* pointer, int64_t lanes) {
          total.push_back(m_g.add(m_g.load_lanes(pointer, lanes), block[total.size()]));
        });
        return total;
      });
  e.if_else(
      flag(k_last),
      [&] {
        finish(shape, call, sums);
        return Values{};
      },
      [&] {
        size_t at = 0;
        each([&](Value* pointer, int64_t lanes) { m_g.store_lanes(sums[at++], pointer, lanes); });
        return Values{};
      });
}

// Dot.

void GemmKernels::emit_dot(const TileShape& shape, const Call& call) {
  Emitter& e = m_g.e;
  const int64_t k = m_g.problem.gemm->k, lanes = m_g.problem.lanes, bytes = m_g.problem.element_bytes;
  assert(m_g.schedule.k_block >= k && shape.vectors <= lanes);
  const auto step = [&](Value* a, Value* b, int64_t count, const Values& sums) {
    Values rows, columns, next;
    const auto load = [&](Value* base, int64_t stride, int64_t i) {
      return m_g.load_lanes(e.advance(base, i * stride * bytes), count);
    };
    for (int64_t row = 0; row < shape.rows; ++row) rows.push_back(load(a, m_g.problem.a.tile_stride, row));
    for (int64_t column = 0; column < shape.vectors; ++column) {
      Value* vector = load(b, m_g.problem.b.tile_stride, column);
      for (int64_t row = 0; row < shape.rows; ++row) {
        next.push_back(m_g.multiply_add(rows[row], vector, sums[column * shape.rows + row]));
      }
    }
    return next;
  };
  Values carried{call.a, call.b};
  carried.resize(static_cast<size_t>(2 + shape.rows * shape.vectors), m_g.zero());
  carried = e.loop(e.index(0), e.index(k / lanes), 1, carried, [&](Value*, const Values& now) {
    const Values sums = step(now[0], now[1], lanes, {now.begin() + 2, now.end()});
    Values next{e.advance(now[0], m_g.vector_bytes()), e.advance(now[1], m_g.vector_bytes())};
    next.insert(next.end(), sums.begin(), sums.end());
    return next;
  });
  Values sums(carried.begin() + 2, carried.end());
  if (k % lanes != 0) sums = step(carried[0], carried[1], k % lanes, sums);

  for (int64_t row = 0; row < shape.rows; ++row) {
    Values of_row;
    for (int64_t column = 0; column < shape.vectors; ++column) of_row.push_back(sums[column * shape.rows + row]);
    e.store(reduce_rows(of_row), e.advance(call.scratch, row * m_g.vector_bytes()),
            static_cast<uint64_t>(m_g.vector_bytes()));
  }
  e.ir.CreateCall(rolled_epilogue(), {call.place.buffers, call.place.status, call.scratch, call.a, call.b, call.partial,
                                      e.index(shape.rows), e.index(shape.vectors), call.m, call.n, call.place.batch});
}

/// One vector whose lane i is the sum of all lanes of sums[i].
Value* GemmKernels::reduce_rows(const Values& sums) {
  const int lanes = m_g.lanes();
  Values level = sums;
  for (int block = lanes; block > 1; block /= 2) {
    std::vector<int> low, high;
    for (int lane = 0; lane < 2 * lanes; ++lane) (lane % block < block / 2 ? low : high).push_back(lane);
    Values next;
    for (size_t i = 0; i < level.size(); i += 2) {
      Value* a = level[i];
      Value* b = level[std::min(i + 1, level.size() - 1)];
      next.push_back(m_g.add(m_g.e.ir.CreateShuffleVector(a, b, low), m_g.e.ir.CreateShuffleVector(a, b, high)));
    }
    level = next;
  }
  return level[0];
}

// Epilogue.

void GemmKernels::finish(const TileShape& shape, const Call& call, const Sums& sums) {
  if (!m_g.schedule.rolled_epilogue) return store_results(shape, call, sums);
  Emitter& e = m_g.e;
  const int64_t row_bytes = m_g.schedule.tile_vectors * m_g.vector_bytes();
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t v = 0; v < shape.vectors; ++v) {
      e.store(sums[row * shape.vectors + v], e.advance(call.scratch, row * row_bytes + v * m_g.vector_bytes()),
              static_cast<uint64_t>(m_g.vector_bytes()));
    }
  }
  const int64_t columns = shape.vectors * m_g.problem.lanes - (shape.tail ? m_g.problem.lanes - shape.tail : 0);
  e.ir.CreateCall(rolled_epilogue(), {call.place.buffers, call.place.status, call.scratch, call.a, call.b, call.partial,
                                      e.index(shape.rows), e.index(columns), call.m, call.n, call.place.batch});
}

void GemmKernels::store_results(const TileShape& shape, const Call& call, const Sums& sums) {
  GemmBody body(m_g, m_g.problem.gemm->epilogue, call.place);
  for (int64_t v = 0; v < shape.vectors; ++v) {
    const int64_t lanes = active(shape, v);
    Scope& columns = body.lanes(body.inner_dim(), call.n, v * m_g.problem.lanes,
                                lanes == m_g.problem.lanes ? nullptr : m_g.mask(lanes));
    prepare_stores(body, columns);
    for (int64_t row = 0; row < shape.rows; ++row) {
      Value* m = m_g.e.ir.CreateAdd(call.m, m_g.e.index(row));
      emit_stores(body, body.at(columns, body.outer_dim(), m), sums[row * shape.vectors + v]);
    }
  }
}

/// Evaluates what is the same for all rows.
void GemmKernels::prepare_stores(GemmBody& body, Scope& columns) {
  std::vector<ExprId> roots;
  for (const Store& store : m_g.problem.gemm->stores) roots.push_back(store.value);
  body.emitter().prepare(columns, roots);
}

void GemmKernels::emit_stores(GemmBody& body, Scope& scope, Value* sum) {
  body.emitter().set_accumulator(scope, sum);
  for (const Store& store : m_g.problem.gemm->stores) body.emitter().store(scope, store);
}

/// Has a tile function's parameters; k_count and flags are the rows and columns of the tile in scratch.
llvm::Function* GemmKernels::rolled_epilogue() {
  if (m_rolled_epilogue != nullptr) return m_rolled_epilogue;
  Emitter& e = m_g.e;
  const auto resume = e.ir.saveIP();
  Call call;
  m_rolled_epilogue = begin("epilogue", call);
  Value* rows = call.k_count;
  Value* columns = call.flags;
  const bool dot = m_g.schedule.form == GemmSchedule::Form::dot;
  const int64_t lanes = m_g.problem.lanes;
  const int64_t row_bytes = (dot ? 1 : m_g.schedule.tile_vectors) * m_g.vector_bytes();
  const auto alignment = static_cast<uint64_t>(m_g.vector_bytes());
  GemmBody body(m_g, m_g.problem.gemm->epilogue, call.place);
  const auto column_of_vectors = [&](Value* column, Value* mask) {
    Scope& some = body.lanes(body.inner_dim(), e.ir.CreateAdd(call.n, column), 0, mask);
    Value* source = e.advance(call.scratch, e.ir.CreateMul(column, e.index(m_g.problem.element_bytes)));
    e.loop(e.index(0), rows, 1, [&](Value* row) {
      Value* sum = e.load(m_g.vector(), e.advance(source, e.ir.CreateMul(row, e.index(row_bytes))), alignment);
      emit_stores(body, body.at(some, body.outer_dim(), e.ir.CreateAdd(call.m, row)), sum);
    });
  };
  Value* whole = dot ? e.index(0) : e.ir.CreateAnd(columns, e.index(-lanes));
  e.loop(e.index(0), whole, lanes, [&](Value* column) { column_of_vectors(column, nullptr); });
  if (dot || m_g.problem.gemm->n % lanes != 0) {
    e.if_then(e.ir.CreateICmpSLT(whole, columns),
              [&] { column_of_vectors(whole, e.prefix_mask(e.ir.CreateSub(columns, whole), m_g.lanes())); });
  }
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return m_rolled_epilogue;
}

}  // namespace kiln::cpu
