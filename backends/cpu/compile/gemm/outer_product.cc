#include "backends/cpu/compile/gemm/outer_product.h"

#include <functional>

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
/// cycles. A block of k begins with the totals of the blocks before.
///
/// A run of windows is all elements of some channels: of the first element one channel after another, then of the next one.
/// This order, and how long runs are, are those of oneDNN's kernels for AVX-512: what both have computed is the same to the
/// last bit for most convolutions, so that a ReLU behind finds the same signs.
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
                   {.vectors = schedule.tile_vectors, .has_whole = true, .has_tail = may_have_tail(emission)}) {}

  int64_t scratch_bytes() const override {
    if (!m_schedule.rolled_epilogue && !has_runs() && m_g.problem.sized == nullptr) return 0;
    return m_schedule.tile_rows * m_schedule.tile_vectors * m_g.sum_vector_bytes();
  }

 private:
  using Sums = Values;  // row by row
  /// How a tile steps through a packed or unpacked operand, in bytes, and which columns of a B exist that is not packed.
  struct Steps {
    Values a_rows;  // from the first row to each; of rows that do not exist, to the last that does
    Value* b_k = nullptr;
    int64_t a_k = 0, b_vector = 0;
    Values masks;  // by vector; null for all
  };
  struct Operands {
    Value* a = nullptr;
    Value* b = nullptr;
  };

  void emit_callees() override {
    if (m_schedule.rolled_epilogue || m_g.problem.sized != nullptr) m_epilogue.function();
  }
  void emit(const TileShape& shape, const GemmTileCall& call) override;
  static bool may_have_tail(const GemmEmission& g) { return g.problem.sized != nullptr || g.grid.tail != 0; }
  Steps steps(const TileShape& shape, const GemmTileCall& call) const;
  Value* row_of(const TileShape& shape, const GemmTileCall& call, int64_t row) const;
  Values masks(const TileShape& shape, const GemmTileCall& call) const;
  /// The sums of a block of k, added to what `before` gives; null: nothing.
  Sums multiply(const TileShape& shape, const GemmTileCall& call, const std::function<Sums()>& before);
  Sums sum_run(const TileShape& shape, const Steps& by, Operands& at, Value* count);
  Values sum_steps(const TileShape& shape, const Steps& by, Value* count, Values carried);
  Sums zeros(const TileShape& shape) const;
  SumOrder sum_order() const {
    return m_g.grid.blocks == 1 ? m_g.problem.sum_order() : m_g.problem.sum_order_of_blocks(m_g.blocking.k_block);
  }
  bool has_runs() const { return sum_order().run < m_g.blocking.k_block; }
  Sums step(const TileShape& shape, const Steps& steps, Value* a, Value* b, int64_t at, const Sums& sums);
  void prefetch_output(const TileShape& shape, const GemmTileCall& call);
  void finish(const TileShape& shape, const GemmTileCall& call, const Sums& sums);
  void store_results(const TileShape& shape, const GemmTileCall& call, const Sums& sums);

  const OuterProductSchedule& m_schedule;
  GemmEpilogue m_epilogue;
};

/// A row's index; of one that does not exist the last that does.
Value* OuterProductKernel::row_of(const TileShape& shape, const GemmTileCall& call, int64_t row) const {
  Emitter& e = m_g.e;
  if (!shape.is_edge || row == 0) return e.index(row);
  return e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, e.index(row), e.ir.CreateSub(call.rows, e.index(1)));
}

/// By vector of columns: which of them exist, null for all.
Values OuterProductKernel::masks(const TileShape& shape, const GemmTileCall& call) const {
  Values masks;
  for (int64_t v = 0; v < shape.vectors; ++v) {
    Value* before = m_g.e.index(v * m_g.sum_lanes());
    masks.push_back(shape.is_edge ? m_g.e.prefix_mask(m_g.e.ir.CreateSub(call.columns, before), m_g.lanes())
                                  : m_g.mask(m_g.columns(shape, v), m_g.sum_lanes()));
  }
  return masks;
}

