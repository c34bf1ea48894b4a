#include "backends/cpu/compile/gemm/outer_product.h"

#include "backends/cpu/compile/gemm/epilogue.h"
#include "backends/cpu/compile/gemm/implementations.h"
#include "backends/cpu/compile/gemm/packing.h"

/// The outer product: a tile of C lives in registers while k runs, a step at a time.
///
/// (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008; the tile shapes are those of BLIS
/// turned to rows of C.) Per k step the vectors of one row of B are loaded once and each element of a column of A is
/// broadcast against them. Pointers advance once per iteration, everything else is a constant displacement, so on AVX-512
/// each broadcast becomes part of its multiply-add.
///
/// Rounding errors of a long sum grow with its length, and faster than those of a sum of short sums: so k is cut into runs
/// (Higham, "Accuracy and Stability of Numerical Algorithms", 2002, §4.2: blocked summation). Each is summed from zero in
/// the registers and then added to the tile's totals, which wait in scratch; a full tile does that once in some thousand
/// cycles. Blocks of k are added to the partial sums in the same way.
///
/// The epilogue is straight-line when it is short, else rolled (epilogue.h).
namespace kiln::cpu {
namespace {

using llvm::Value;

class OuterProductKernel final : public GemmTileKernel {
 public:
  OuterProductKernel(GemmEmission& emission, const OuterProductSchedule& schedule)
      : GemmTileKernel(emission),
        m_schedule(schedule),
        m_epilogue(emission,
                   {.vectors = schedule.tile_vectors, .has_whole = true, .has_tail = emission.grid.tail != 0}) {}

  int64_t scratch_bytes() const override {
    if (!m_schedule.rolled_epilogue && !has_runs()) return 0;
    return m_schedule.tile_rows * m_schedule.tile_vectors * m_g.sum_vector_bytes();
  }

 private:
  using Sums = Values;  // row by row
  /// How a tile steps through a packed or unpacked operand, in bytes.
  struct Steps {
    int64_t a_row = 0, a_k = 0, b_k = 0, b_vector = 0;
  };
  struct Operands {
    Value* a = nullptr;
    Value* b = nullptr;
  };
  static constexpr int64_t k_longest_run = 256;  // elements along k

  void emit_callees() override {
    if (m_schedule.rolled_epilogue) m_epilogue.function();
  }
  void emit(const TileShape& shape, const GemmTileCall& call) override;
  Steps steps(const TileShape& shape) const;
  Sums multiply(const TileShape& shape, const GemmTileCall& call);
  Sums sum_run(const TileShape& shape, Operands& at, Value* count);
  /// Sums of integers are exact, however long.
  bool has_runs() const { return is_floating(m_g.problem.types.accumulator) && run_steps() < m_g.blocking.k_block; }
  int64_t run_steps() const {
    const int64_t block = m_g.blocking.k_block, longest = k_longest_run / m_g.k_group();
    const int64_t runs = (block + longest - 1) / longest;
    return (block + runs - 1) / runs;
  }
  Sums step(const TileShape& shape, const Steps& steps, Value* a, Value* b, int64_t at, const Sums& sums);
  void prefetch_output(const TileShape& shape, const GemmTileCall& call);
  void finish(const TileShape& shape, const GemmTileCall& call, const Sums& sums);
  void store_results(const TileShape& shape, const GemmTileCall& call, const Sums& sums);

