#include <limits>

#include "backends/cpu/compile/attention/attention.h"
#include "backends/cpu/compile/attention/emission.h"
#include "backends/cpu/compile/attention/tile_products.h"
#include "backends/cpu/compile/emit/split.h"
#include "backends/schedule_bytes.h"

/// Attention, backward. Source: FlashAttention-2 (Dao, arXiv 2307.08691), algorithm 2, with lanes along the queries
/// as in the forward pass.
///
///   for each batch and head of the keys (a task), for each of its heads of the queries, for each block of queries
///     delta = rowsum(dO * O)
///     for each block of keys
///       S^T = K Q^T          P = 2^((S - lse) log2 e)      dV += P^T dO
///       dP^T = V dO^T        dS = P * (dP - delta)         dK += dS^T Q      dQ^T += K^T dS^T
///
/// dK and dV of the head wait in the workspace, dQ of the block in the first-level cache, so nothing is added
/// atomically and every sum has one order. Each score is computed once: five products, not the seven that separate
/// passes for dQ and for dK, dV would need. Queries are scaled as they are loaded, which gives dK its factor; dQ gets
/// it when it is stored.
/// By pairs of bf16 P and dS are rounded as they are stored, two queries beside each other; for dQ^T dS is laid out once more,
/// by pairs of keys. Products are scaled instead of the queries, dK when it is stored. AMX's registers multiply the same pairs.
/// A query that does not exist or sees no key has lse = +inf here, so all its probabilities are 0.
namespace kiln::cpu {
namespace {

using llvm::Value;

class AttentionBackward {
 public:
  AttentionBackward(Emitter& emitter, const KernelSpec& spec, const AttentionBackwardSpec& backward,
                    const AttentionSchedule& schedule, AttentionStep step, int64_t most_keys,
                    AttentionNumbers numbers = {})
      : m_a(emitter, spec, backward.forward, schedule, step, std::move(numbers)),
        m_tiles(m_a),
        e(emitter),
        m_attention(backward.forward),
        m_spec(backward),
        m_most_keys(most_keys) {}

  LaunchShape emit();

 private:
  void plan_workspace();
  void emit_piece(const Emitter::Entry& entry, Value* piece);
  void emit_queries(const AttentionPlace& place, Value* kv_head, Value* first_query);
  void load_queries(const AttentionPlace& place, Value* first_query);
  void emit_keys(const AttentionPlace& place, Value* kv_head, Value* first_query, Value* first, Value* count,
                 bool masked);
  void score_tiles(const AttentionEmission::Operand& keys, int64_t depth, Value* queries, Value* scores, Value* count,
                   bool masked, double scale);
  void accumulate_rows(Value* weights, Value* rows_of_queries, int64_t columns, Value* out, Value* count,
                       Value* queries);
  llvm::Function* gradients_of_scores(bool masked);
  void write_gradients(llvm::Argument* argument, bool masked);
  Value* at(int64_t offset) { return m_a.at(offset); }
  int64_t query_columns() const { return m_a.rows.padded(m_attention.head_dim); }
  int64_t value_columns() const { return m_a.rows.padded(m_attention.value_dim); }