OuterProductKernel::Steps OuterProductKernel::steps(const TileShape& shape, const GemmTileCall& call) const {
  Emitter& e = m_g.e;
  const GemmProblem& problem = m_g.problem;
  const int64_t bytes = m_g.packed_bytes();
  // What is packed of an edge is as wide as what is packed of a whole tile.
  const bool is_sized = problem.sized != nullptr;
  const int64_t packed_rows = is_sized ? m_schedule.tile_rows : shape.rows;
  const int64_t packed_vectors = is_sized ? m_schedule.tile_vectors : shape.vectors;
  Steps steps;
  Value* row_bytes = nullptr;
  switch (m_schedule.read_a) {
    case ReadA::direct:
      row_bytes = m_g.tile_bytes(call.place, problem.a);
      steps.a_k = problem.a.k_stride * bytes;
      break;
    case ReadA::rows:
      row_bytes = e.index(packed_row_bytes(m_g));
      steps.a_k = bytes;
      break;
    case ReadA::panels:
      row_bytes = e.index(bytes);
      steps.a_k = packed_rows * bytes;
      break;
  }
  for (int64_t row = 0; row < shape.rows; ++row) {
    steps.a_rows.push_back(e.ir.CreateMul(row_of(shape, call, row), row_bytes));
  }
  switch (m_schedule.read_b) {
    case ReadB::direct:
      steps.b_k = m_g.k_bytes(call.place, problem.b);
      steps.b_vector = m_g.sum_lanes() * problem.b.element_bytes();
      steps.masks = masks(shape, call);
      break;
    case ReadB::placed:
      steps.b_k = e.index(m_g.packed_vector_bytes());
      steps.b_vector = m_g.panel_bytes();
      break;
    case ReadB::panels:
    case ReadB::transposed:
      steps.b_k = e.index(packed_vectors * m_g.packed_vector_bytes());
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
    Value* step = e.ir.CreateMul(e.index(at), steps.b_k);
    Value* pointer = e.advance(b, e.ir.CreateAdd(step, e.index(v * steps.b_vector)));
    columns.push_back(m_schedule.read_b == ReadB::direct
                          ? m_g.load_elements(m_g.problem.b, pointer, steps.masks[static_cast<size_t>(v)])
                          : e.load(m_g.packed_vector(), pointer, packed_alignment));
  }
  Sums next;
  for (int64_t row = 0; row < shape.rows; ++row) {
    const auto alignment = static_cast<uint64_t>(m_g.packed_bytes() / m_g.k_group());
    Value* offset = e.ir.CreateAdd(steps.a_rows[static_cast<size_t>(row)], e.index(at * steps.a_k));
    Value* scalar = e.load(m_g.packed_step(), e.advance(a, offset), alignment);
    Value* broadcast = e.splat(scalar, m_g.lanes());
    for (int64_t v = 0; v < shape.vectors; ++v) {
      next.push_back(m_g.multiply_add(broadcast, columns[v], sums[row * shape.vectors + v]));
    }
  }
  return next;
}

OuterProductKernel::Sums OuterProductKernel::zeros(const TileShape& shape) const {
  return Sums(static_cast<size_t>(shape.rows * shape.vectors), m_g.zero());
}

/// `carried`: where the operands are, and the sums.
Values OuterProductKernel::sum_steps(const TileShape& shape, const Steps& by, Value* count, Values carried) {
  Emitter& e = m_g.e;
  const auto rounds = [&](Value* times, int64_t unroll) {
    carried = e.loop(e.index(0), times, 1, carried, [&](Value*, const Values& now) {
      Sums running(now.begin() + 2, now.end());
      for (int64_t i = 0; i < unroll; ++i) running = step(shape, by, now[0], now[1], i, running);
      Values next{e.advance(now[0], unroll * by.a_k), e.advance(now[1], e.ir.CreateMul(e.index(unroll), by.b_k))};
      next.insert(next.end(), running.begin(), running.end());
      return next;
    });
  };
  const int64_t unroll = m_schedule.unroll;
  rounds(e.ir.CreateUDiv(count, e.index(unroll)), unroll);
  rounds(e.ir.CreateURem(count, e.index(unroll)), 1);
  return carried;
}

OuterProductKernel::Sums OuterProductKernel::sum_run(const TileShape& shape, const Steps& by, Operands& at,
                                                     Value* count) {
  Emitter& e = m_g.e;
  Value* b_end = e.advance(at.b, e.ir.CreateMul(count, by.b_k));
  Sums sums = zeros(shape);
  if (m_g.extra_steps() > 0) {
    Values begins;
    for (int64_t v = 0; v < shape.vectors; ++v) {
      begins.push_back(
          e.load(m_g.sum_vector(), e.advance(b_end, v * by.b_vector), static_cast<uint64_t>(m_g.sum_vector_bytes())));
    }
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = begins[i % begins.size()];
  }
  const int64_t window = sum_order().window;
  Steps across = by;  // from a channel to the next
  across.a_k *= window;
  across.b_k = e.ir.CreateMul(by.b_k, e.index(window));
  Value* channels = e.ir.CreateUDiv(count, e.index(window));
  Values carried{at.a, at.b};
  carried.insert(carried.end(), sums.begin(), sums.end());
  const auto sum_element = [&](Value*, const Values& now) {
    Values next = sum_steps(shape, across, channels, now);
    next[0] = e.advance(now[0], by.a_k);
    next[1] = e.advance(now[1], by.b_k);
    return next;
  };
  carried = window == 1 ? sum_element(nullptr, carried) : e.loop(e.index(0), e.index(window), 1, carried, sum_element);
  at = {e.advance(at.a, e.ir.CreateMul(count, e.index(by.a_k))), b_end};
  return {carried.begin() + 2, carried.end()};
}

