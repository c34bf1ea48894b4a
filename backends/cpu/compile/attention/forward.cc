#include <limits>

#include "backends/cpu/compile/attention/attention.h"
#include "backends/cpu/compile/attention/emission.h"
#include "backends/cpu/compile/attention/tile_products.h"
#include "backends/schedule_bytes.h"

/// Attention, forward. Source: FlashAttention-2 (Dao, arXiv 2307.08691), algorithm 1, turned on its side.
///
/// Lanes run along the queries: scores are S^T = K Q^T and the output is O^T = V^T P^T. So the maximum and the sum of
/// a row of the softmax are one vector operation each, K and V are read as they lie, element by element as broadcasts
/// (any stride, no packing), and only the block of queries is transposed, once.
///
///   for each block of queries (a task)
///     for each block of keys                  scores, running maximum m
///       p = 2^(score - m)                     one pass; row sums l
///       O^T = O^T * 2^(m_before - m) + V^T p  the factor is applied as the sums are loaded
///     O = O^T / l, lse = m + log l
///
/// Without a score expression log2(e) is folded into the queries; with one it is a factor of the exponent.
/// By pairs of bf16 a step is two neighbours along the depth, and two keys of V^T p: products are scaled instead of the queries,
/// V is laid out by pairs of keys for each block, and p is rounded as it is stored. By AMX's registers scores are scaled in a
/// pass of their own.
/// A masked score is -inf. A maximum of -inf is taken as 0, so a row without keys gives l = 0: zeros, and lse -inf.
namespace kiln::cpu {
namespace {

using llvm::Value;

class AttentionForward {
 public:
  AttentionForward(Emitter& emitter, const KernelSpec& spec, const AttentionSpec& attention,
                   const AttentionSchedule& schedule, AttentionStep step, AttentionNumbers numbers = {})
      : m_a(emitter, spec, attention, schedule, step, std::move(numbers)),
        m_tiles(m_a),
        e(emitter),
        m_attention(attention) {}

  LaunchShape emit();

 private:
  void plan_workspace();
  void emit_piece(const Emitter::Entry& entry, Value* piece);
  void emit_keys(const AttentionPlace& place, Value* first_query, Value* k, Value* v, Value* first, Value* count,
                 bool masked);
  void scale_output(const Values& factors);
  void finish(const AttentionPlace& place, Value* first_query);
  llvm::Function* mask_scores(bool masked);
  void write_mask_scores(llvm::Argument* argument, bool masked);
  llvm::Function* softmax();
  Value* at(int64_t offset) { return m_a.at(offset); }
  int64_t query_steps() const { return m_a.transposed_steps(m_attention.head_dim); }
  int64_t value_columns() const { return m_a.rows.padded(m_attention.value_dim); }

