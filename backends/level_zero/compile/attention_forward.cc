#include "backends/level_zero/compile/attention_products.h"
#include "base/ceil_div.h"

// Attention's forward pass. The softmax goes along with the keys: Milakov, Gimelshein, "Online normalizer calculation for
// softmax", arXiv 1805.02867. A row's highest score is the same in all lanes; a lane's sum is of its own keys until the end.
namespace kiln::level_zero {
namespace {

using spv::Op;

class ForwardEmitter {
 public:
  ForwardEmitter(Emitter& emitter, const AttentionProblem& problem, const AttentionSchedule& schedule,
                 const DeviceFamily& family)
      : e(emitter),
        m_a(*problem.forward),
        m_schedule(schedule),
        m_tiles(emitter, problem, schedule),
        m_products(AttentionProducts::create(emitter, m_tiles, m_a.dtype, schedule, family)),
        m_problem(problem) {}

  void run() {
    const int64_t tiles = ceil_div(m_problem.queries(), m_schedule.tile_rows());
    // The last tiles have the most keys where attention is causal: they begin first.
    const Id tile = e.op(Op::OpISub, e.integer(32), {m_tiles.number(tiles - 1), m_tiles.enter_place(tiles)});
    const Id first = e.mul(tile, m_tiles.number(m_schedule.tile_rows()));
    const AttentionTensor q = m_tiles.of_queries(m_a.q, m_a.head_dim), k = m_tiles.of_keys(m_a.k, m_a.head_dim),
                          v = m_tiles.of_keys(m_a.v, m_a.value_dim);
    for (int i = 0; i < m_schedule.rows; ++i) m_queries.push_back(m_tiles.query_at(m_tiles.row_of(first, i)));
    const auto out = m_products->sums(m_a.value_dim);
    m_statistics = m_tiles.zeros(2);
    for (const Ids& row : m_statistics) e.store(row[k_highest], m_tiles.nothing());
    const auto of_q = m_products->tile(m_a.head_dim, {.as_rows = true});
    const auto of_k = m_products->tile(m_a.head_dim, {.as_columns = true});
    const auto of_v = m_products->tile(m_a.value_dim, {.by_weights = true});
    m_products->fill(of_q, q, first);
    m_tiles.for_columns(/*rows_are_queries=*/true, first, [&](Id key) {
      m_products->fill(of_k, k, key);
      m_products->fill(of_v, v, key);
      e.barrier(/*global_memory=*/false);
      const AttentionTiles::Block scores = m_products->products(of_q, of_k);
      Ids rescales;
      for (int i = 0; i < m_schedule.rows; ++i) rescales.push_back(weigh(scores, static_cast<size_t>(i), key));
      m_products->scale(out, rescales);
      m_products->accumulate(out, scores, of_v);
      e.barrier(/*global_memory=*/false);
    });
    finish(out, first);
  }

 private:
  static constexpr size_t k_highest = 0, k_sum = 1;  // statistics of a row

  Id exp_of_difference(Id a, Id b) {
    return e.math(OpenCLLIB::Exp, e.type_of(a), {e.op(Op::OpFSub, e.type_of(a), {a, b})});
  }
  Id is_nothing(Id x) { return e.compare(Op::OpFOrdEqual, x, m_tiles.nothing()); }

  /// Of products, scores, and of those their weights. What earlier sums of the row are to be scaled by.
  Id weigh(const AttentionTiles::Block& products, size_t i, Id key) {
    const Id highest = m_statistics[i][k_highest], sum = m_statistics[i][k_sum], old = e.load(highest);
    const auto maximum = [&](Id a, Id b) { return e.math(OpenCLLIB::Fmax, e.type_of(a), {a, b}); };
    Ids scores;
    Id best = old;
    for (int j = 0; j < m_schedule.columns; ++j) {
      const Id product = e.load(products[i][static_cast<size_t>(j)]);
      scores.push_back(m_tiles.score(m_queries[i], m_tiles.column_of(key, j), product));
      best = maximum(best, scores.back());
    }
    best = e.shuffle(combine_lanes(e, best, maximum, m_schedule.lanes), m_tiles.number(0));
    e.store(highest, best);
    const Id base = e.select(is_nothing(best), m_tiles.scalars().zero(m_tiles.dtype()), best);
    const Id rescale = exp_of_difference(old, base);
    e.store(sum, e.op(Op::OpFMul, e.type_of(rescale), {e.load(sum), rescale}));
    for (size_t j = 0; j < scores.size(); ++j) {
      const Id weight = exp_of_difference(scores[j], base);
      e.store(products[i][j], weight);
      e.store(sum, e.op(Op::OpFAdd, e.type_of(weight), {e.load(sum), weight}));
    }
    return rescale;
  }

  void finish(AttentionProducts::Sums out, Id first) {
    Ids factors;
    for (size_t i = 0; i < m_queries.size(); ++i) {
      const Id zero = m_tiles.scalars().zero(m_tiles.dtype()), one = e.constant_real(e.type_of(zero), 1);
      const Id sum = combine_lanes(
          e, e.load(m_statistics[i][k_sum]), [&](Id a, Id b) { return e.op(Op::OpFAdd, e.type_of(a), {a, b}); },
          m_schedule.lanes);
      const Id is_empty = e.compare(Op::OpFOrdEqual, sum, zero);
      factors.push_back(e.select(is_empty, zero, e.op(Op::OpFDiv, e.type_of(sum), {one, sum})));
      const Id log = e.math(OpenCLLIB::Log, e.type_of(sum), {e.select(is_empty, one, sum)});
      const Id lse = e.op(Op::OpFAdd, e.type_of(sum), {e.load(m_statistics[i][k_highest]), log});
      const Id is_first = e.compare(Op::OpIEqual, e.lane(), m_tiles.number(0));
      e.if_then(e.both(m_queries[i].is_there, is_first),
                [&] { e.store(m_tiles.lse_pointer(m_queries[i]), lse, m_tiles.alignment()); });
    }
    m_tiles.store(m_tiles.of_queries(m_a.out, m_a.value_dim), first, m_products->values(out), factors);
  }

  Emitter& e;
  const AttentionSpec& m_a;
  const AttentionSchedule m_schedule;
  AttentionTiles m_tiles;
  const std::unique_ptr<AttentionProducts> m_products;
  const AttentionProblem m_problem;
  std::vector<AttentionTiles::Query> m_queries;  // the sub-group's
  AttentionTiles::Block m_statistics;
};

}  // namespace

void emit_attention_forward(Emitter& emitter, const AttentionProblem& problem, const AttentionSchedule& schedule,
                            const DeviceFamily& family) {
  ForwardEmitter(emitter, problem, schedule, family).run();
}

}  // namespace kiln::level_zero
