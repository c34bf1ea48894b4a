#include <algorithm>

#include "backends/level_zero/compile/attention_products.h"
#include "base/ceil_div.h"

// Attention's gradients: FlashAttention-2 (Dao, arXiv 2307.08691), algorithm 2, with a work-group for each tile of rows, so
// that nothing is added up between groups. The gradient of a tile of keys, and of one of queries, are the same sums over
// tiles of columns of the other:
//
//     weights = exp(rows 1 * columns 1^T - logsumexp)     gradient 1 += (weights * (rows 2 * columns 2^T - delta)) * columns 1
//                                                         gradient 2 += weights * columns 2
//
// Logsumexp and delta = sum of out * its gradient are the queries', whichever side they are on.
namespace kiln::level_zero {
namespace {

using spv::Op;

struct Side {
  AttentionTensor rows_1, rows_2, columns_1, columns_2, gradient_1, gradient_2;  // 2: none of queries
  bool is_of_queries() const { return rows_1.is_of_queries; }
};

class BackwardEmitter {
 public:
  BackwardEmitter(Emitter& emitter, const AttentionProblem& problem, const AttentionSchedule& schedule,
                  const DeviceFamily& family)
      : e(emitter),
        m_a(*problem.forward),
        m_backward(*problem.backward),
        m_schedule(schedule),
        m_problem(problem),
        m_tiles(emitter, problem, schedule),
        m_products(AttentionProducts::create(emitter, m_tiles, m_a.dtype, schedule, family)) {}

  void run() {
    const int64_t rows = m_schedule.tile_rows(), columns = m_schedule.tile_columns();
    const AttentionProducts::Uses as_rows{.as_rows = true}, as_columns{.as_columns = true, .by_weights = true};
    m_rows_1 = m_products->tile(m_a.head_dim, as_rows), m_rows_2 = m_products->tile(m_a.value_dim, as_rows);
    m_columns_1 = m_products->tile(m_a.head_dim, as_columns);
    m_columns_2 = m_products->tile(m_a.value_dim, as_columns);
    const auto queries = static_cast<uint32_t>(std::max(rows, columns));
    m_lse = e.local_array(m_tiles.scalars().register_type(m_tiles.dtype()), queries);
    m_delta = e.local_array(m_tiles.scalars().register_type(m_tiles.dtype()), queries);

    const int64_t of_keys = ceil_div(m_a.k_len, rows), of_queries = ceil_div(m_problem.queries(), rows);
    const Id tile = m_tiles.enter_place(of_keys + of_queries);
    const AttentionTensor q = m_tiles.of_queries(m_a.q, m_a.head_dim), k = m_tiles.of_keys(m_a.k, m_a.head_dim),
                          v = m_tiles.of_keys(m_a.v, m_a.value_dim),
                          grad_q = m_tiles.of_queries(m_backward.grad_q, m_a.head_dim),
                          grad_k = m_tiles.of_keys(m_backward.grad_k, m_a.head_dim),
                          grad_v = m_tiles.of_keys(m_backward.grad_v, m_a.value_dim);
    m_out = m_tiles.of_queries(m_a.out, m_a.value_dim),
    m_grad_out = m_tiles.of_queries(m_backward.grad_out, m_a.value_dim);
    const auto first_row = [&](Id number) { return e.mul(number, m_tiles.number(rows)); };
    // Where attention is causal the first keys have the most queries, and the last queries the most keys: they begin first.
    e.if_then(e.compare(Op::OpULessThan, tile, m_tiles.number(of_keys)),
              [&] { gradients({k, v, q, m_grad_out, grad_k, grad_v}, first_row(tile)); });
    e.if_then(e.compare(Op::OpUGreaterThanEqual, tile, m_tiles.number(of_keys)), [&] {
      const Id back = e.op(Op::OpISub, e.integer(32), {m_tiles.number(of_keys + of_queries - 1), tile});
      gradients({q, m_grad_out, k, v, grad_q, {}}, first_row(back));
    });
  }

 private:
  void gradients(const Side& side, Id first) {
    const bool has_2 = side.gradient_2.access != nullptr;
    const auto gradient_1 = m_products->sums(m_a.head_dim);
    const auto gradient_2 = has_2 ? m_products->sums(m_a.value_dim) : gradient_1;
    m_products->fill(m_rows_1, side.rows_1, first);
    m_products->fill(m_rows_2, side.rows_2, first);
    if (side.is_of_queries()) fill_statistics(first, m_schedule.tile_rows());
    m_tiles.for_columns(side.is_of_queries(), first, [&](Id column) {
      m_products->fill(m_columns_1, side.columns_1, column);
      m_products->fill(m_columns_2, side.columns_2, column);
      if (!side.is_of_queries()) fill_statistics(column, m_schedule.tile_columns());
      e.barrier(/*global_memory=*/false);
      const AttentionTiles::Block weights = m_products->products(m_rows_1, m_columns_1);
      const AttentionTiles::Block of_weights = m_products->products(m_rows_2, m_columns_2);
      weigh(side, weights, of_weights, first, column);
      m_products->accumulate(gradient_1, of_weights, m_columns_1);
      if (has_2) m_products->accumulate(gradient_2, weights, m_columns_2);
      e.barrier(/*global_memory=*/false);
    });
    const Id scale = e.constant_real(m_tiles.scalars().register_type(m_tiles.dtype()), m_a.scale);
    m_tiles.store(side.gradient_1, first, m_products->values(gradient_1), Ids(m_schedule.rows, scale));
    if (has_2) m_tiles.store(side.gradient_2, first, m_products->values(gradient_2), {});
  }