  AttentionEmission m_a;
  RegisterTileProducts m_tiles;
  Emitter& e;
  const AttentionSpec& m_attention;
  int64_t m_rows = 0, m_queries = 0, m_scores = 0, m_output = 0, m_maximum = 0, m_sum = 0, m_block_maximum = 0,
          m_factor = 0, m_keys = 0, m_values = 0;
  llvm::Function* m_mask_scores[2] = {};
  llvm::Function* m_softmax = nullptr;
};

void AttentionForward::plan_workspace() {
  const auto take = [&](int64_t bytes) { return m_a.take(bytes); };
  const int64_t block = m_a.block_bytes(), keys = m_a.schedule.key_block;
  m_rows = take(std::max(query_steps(), value_columns()) * block);
  m_queries = take(query_steps() * block);
  m_scores = take(keys * block);
  m_output = take(value_columns() * block);
  for (int64_t* offset : {&m_maximum, &m_sum, &m_block_maximum, &m_factor}) *offset = take(block);
  m_keys = take(m_a.row_scratch_bytes(m_attention.k, m_attention.head_dim));
  if (m_a.tiles) return m_tiles.plan_workspace(m_attention.v, m_attention.value_dim);
  m_values = take(m_a.column_scratch_bytes(m_attention.v, m_attention.value_dim));
}

LaunchShape AttentionForward::emit() {
  plan_workspace();
  return m_a.emit_tasks([&] { return e.ir.CreateMul(e.ir.CreateMul(m_a.batch(), m_a.heads()), m_a.blocks()); },
                        [&](const Emitter::Entry& entry, Value* piece) { emit_piece(entry, piece); });
}

void AttentionForward::emit_piece(const Emitter::Entry& entry, Value* piece) {
  Value* blocks = m_a.blocks();
  Value* block = e.ir.CreateURem(piece, blocks);
  Value* heads = e.ir.CreateUDiv(piece, blocks);
  AttentionPlace place{entry.buffers, entry.status, e.ir.CreateUDiv(heads, m_a.heads()),
                       e.ir.CreateURem(heads, m_a.heads()), entry.extents};
  if (m_attention.causal) {
    // Late queries see more keys: first, last, second, last but one, … shares the work among contiguous ranges.
    Value* half = e.ir.CreateLShr(block, e.index(1));
    Value* from_end = e.ir.CreateSub(e.ir.CreateSub(blocks, e.index(1)), half);
    block = e.ir.CreateSelect(e.ir.CreateTrunc(block, e.i1()), from_end, half);
  }
  if (m_a.tiles) m_tiles.enter();
  Value* first_query = e.ir.CreateMul(block, e.index(m_a.block()));
  Value* kv_head = e.ir.CreateUDiv(place.head, e.index(m_a.group()));
  Value* k = m_a.base(m_attention.k, place, kv_head);
  Value* v = m_a.base(m_attention.v, place, kv_head);

  m_a.load_transposed(m_attention.q, m_attention.head_dim, place, first_query, at(m_rows), at(m_queries),
                      m_a.score_scale());
  m_a.fill(at(m_maximum), m_a.block_bytes(), -k_infinity);
  m_a.fill(at(m_block_maximum), m_a.block_bytes(), -k_infinity);
  m_a.fill(at(m_sum), m_a.block_bytes(), 0);
  m_a.fill(at(m_output), value_columns() * m_a.block_bytes(), 0);
  m_a.for_key_blocks(place, first_query, [&](Value* first, Value* count, bool masked) {
    emit_keys(place, first_query, k, v, first, count, masked);
  });
  finish(place, first_query);
  if (m_a.tiles) m_tiles.leave();
}

void AttentionForward::emit_keys(const AttentionPlace& place, Value* first_query, Value* k, Value* v, Value* first,
                                 Value* count, bool masked) {
  const auto keys = m_a.key_rows(m_attention.k, m_attention.head_dim, k, first, count, at(m_keys));
  const bool passes = masked || m_a.has_score() || m_a.tiles;
  if (m_a.tiles) {
    m_tiles.score_tiles(keys, m_attention.head_dim, at(m_queries), at(m_scores), count);
  } else {
    m_a.score_tiles(keys, m_attention.head_dim, at(m_queries), at(m_scores), count, masked,
                    m_a.pairs ? m_a.score_scale() : 1, passes ? nullptr : at(m_block_maximum));
  }
  Value* rows = masked ? m_a.round_to_tile(count) : count;
  if (passes) {
    e.ir.CreateCall(mask_scores(masked), {place.buffers, place.status, at(m_scores), at(m_block_maximum), place.batch,
                                          place.head, first_query, first, rows, place.extents});
  }
  e.ir.CreateCall(softmax(), {at(m_scores), rows, at(m_maximum), at(m_sum), at(m_block_maximum), at(m_factor)});
  if (m_a.tiles) {
    Values factors;
    for (int64_t of = 0; of < m_a.vectors(); ++of) factors.push_back(m_a.load(at(m_factor), of));
    scale_output(factors);
    return m_tiles.weighted_sum(v, first, count, at(m_scores), at(m_output));
  }
  const auto values = m_a.key_columns(m_attention.v, m_attention.value_dim, v, first, count, at(m_values));
  m_a.weighted_sum(values, m_attention.value_dim, at(m_scores), at(m_output), count, TileProduct::Start::rescale,
                   at(m_factor));
}

/// Score expression, mask and maximum over a block of scores: one pass while it is in the first-level cache.
llvm::Function* AttentionForward::mask_scores(bool masked) {
  llvm::Function*& function = m_mask_scores[masked];
  if (function != nullptr) return function;
  llvm::Type *p = e.pointer(), *i = e.i64();
  m_a.write_function(function, masked ? "mask_scores" : "modify_scores", e.ir.getVoidTy(), {p, p, p, p, i, i, i, i, i},
                     [&](llvm::Argument* argument) { write_mask_scores(argument, masked); });
  return function;
}

/// (buffers, status, scores, maximum, batch, head, first query, first key, rows)
void AttentionForward::write_mask_scores(llvm::Argument* argument, bool masked) {
  const AttentionPlace place{argument, argument + 1, argument + 4, argument + 5};
  Value* scores = argument + 2;
  Value* maximum = argument + 3;
  ScoreLoop loop(m_a, place, argument + 6, m_a.tiles ? m_a.score_scale() : 1);
  Values largest;
  for (int64_t v = 0; v < m_a.vectors(); ++v) largest.push_back(m_a.load(maximum, v));
  largest = loop.run(scores, argument + 7, argument + 8, masked, largest,
                     [&](Value* row, const Values& now, Values& carried) {
                       Value* target = e.advance(scores, e.ir.CreateMul(row, e.index(m_a.block_bytes())));
                       for (int64_t v = 0; v < m_a.vectors(); ++v) {
                         carried[v] = m_a.larger(now[v], carried[v]);
                         m_a.store(now[v], target, v);
                       }
                     });
  for (int64_t v = 0; v < m_a.vectors(); ++v) m_a.store(largest[v], maximum, v);
  e.ir.CreateRetVoid();
}

/// (scores, rows, maximum, sum, block maximum, factor): scores become probabilities, of which pairs lie in the first half of
/// the rows. Sums are of what they were before they were rounded.
llvm::Function* AttentionForward::softmax() {
  if (m_softmax != nullptr) return m_softmax;
  const auto resume = e.ir.saveIP();
  llvm::Type* p = e.pointer();
  m_softmax = e.begin_function("softmax", e.ir.getVoidTy(), {p, e.i64(), p, p, p, p});
  auto* argument = m_softmax->arg_begin();
  Value *scores = argument, *maximum = argument + 2, *sum = argument + 3, *block = argument + 4, *factor = argument + 5;
  Values sums, shifts;
  for (int64_t v = 0; v < m_a.vectors(); ++v) {
    Value* before = m_a.load(maximum, v);
    Value* in_block = m_a.load(block, v);
    Value* now = m_a.larger(in_block, before);
    Value* none = e.ir.CreateFCmpOEQ(now, m_a.real(-k_infinity));
    shifts.push_back(e.ir.CreateSelect(none, m_a.real(0), now));
    Value* shrink = m_a.weight_of(e.ir.CreateFSub(before, shifts[v]));
    m_a.store(shrink, factor, v);
    m_a.store(now, maximum, v);
    m_a.store(m_a.real(-k_infinity), block, v);
    sums.push_back(e.ir.CreateFMul(m_a.load(sum, v), shrink));
  }
  const int64_t rows_of_step = m_a.pairs ? 2 : 1;
  sums = e.loop(e.index(0), m_a.steps(argument + 1), 1, sums, [&](Value* step, Values next) {
    Value* to = e.advance(scores, e.ir.CreateMul(step, e.index(m_a.block_bytes())));
    Value* from = e.advance(scores, e.ir.CreateMul(step, e.index(rows_of_step * m_a.block_bytes())));
    for (int64_t v = 0; v < m_a.vectors(); ++v) {
      Values weights;
      for (int64_t row = 0; row < rows_of_step; ++row) {
        Value* score = m_a.load(e.advance(from, row * m_a.block_bytes()), v);
        weights.push_back(m_a.weight_of(e.ir.CreateFSub(score, shifts[v])));
        next[v] = e.ir.CreateFAdd(next[v], weights.back());
      }
      m_a.store(m_a.pairs ? e.pairs_of(weights[0], weights[1]) : weights[0], to, v);
    }
    return next;
  });
  for (int64_t v = 0; v < m_a.vectors(); ++v) m_a.store(sums[v], sum, v);
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return m_softmax;
}

void AttentionForward::scale_output(const Values& factors) {
  e.loop(e.index(0), e.index(value_columns()), 1, [&](Value* d) {
    Value* row = e.advance(at(m_output), e.ir.CreateMul(d, e.index(m_a.block_bytes())));
    for (int64_t v = 0; v < m_a.vectors(); ++v) m_a.store(e.ir.CreateFMul(m_a.load(row, v), factors[v]), row, v);
  });
}

void AttentionForward::finish(const AttentionPlace& place, Value* first_query) {
  Value* valid = m_a.valid_queries(first_query);
  VectorMath math(e);
  Values inverses;
  for (int64_t v = 0; v < m_a.vectors(); ++v) {
    Value* sum = m_a.load(at(m_sum), v);
    Value* none = e.ir.CreateFCmpOEQ(sum, m_a.real(0));
    inverses.push_back(e.ir.CreateSelect(none, m_a.real(0), e.ir.CreateFDiv(m_a.real(1), sum)));
    m_a.store(e.ir.CreateFAdd(m_a.in_nats(m_a.load(at(m_maximum), v)), math.log(sum)), at(m_factor), v);
  }
  scale_output(inverses);
  m_a.rows.transpose(at(m_output), m_a.block_bytes(), at(m_rows), value_columns() * 4, value_columns(), m_a.block());
  m_a.rows.store(m_a.layout(m_attention.out, m_attention.value_dim), at(m_rows),
                 m_a.from_query(m_attention.out, place, first_query), valid, 1);
  Value* lse = m_a.from_query(m_attention.lse, place, first_query);
  e.loop(e.index(0), valid, 1, [&](Value* row) {
    Value* value = e.load(e.f32(), e.advance(at(m_factor), e.ir.CreateMul(row, e.index(4))));
    e.store(value, e.advance(lse, e.ir.CreateMul(row, m_a.row_bytes(m_attention.lse))));
  });
}

}  // namespace

template <typename Choices>
Expected<LaunchShape> emit_attention(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes) {
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<Choices>(bytes));
  KILN_RETURN_IF_ERROR(schedule.validate(emitter.target()));
  const auto& attention = std::get<AttentionSpec>(spec.kernel);
  if constexpr (k_takes_sizes<Choices>) {
    return AttentionForward(emitter, spec, attention, schedule, Choices::k_step, opened(attention).numbers).emit();
  } else {
    return AttentionForward(emitter, spec, attention, schedule, Choices::k_step).emit();
  }
}

#define KILN_EMIT(Choices)                                                                                       \
  template Expected<LaunchShape> emit_attention<Choices>(Emitter&, const KernelSpec&, std::span<const uint8_t>); \
  template Expected<LaunchShape> emit_attention<SizedAttentionSchedule<Choices>>(Emitter&, const KernelSpec&,    \
                                                                                 std::span<const uint8_t>);
KILN_EMIT(AttentionSchedule)
KILN_EMIT(Bf16AttentionSchedule)
KILN_EMIT(AmxAttentionSchedule)
#undef KILN_EMIT

}  // namespace kiln::cpu