OuterProductKernel::Sums OuterProductKernel::multiply(const TileShape& shape, const GemmTileCall& call,
                                                      const std::function<Sums()>& before) {
  Emitter& e = m_g.e;
  Operands at{call.a, call.b};
  const Steps by = steps(shape, call);
  const auto sum = [&](const Sums& totals, const Sums& run) {
    Sums sums;
    for (size_t i = 0; i < run.size(); ++i) sums.push_back(m_g.add(totals[i], run[i]));
    return sums;
  };
  if (!has_runs()) {
    const Sums run = sum_run(shape, by, at, call.k_count);
    return before == nullptr ? run : sum(before(), run);
  }
  const auto alignment = static_cast<uint64_t>(m_g.sum_vector_bytes());
  const auto total_at = [&](size_t i) {
    return e.advance(call.scratch, static_cast<int64_t>(i) * m_g.sum_vector_bytes());
  };
  const auto keep = [&](const Sums& totals) {
    for (size_t i = 0; i < totals.size(); ++i) e.store(totals[i], total_at(i), alignment);
  };
  const auto kept = [&] {
    Sums totals;
    for (int64_t i = 0; i < shape.rows * shape.vectors; ++i) {
      totals.push_back(e.load(m_g.sum_vector(), total_at(static_cast<size_t>(i)), alignment));
    }
    return totals;
  };
  const auto begun = [&] { return before == nullptr ? zeros(shape) : before(); };
  if (m_g.problem.sized != nullptr) keep(begun());  // of rows in no group k is empty
  const int64_t longest = sum_order().run;
  e.loop(e.index(0), call.k_count, longest, {at.a, at.b}, [&](Value* from, const Values& now) {
    Operands here{now[0], now[1]};
    Value* rest = e.ir.CreateSub(call.k_count, from);
    Value* count = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, rest, e.index(longest));
    const Sums run = sum_run(shape, by, here, count);
    keep(sum(e.if_else(e.ir.CreateICmpEQ(from, e.index(0)), begun, kept), run));
    return Values{here.a, here.b};
  });
  return kept();
}

void OuterProductKernel::prefetch_output(const TileShape& shape, const GemmTileCall& call) {
  const Access* access = m_g.problem.partial_sums;
  if (!m_schedule.prefetch_output || access == nullptr || shape.is_edge) return;
  Value* start = m_g.address(*access, call.place, call.m, call.n);
  Value* row_bytes = m_g.partial_row_bytes(call.place);
  for (int64_t row = 0; row < shape.rows; ++row) {
    Value* first = m_g.e.advance(start, m_g.e.ir.CreateMul(m_g.e.index(row), row_bytes));
    for (int64_t v = 0; v < shape.vectors; ++v) {
      Value* line = m_g.e.advance(first, v * m_g.sum_vector_bytes());
      m_g.e.ir.CreateIntrinsic(llvm::Intrinsic::prefetch, {m_g.e.pointer()},
                               {line, m_g.e.ir.getInt32(1), m_g.e.ir.getInt32(3), m_g.e.ir.getInt32(1)});
    }
  }
}

void OuterProductKernel::emit(const TileShape& shape, const GemmTileCall& call) {
  Emitter& e = m_g.e;
  prefetch_output(shape, call);
  if (m_g.grid.blocks == 1) return finish(shape, call, multiply(shape, call, nullptr));

  Value* row_bytes = m_g.partial_row_bytes(call.place);
  const Values exist = masks(shape, call);
  const auto each_of_row = [&](int64_t row, const auto& visit) {
    Value* first = e.advance(call.partial, e.ir.CreateMul(row_of(shape, call, row), row_bytes));
    for (int64_t v = 0; v < shape.vectors; ++v) {
      visit(e.advance(first, v * m_g.sum_vector_bytes()), exist[static_cast<size_t>(v)],
            static_cast<size_t>(row * shape.vectors + v));
    }
  };
  const auto partials = [&] {
    Sums loaded;
    for (int64_t row = 0; row < shape.rows; ++row) {
      each_of_row(row, [&](Value* pointer, Value* mask, size_t) {
        loaded.push_back(mask == nullptr ? e.load(m_g.sum_vector(), pointer)
                                         : e.masked_load(m_g.sum_vector(), pointer, mask));
      });
    }
    return loaded;
  };
  const Sums sums = multiply(shape, call, [&] {
    return e.if_else(is_block(call, GemmTileCall::k_first), [&] { return zeros(shape); }, partials);
  });
  e.if_else(
      is_block(call, GemmTileCall::k_last),
      [&] {
        finish(shape, call, sums);
        return Values{};
      },
      [&] {
        for (int64_t row = 0; row < shape.rows; ++row) {
          const auto store = [&] {
            each_of_row(row, [&](Value* pointer, Value* mask, size_t i) {
              mask == nullptr ? e.store(sums[i], pointer) : e.masked_store(sums[i], pointer, mask);
            });
          };
          if (!shape.is_edge || row == 0) {
            store();
          } else {
            e.if_then(e.ir.CreateICmpSGT(call.rows, e.index(row)), store);
          }
        }
        return Values{};
      });
}