  /// A query of the tile, and its statistics.
  struct Known {
    AttentionTiles::Query query;
    Id lse, delta;
  };
  Known known(Id first, Id in_tile) {
    const auto statistic = [&](Id of) { return e.load(e.array_pointer(of, in_tile), m_tiles.alignment()); };
    return {m_tiles.query_at(e.add(first, in_tile)), statistic(m_lse), statistic(m_delta)};
  }

  /// Of products, their weights, and of the weights' gradients those of the products.
  void weigh(const Side& side, const AttentionTiles::Block& weights, const AttentionTiles::Block& of_weights,
             Id first_row, Id first_column) {
    std::vector<Known> of_rows, of_columns;
    if (side.is_of_queries()) {
      for (int i = 0; i < m_schedule.rows; ++i)
        of_rows.push_back(known(first_row, m_tiles.row_of(m_tiles.number(0), i)));
    } else {
      for (int j = 0; j < m_schedule.columns; ++j) {
        of_columns.push_back(known(first_column, m_tiles.column_of(m_tiles.number(0), j)));
      }
    }
    const auto minus = [&](Id a, Id b) { return e.op(Op::OpFSub, e.type_of(a), {a, b}); };
    for (size_t i = 0; i < weights.size(); ++i) {
      for (size_t j = 0; j < weights[i].size(); ++j) {
        const Known& of = side.is_of_queries() ? of_rows[i] : of_columns[j];
        const Id key = side.is_of_queries() ? m_tiles.column_of(first_column, static_cast<int>(j))
                                            : m_tiles.row_of(first_row, static_cast<int>(i));
        const Id score = m_tiles.score(of.query, key, e.load(weights[i][j]));
        const Id weight = e.math(OpenCLLIB::Exp, e.type_of(score), {minus(score, of.lse)});
        const Id gradient = minus(e.load(of_weights[i][j]), of.delta);
        e.store(weights[i][j], weight);
        e.store(of_weights[i][j], e.op(Op::OpFMul, e.type_of(weight), {weight, gradient}));
      }
    }
  }

  /// Logsumexp and delta of `rows` queries from `first` on, a sub-group for each. A logsumexp that no score reaches stands
  /// where there is no query, or none that has a key: its weights are 0.
  void fill_statistics(Id first, int64_t rows) {
    const Id type = m_tiles.scalars().register_type(m_tiles.dtype());
    const Id total = e.variable(type), lse = e.variable(type);
    const Id unreachable = m_tiles.scalars().identity(Combiner::minimum, m_tiles.dtype());
    e.loop(e.sub_group_id(), m_tiles.number(rows), m_tiles.number(m_schedule.sub_groups), [&](Id place) {
      const Id row = e.add(first, place);
      e.store(total, m_tiles.scalars().zero(m_tiles.dtype()));
      e.store(lse, unreachable);
      e.if_then(e.compare(Op::OpULessThan, row, m_tiles.number(m_problem.queries())), [&] {
        e.loop(e.lane(), m_tiles.number(m_a.value_dim), m_tiles.number(m_schedule.lanes), [&](Id depth) {
          const Id a = m_tiles.load(m_out, row, depth), b = m_tiles.load(m_grad_out, row, depth);
          e.store(total, e.math(OpenCLLIB::Fma, type, {a, b, e.load(total)}));
        });
        const Id saved = e.load(m_tiles.lse_pointer(m_tiles.query_at(row)), m_tiles.alignment());
        e.store(lse, e.select(e.compare(Op::OpFOrdEqual, saved, m_tiles.nothing()), unreachable, saved));
      });
      const Id delta =
          combine_lanes(e, e.load(total), [&](Id a, Id b) { return e.op(Op::OpFAdd, type, {a, b}); }, m_schedule.lanes);
      e.if_then(e.compare(Op::OpIEqual, e.lane(), m_tiles.number(0)), [&] {
        e.store(e.array_pointer(m_lse, place), e.load(lse), m_tiles.alignment());
        e.store(e.array_pointer(m_delta, place), delta, m_tiles.alignment());
      });
    });
  }

  Emitter& e;
  const AttentionSpec& m_a;
  const AttentionBackwardSpec& m_backward;
  const AttentionSchedule m_schedule;
  const AttentionProblem m_problem;
  AttentionTiles m_tiles;
  AttentionTensor m_out, m_grad_out;
  const std::unique_ptr<AttentionProducts> m_products;
  AttentionProducts::Tile m_rows_1{}, m_rows_2{}, m_columns_1{}, m_columns_2{};
  Id m_lse = 0, m_delta = 0;  // of a tile's queries
};

}  // namespace

void emit_attention_backward(Emitter& emitter, const AttentionProblem& problem, const AttentionSchedule& schedule,
                             const DeviceFamily& family) {
  BackwardEmitter(emitter, problem, schedule, family).run();
}

}  // namespace kiln::level_zero