  AttentionEmission m_a;
  RegisterTileProducts m_tiles;
  Emitter& e;
  const AttentionSpec& m_attention;
  const AttentionBackwardSpec& m_spec;
  const int64_t m_most_keys;  // what the workspace has room for
  int64_t m_grad_k = 0, m_grad_v = 0, m_query_rows = 0, m_queries = 0, m_grad_rows = 0, m_grads = 0, m_scores = 0,
          m_grad_scores = 0, m_grad_q = 0, m_lse = 0, m_delta = 0, m_keys = 0, m_values = 0, m_key_columns = 0,
          m_grad_pairs = 0;
  llvm::Function* m_gradients[2] = {};
};

void AttentionBackward::plan_workspace() {
  const auto take = [&](int64_t bytes) { return m_a.take(bytes); };
  const int64_t block = m_a.block_bytes(), keys = m_a.schedule.key_block;
  const int64_t all_keys = m_most_keys + m_a.schedule.tile_rows;
  m_grad_k = take(all_keys * query_columns() * 4);
  m_grad_v = take(all_keys * value_columns() * 4);
  m_query_rows = take(query_columns() * block);
  m_queries = take(query_columns() * block);
  m_grad_rows = take(value_columns() * block);
  m_grads = take(value_columns() * block);
  m_scores = take(keys * block);
  m_grad_scores = take(std::max({keys, value_columns(), query_columns()}) * block);
  m_grad_q = take(query_columns() * block);
  m_lse = take(block);
  m_delta = take(block);
  m_keys = take(m_a.row_scratch_bytes(m_attention.k, m_attention.head_dim));
  m_values = take(m_a.row_scratch_bytes(m_attention.v, m_attention.value_dim));
  if (!m_a.pairs) return;
  m_grad_pairs = take(keys / 2 * block);
  if (m_a.tiles) return m_tiles.plan_workspace(m_attention.k, m_attention.head_dim);
  m_key_columns = take(m_a.column_scratch_bytes(m_attention.k, m_attention.head_dim));
}

LaunchShape AttentionBackward::emit() {
  plan_workspace();
  return m_a.emit_tasks([&] { return e.ir.CreateMul(m_a.batch(), m_a.kv_heads()); },
                        [&](const Emitter::Entry& entry, Value* piece) { emit_piece(entry, piece); });
}

void AttentionBackward::emit_piece(const Emitter::Entry& entry, Value* piece) {
  Value* kv_heads = m_a.kv_heads();
  AttentionPlace place{entry.buffers, entry.status, e.ir.CreateUDiv(piece, kv_heads), nullptr, entry.extents};
  Value* kv_head = e.ir.CreateURem(piece, kv_heads);
  if (m_a.tiles) m_tiles.enter();
  Value* keys = m_a.k_len();
  Value* tiles_of_keys = e.ir.CreateAdd(keys, e.index(m_a.schedule.tile_rows));
  m_a.fill(at(m_grad_k), e.ir.CreateMul(tiles_of_keys, e.index(query_columns() * 4)), 0);
  m_a.fill(at(m_grad_v), e.ir.CreateMul(tiles_of_keys, e.index(value_columns() * 4)), 0);
  e.loop(e.index(0), e.index(m_a.group()), 1, [&](Value* member) {
    place.head = e.ir.CreateAdd(e.ir.CreateMul(kv_head, e.index(m_a.group())), member);
    e.loop(e.index(0), m_a.blocks(), 1,
           [&](Value* block) { emit_queries(place, kv_head, e.ir.CreateMul(block, e.index(m_a.block()))); });
  });
  m_a.rows.store(m_a.layout(m_spec.grad_k, m_attention.head_dim), at(m_grad_k), m_a.base(m_spec.grad_k, place, kv_head),
                 keys, m_a.pairs ? m_attention.scale : 1);
  m_a.rows.store(m_a.layout(m_spec.grad_v, m_attention.value_dim), at(m_grad_v),
                 m_a.base(m_spec.grad_v, place, kv_head), keys, 1);
  if (m_a.tiles) m_tiles.leave();
}

void AttentionBackward::emit_queries(const AttentionPlace& place, Value* kv_head, Value* first_query) {
  load_queries(place, first_query);
  m_a.fill(at(m_grad_q), query_columns() * m_a.block_bytes(), 0);
  m_a.for_key_blocks(place, first_query, [&](Value* first, Value* count, bool masked) {
    emit_keys(place, kv_head, first_query, first, count, masked);
  });
  m_a.rows.transpose(at(m_grad_q), m_a.block_bytes(), at(m_grad_scores), query_columns() * 4, query_columns(),
                     m_a.block());
  m_a.rows.store(m_a.layout(m_spec.grad_q, m_attention.head_dim), at(m_grad_scores),
                 m_a.from_query(m_spec.grad_q, place, first_query), m_a.valid_queries(first_query), m_attention.scale);
}

/// Q and dO by rows and transposed, lse and delta.
void AttentionBackward::load_queries(const AttentionPlace& place, Value* first_query) {
  Value* valid = m_a.valid_queries(first_query);
  const auto load = [&](const Access& access, int64_t columns, int64_t rows, int64_t transposed, double scale) {
    m_a.load_transposed(access, columns, place, first_query, at(rows), at(transposed), scale);
    if (!m_a.pairs) return;
    m_a.rows.load_row_pairs(m_a.layout(access, columns), m_a.from_query(access, place, first_query), at(rows), valid);
  };
  load(m_attention.q, m_attention.head_dim, m_query_rows, m_queries, m_attention.scale);
  load(m_attention.out, m_attention.value_dim, m_grad_rows, m_grad_scores, 1);  // O^T, for delta only
  load(m_spec.grad_out, m_attention.value_dim, m_grad_rows, m_grads, 1);
  Values deltas(static_cast<size_t>(m_a.vectors()), m_a.real(0));
  deltas = e.loop(e.index(0), e.index(m_a.steps(m_attention.value_dim)), 1, deltas, [&](Value* d, Values now) {
    Value* offset = e.ir.CreateMul(d, e.index(m_a.block_bytes()));
    for (int64_t v = 0; v < m_a.vectors(); ++v) {
      Value* grad = m_a.load(e.advance(at(m_grads), offset), v);
      Value* out = m_a.load(e.advance(at(m_grad_scores), offset), v);
      now[v] = m_a.pairs ? e.fma_of_pairs(grad, out, now[v]) : e.fma(grad, out, now[v]);
    }
    return now;
  });
  for (int64_t v = 0; v < m_a.vectors(); ++v) m_a.store(deltas[v], at(m_delta), v);

  m_a.fill(at(m_lse), m_a.block_bytes(), k_infinity);
  e.loop(e.index(0), valid, 1, [&](Value* row) {
    Value* lse = m_a.load_logsumexp(place, e.ir.CreateAdd(first_query, row));
    e.store(lse, e.advance(at(m_lse), e.ir.CreateMul(row, e.index(4))));
  });
}

void AttentionBackward::emit_keys(const AttentionPlace& place, Value* kv_head, Value* first_query, Value* first,
                                  Value* count, bool masked) {
  const auto keys = m_a.key_rows(m_attention.k, m_attention.head_dim, m_a.base(m_attention.k, place, kv_head), first,
                                 count, at(m_keys));
  const auto values = m_a.key_rows(m_attention.v, m_attention.value_dim, m_a.base(m_attention.v, place, kv_head), first,
                                   count, at(m_values));
  score_tiles(keys, m_attention.head_dim, at(m_queries), at(m_scores), count, masked,
              m_a.pairs ? m_attention.scale : 1);
  score_tiles(values, m_attention.value_dim, at(m_grads), at(m_grad_scores), count, masked, 1);
  Value* rows = masked ? m_a.round_to_tile(count) : count;
  e.ir.CreateCall(gradients_of_scores(masked), {place.buffers, place.status, at(m_scores), at(m_grad_scores), at(m_lse),
                                                place.batch, place.head, first_query, first, rows, place.extents});
  const auto row_of = [&](int64_t offset, int64_t columns) {
    return e.advance(at(offset), e.ir.CreateMul(first, e.index(columns * 4)));
  };
  Value* queries = m_a.pairs ? m_a.valid_queries(first_query) : e.index(m_a.block());
  accumulate_rows(at(m_scores), at(m_grad_rows), value_columns(), row_of(m_grad_v, value_columns()), rows, queries);
  accumulate_rows(at(m_grad_scores), at(m_query_rows), query_columns(), row_of(m_grad_k, query_columns()), rows,
                  queries);
  Value* tensor = m_a.base(m_attention.k, place, kv_head);
  auto columns = keys;
  int64_t weights = m_grad_scores;
  if (m_a.pairs) {
    weights = m_grad_pairs;
    m_a.rows.load_row_pairs({DType::bf16, m_a.block(), 1, e.index(m_a.block_bytes())}, at(m_grad_scores), at(weights),
                            rows);
    if (m_a.tiles) return m_tiles.weighted_sum(tensor, first, count, at(weights), at(m_grad_q));
    columns = m_a.key_columns(m_attention.k, m_attention.head_dim, tensor, first, count, at(m_key_columns));
  }
  m_a.weighted_sum(columns, m_attention.head_dim, at(weights), at(m_grad_q), count, TileProduct::Start::accumulate);
}

/// Sums of tiles of registers are scaled later, as they are read.
void AttentionBackward::score_tiles(const AttentionEmission::Operand& keys, int64_t depth, Value* queries,
                                    Value* scores, Value* count, bool masked, double scale) {
  if (m_a.tiles) return m_tiles.score_tiles(keys, depth, queries, scores, count);
  m_a.score_tiles(keys, depth, queries, scores, count, masked, scale);
}

/// out[key, :] += Σ_query weights[key, query] * rows_of_queries[query, :], lanes along the columns.
void AttentionBackward::accumulate_rows(Value* weights, Value* rows_of_queries, int64_t columns, Value* out,
                                        Value* count, Value* queries) {
  if (m_a.tiles) return m_tiles.accumulate_rows(weights, rows_of_queries, columns, out, count, queries);
  constexpr int64_t k_widest = 2;  // vectors of a tile; its rows are those of the score tiles
  const Split tiles = Split::of(columns / e.lanes(), k_widest);
  TileProduct tile;
  tile.rows = m_a.schedule.tile_rows;
  tile.a_row = m_a.block_bytes();
  tile.a_step = 4;
  tile.b_step = tile.c_row = columns * 4;
  tile.pairs = m_a.pairs;
  tile.start = TileProduct::Start::accumulate;
  e.loop(e.index(0), count, tile.rows, [&](Value* row) {
    Value* of_weights = e.advance(weights, e.ir.CreateMul(row, e.index(tile.a_row)));
    Value* of_out = e.advance(out, e.ir.CreateMul(row, e.index(tile.c_row)));
    tiles.for_each_size([&](int64_t from, int64_t to, int64_t width) {
      tile.vectors = width;
      e.loop(e.index(from), e.index(to), width, [&](Value* v) {
        Value* offset = e.ir.CreateMul(v, e.index(m_a.vector_bytes()));
        m_a.products.run(tile, of_weights, e.advance(rows_of_queries, offset), e.advance(of_out, offset),
                         m_a.steps(queries));
      });
    });
  });
}

/// S becomes P, dP becomes dS.
llvm::Function* AttentionBackward::gradients_of_scores(bool masked) {
  llvm::Function*& function = m_gradients[masked];
  if (function != nullptr) return function;
  llvm::Type *p = e.pointer(), *i = e.i64();
  m_a.write_function(function, masked ? "masked_gradients" : "gradients", e.ir.getVoidTy(),
                     {p, p, p, p, p, i, i, i, i, i},
                     [&](llvm::Argument* argument) { write_gradients(argument, masked); });
  return function;
}

/// (buffers, status, scores, their gradients, lse, batch, head, first query, first key, rows)
void AttentionBackward::write_gradients(llvm::Argument* argument, bool masked) {
  const AttentionPlace place{argument, argument + 1, argument + 5, argument + 6};
  Value *scores = argument + 2, *gradients = argument + 3, *lse = argument + 4;
  ScoreLoop loop(m_a, place, argument + 7, m_a.tiles ? m_attention.scale : 1);
  Values lses, deltas;
  for (int64_t v = 0; v < m_a.vectors(); ++v) {
    lses.push_back(m_a.load(lse, v));
    deltas.push_back(m_a.load(e.advance(lse, m_delta - m_lse), v));
  }
  loop.run(scores, argument + 8, argument + 9, masked, {}, [&](Value* row, const Values& now, Values&) {
    Value* offset = e.ir.CreateMul(row, e.index(m_a.block_bytes()));
    Value* score_row = e.advance(scores, offset);
    Value* gradient_row = e.advance(gradients, offset);
    Values weights, gradients_of_row;
    for (int64_t v = 0; v < m_a.vectors(); ++v) {
      weights.push_back(m_a.probability(now[v], lses[v]));
      Value* gradient = e.ir.CreateFSub(m_a.load(gradient_row, v), deltas[v]);
      gradients_of_row.push_back(e.ir.CreateFMul(weights.back(), gradient));
    }
    m_a.store_row(weights, score_row);
    m_a.store_row(gradients_of_row, gradient_row);
  });
  e.ir.CreateRetVoid();
}

}  // namespace

template <typename Choices>
Expected<LaunchShape> emit_attention_backward(Emitter& emitter, const KernelSpec& spec,
                                              std::span<const uint8_t> bytes) {
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<Choices>(bytes));
  KILN_RETURN_IF_ERROR(schedule.validate(emitter.target()));
  const auto& backward = std::get<AttentionBackwardSpec>(spec.kernel);
  if constexpr (k_takes_sizes<Choices>) {
    if (backward.forward.k_len > schedule.most_keys) {
      return invalid_argument("attention, {} keys at most: {} keys", schedule.most_keys, backward.forward.k_len);
    }
    return AttentionBackward(emitter, spec, backward, schedule, Choices::k_step, schedule.most_keys,
                             opened(backward).numbers)
        .emit();
  } else {
    return AttentionBackward(emitter, spec, backward, schedule, Choices::k_step, backward.forward.k_len).emit();
  }
}

#define KILN_EMIT(Choices)                                                                                             \
  template Expected<LaunchShape> emit_attention_backward<Choices>(Emitter&, const KernelSpec&,                         \
                                                                  std::span<const uint8_t>);                           \
  template Expected<LaunchShape> emit_attention_backward<SizedAttentionSchedule<Choices>>(Emitter&, const KernelSpec&, \
                                                                                          std::span<const uint8_t>);
KILN_EMIT(AttentionSchedule)
KILN_EMIT(Bf16AttentionSchedule)
KILN_EMIT(AmxAttentionSchedule)
#undef KILN_EMIT

}  // namespace kiln::cpu