void OuterProductKernel::finish(const TileShape& shape, const GemmTileCall& call, const Sums& sums) {
  if (!m_schedule.rolled_epilogue && !shape.is_edge) return store_results(shape, call, sums);
  Emitter& e = m_g.e;
  const int64_t row_bytes = m_schedule.tile_vectors * m_g.sum_vector_bytes();
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t v = 0; v < shape.vectors; ++v) {
      e.store(sums[row * shape.vectors + v], e.advance(call.scratch, row * row_bytes + v * m_g.sum_vector_bytes()),
              static_cast<uint64_t>(m_g.sum_vector_bytes()));
    }
  }
  m_epilogue.run(call, shape.is_edge ? call.rows : e.index(shape.rows),
                 shape.is_edge ? call.columns : e.index(m_g.columns(shape)));
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
Status sized_claims(const KernelSpec& spec, const CpuTarget& target) {
  KILN_RETURN_IF_ERROR(gemm_bodies_claims(spec));
  return Choices::types(spec, target).status();
}

template <typename Choices>
Status claims(const KernelSpec& spec, const CpuTarget& target) {
  KILN_RETURN_IF_ERROR(whole_products_claims(spec));
  return sized_claims<Choices>(spec, target);
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
Status grouped_claims(const KernelSpec& spec, const CpuTarget& target) {
  if (whole_products_claims(spec).ok()) return error(StatusCode::unimplemented, "gemm by groups: there are none");
  return sized_claims<Choices>(spec, target);
}

template <typename Choices>
Expected<LaunchShape> emit_sized(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes) {
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<Choices>(bytes));
  KILN_ASSIGN_OR_RETURN(const GemmTypes types, Choices::types(spec, emitter.target()));
  const KernelSpec form = oriented(spec, schedule.exchanged);
  GemmProblem problem = analyse_gemm(form, emitter.target(), types);
  KILN_RETURN_IF_ERROR(schedule.validate(problem));
  constexpr bool is_known = requires { Choices::k_is_known; };
  const SizedGemm sized = is_known ? SizedGemm::closed(form)
                                   : SizedGemm::open(form, schedule.read_a, schedule.read_b, worthwhile_tasks(problem));
  problem.sized = &sized;
  GemmEmission emission(emitter, problem, schedule.blocking(problem));
  OuterProductKernel kernel(emission, schedule);
  return emit_gemm_loops(emission, kernel);
}

template <typename Choices>
constexpr Implementation k_row{Choices::k_implementation, claims<Choices>, schedules<Choices>,
                               emit_tiles<Choices, OuterProductKernel>};

}  // namespace

Implementation sized_outer_product_implementation() {
  using Choices = SizedOuterProductSchedule;
  return {Choices::k_implementation, sized_claims<Choices>, no_schedules, emit_sized<Choices>, sized_outer_product};
}
Implementation sized_bf16_outer_product_implementation() {
  using Choices = SizedBf16OuterProductSchedule;
  return {Choices::k_implementation, sized_claims<Choices>, no_schedules, emit_sized<Choices>,
          sized_bf16_outer_product};
}
Implementation grouped_outer_product_implementation() {
  using Choices = GroupedOuterProductSchedule;
  return {Choices::k_implementation, grouped_claims<Choices>, grouped_schedules<Choices>, emit_sized<Choices>};
}
Implementation grouped_bf16_outer_product_implementation() {
  using Choices = GroupedBf16OuterProductSchedule;
  return {Choices::k_implementation, grouped_claims<Choices>, grouped_schedules<Choices>, emit_sized<Choices>};
}
Implementation outer_product_implementation() { return k_row<OuterProductSchedule>; }
Implementation bf16_outer_product_implementation() { return k_row<Bf16OuterProductSchedule>; }
Implementation i16_outer_product_implementation() { return k_row<I16OuterProductSchedule>; }
Implementation i8_outer_product_implementation() { return k_row<I8OuterProductSchedule>; }

}  // namespace kiln::cpu