  const OuterProductSchedule& m_schedule;
  GemmEpilogue m_epilogue;
};

OuterProductKernel::Steps OuterProductKernel::steps(const TileShape& shape) const {
  const GemmProblem& problem = m_g.problem;
  const int64_t bytes = m_g.packed_bytes();
  Steps steps;
  switch (m_schedule.read_a) {
    case ReadA::direct:
      steps.a_row = problem.a.tile_stride * problem.a.element_bytes();
      steps.a_k = problem.a.k_stride * bytes;
      break;
    case ReadA::rows:
      steps.a_row = packed_row_bytes(m_g);
      steps.a_k = bytes;
      break;
    case ReadA::panels:
      steps.a_row = bytes;
      steps.a_k = shape.rows * bytes;
      break;
  }
  switch (m_schedule.read_b) {
    case ReadB::direct:
      steps.b_k = problem.b.k_stride * problem.b.element_bytes();
      steps.b_vector = m_g.sum_lanes() * problem.b.element_bytes();
      break;
    case ReadB::placed:
      steps.b_k = m_g.packed_vector_bytes();
      steps.b_vector = m_g.panel_bytes();
      break;
    case ReadB::panels:
    case ReadB::transposed:
      steps.b_k = shape.vectors * m_g.packed_vector_bytes();
      steps.b_vector = m_g.packed_vector_bytes();
      break;
  }
  return steps;
}

OuterProductKernel::Sums OuterProductKernel::step(const TileShape& shape, const Steps& steps, Value* a, Value* b,
                                                  int64_t at, const Sums& sums) {
  Emitter& e = m_g.e;
  // Memory of a caller's is aligned to its elements alone.
  const auto packed_alignment =
      static_cast<uint64_t>(m_g.blocking.packs_b() ? m_g.packed_vector_bytes() : m_g.packed_bytes() / m_g.k_group());
  Values columns;
  for (int64_t v = 0; v < shape.vectors; ++v) {
    Value* pointer = e.advance(b, at * steps.b_k + v * steps.b_vector);
    columns.push_back(m_schedule.read_b == ReadB::direct
                          ? m_g.load_elements(m_g.problem.b, pointer, m_g.mask(m_g.columns(shape, v), m_g.sum_lanes()))
                          : e.load(m_g.packed_vector(), pointer, packed_alignment));
  }
  Sums next;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const auto alignment = static_cast<uint64_t>(m_g.packed_bytes() / m_g.k_group());
    Value* scalar = e.load(m_g.packed_step(), e.advance(a, at * steps.a_k + row * steps.a_row), alignment);
    Value* broadcast = e.splat(scalar, m_g.lanes());
    for (int64_t v = 0; v < shape.vectors; ++v) {
      next.push_back(m_g.multiply_add(broadcast, columns[v], sums[row * shape.vectors + v]));
    }
  }
  return next;
}

OuterProductKernel::Sums OuterProductKernel::sum_run(const TileShape& shape, Operands& at, Value* count) {
  Emitter& e = m_g.e;
  const Steps by = steps(shape);
  Values carried{at.a, at.b}, begins;
  for (int64_t v = 0; v < shape.vectors && m_g.extra_steps() > 0; ++v) {
    Value* from = e.advance(e.advance(at.b, e.ir.CreateMul(count, e.index(by.b_k))), v * by.b_vector);
    begins.push_back(e.load(m_g.sum_vector(), from, static_cast<uint64_t>(m_g.sum_vector_bytes())));
  }
  for (int64_t i = 0; i < shape.rows * shape.vectors; ++i) {
    carried.push_back(m_g.extra_steps() == 0 ? m_g.zero() : begins[static_cast<size_t>(i % shape.vectors)]);
  }
  const auto rounds = [&](Value* times, int64_t unroll) {
    carried = e.loop(e.index(0), times, 1, carried, [&](Value*, const Values& now) {
      Sums running(now.begin() + 2, now.end());
      for (int64_t i = 0; i < unroll; ++i) running = step(shape, by, now[0], now[1], i, running);
      Values next{e.advance(now[0], unroll * by.a_k), e.advance(now[1], unroll * by.b_k)};
      next.insert(next.end(), running.begin(), running.end());
      return next;
    });
  };
  const int64_t unroll = m_schedule.unroll;
  rounds(e.ir.CreateUDiv(count, e.index(unroll)), unroll);
  rounds(e.ir.CreateURem(count, e.index(unroll)), 1);
  at = {carried[0], carried[1]};
  return {carried.begin() + 2, carried.end()};
}

OuterProductKernel::Sums OuterProductKernel::multiply(const TileShape& shape, const GemmTileCall& call) {
  Emitter& e = m_g.e;
  Operands at{call.a, call.b};
  if (!has_runs()) return sum_run(shape, at, call.k_count);
  const auto total_at = [&](size_t i) {
    return e.advance(call.scratch, static_cast<int64_t>(i) * m_g.sum_vector_bytes());
  };
  const auto alignment = static_cast<uint64_t>(m_g.sum_vector_bytes());
  const auto sums = static_cast<size_t>(shape.rows * shape.vectors);
  for (size_t i = 0; i < sums; ++i) e.store(m_g.zero(), total_at(i), alignment);
  const auto add = [&](const Sums& run, bool keep) {
    Sums totals;
    for (size_t i = 0; i < sums; ++i) {
      totals.push_back(m_g.add(e.load(m_g.sum_vector(), total_at(i), alignment), run[i]));
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
  for (size_t i = 0; i < sums; ++i) totals.push_back(e.load(m_g.sum_vector(), total_at(i), alignment));
  return totals;
}

void OuterProductKernel::prefetch_output(const TileShape& shape, const GemmTileCall& call) {
  const Access* access = m_g.problem.partial_sums;
  if (!m_schedule.prefetch_output || access == nullptr) return;
  Value* start = m_g.address(*access, call.place, call.m, call.n);
  const int64_t row_bytes = access->strides[access->strides.size() - 2] * m_g.sum_bytes();
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t v = 0; v < shape.vectors; ++v) {
      Value* line = m_g.e.advance(start, row * row_bytes + v * m_g.sum_vector_bytes());
      m_g.e.ir.CreateIntrinsic(llvm::Intrinsic::prefetch, {m_g.e.pointer()},
                               {line, m_g.e.ir.getInt32(1), m_g.e.ir.getInt32(3), m_g.e.ir.getInt32(1)});
    }
  }
}

void OuterProductKernel::emit(const TileShape& shape, const GemmTileCall& call) {
  Emitter& e = m_g.e;
  prefetch_output(shape, call);
  if (m_g.grid.blocks == 1) return finish(shape, call, multiply(shape, call));

  const auto each = [&](const auto& visit) {
    for (int64_t row = 0; row < shape.rows; ++row) {
      for (int64_t v = 0; v < shape.vectors; ++v) {
        visit(e.advance(call.partial, row * m_g.partial_row_bytes() + v * m_g.sum_vector_bytes()),
              m_g.columns(shape, v));
      }
    }
  };
  Sums block = multiply(shape, call);
  const Sums sums = e.if_else(
      is_block(call, GemmTileCall::k_first), [&] { return block; },
      [&] {
        Sums total;
        each([&](Value* pointer, int64_t lanes) {
          total.push_back(m_g.add(m_g.load_lanes(m_g.sum_vector(), pointer, lanes), block[total.size()]));
        });
        return total;
      });
  e.if_else(
      is_block(call, GemmTileCall::k_last),
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

void OuterProductKernel::finish(const TileShape& shape, const GemmTileCall& call, const Sums& sums) {
  if (!m_schedule.rolled_epilogue) return store_results(shape, call, sums);
  Emitter& e = m_g.e;
  const int64_t row_bytes = m_schedule.tile_vectors * m_g.sum_vector_bytes();
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t v = 0; v < shape.vectors; ++v) {
      e.store(sums[row * shape.vectors + v], e.advance(call.scratch, row * row_bytes + v * m_g.sum_vector_bytes()),
              static_cast<uint64_t>(m_g.sum_vector_bytes()));
    }
  }
  m_epilogue.run(call, shape.rows, m_g.columns(shape));
}

void OuterProductKernel::store_results(const TileShape& shape, const GemmTileCall& call, const Sums& sums) {
  GemmBody body(m_g, m_g.problem.gemm->epilogue, call.place);
  for (int64_t v = 0; v < shape.vectors; ++v) {
    Scope& columns =
        body.lanes(body.inner_dim(), call.n, v * m_g.sum_lanes(), m_g.mask(m_g.columns(shape, v), m_g.sum_lanes()));
    prepare_stores(m_g, body, columns);
    for (int64_t row = 0; row < shape.rows; ++row) {
      Value* m = m_g.e.ir.CreateAdd(call.m, m_g.e.index(row));
      emit_stores(m_g, body, body.at(columns, body.outer_dim(), m), sums[row * shape.vectors + v]);
    }
  }
}

template <typename Choices>
Status claims(const KernelSpec& spec, const CpuTarget& target) {
  KILN_RETURN_IF_ERROR(gemm_bodies_claims(spec));
  return Choices::types(spec, target).status();
}

constexpr int64_t k_rows_to_repay_pairing = 8;

/// Pairs of a B whose rows lie along n have to be packed. For few rows of A it is faster to read B once, where it lies.
bool is_better_widened(const GemmProblem& problem) {
  const bool packs_pairs = problem.k_group() > 1 && problem.b.plain != nullptr && problem.b.tile_stride == 1;
  return packs_pairs && problem.gemm->m < k_rows_to_repay_pairing;
}

template <typename Choices>
std::vector<Schedule> schedules(const KernelSpec& spec, const CpuTarget& target, const Machine& machine) {
  return schedules_of<Choices>(spec, target, [&](const GemmProblem& problem) {
    return is_better_widened(problem) ? std::vector<OuterProductSchedule>() : ranked_schedules(problem, machine);
  });
}

template <typename Choices>
constexpr Implementation k_row{Choices::k_implementation, claims<Choices>, schedules<Choices>,
                               emit_tiles<Choices, OuterProductKernel>};

}  // namespace

Implementation outer_product_implementation() { return k_row<OuterProductSchedule>; }
Implementation bf16_outer_product_implementation() { return k_row<Bf16OuterProductSchedule>; }
Implementation i16_outer_product_implementation() { return k_row<I16OuterProductSchedule>; }
Implementation i8_outer_product_implementation() { return k_row<I8OuterProductSchedule>; }

}  // namespace kiln::cpu
