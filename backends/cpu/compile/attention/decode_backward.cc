#include "backends/cpu/compile/attention/attention.h"
#include "backends/cpu/compile/attention/decode_rows.h"
#include "backends/schedule_bytes.h"

/// Gradients of attention of few queries: keys and values are read once and their gradients written once, and that is what it
/// costs.
///
/// A task is one head of the keys, with its rows (decode_rows.h), so a block of keys is done with when all rows have seen it:
///
///   delta = rowsum(dO * O)
///   for each block of keys
///     S = Q · K      dP = dO · V                       as many keys as lanes at a time, whose sums are folded together
///     P = 2^((S - lse) log2 e)     dS = P * (dP - delta)
///     dQ += dS K     dV = P^T dO     dK = dS^T Q
///
/// Scales, masks and queries without keys are as in backward.cc. Keys in blocks that no row sees get zeros.
namespace kiln::cpu {
namespace {

using llvm::Value;

class DecodeBackward {
 public:
  DecodeBackward(Emitter& emitter, const KernelSpec& spec, const AttentionBackwardSpec& backward,
                 const DecodeSchedule& schedule)
      : m_blocks(DecodeRows::blocks(schedule)),
        m_a(emitter, spec, backward.forward, m_blocks, AttentionStep::element),
        m_rows(m_a),
        e(emitter),
        m_spec(backward),
        m_attention(backward.forward) {}

  LaunchShape emit();

 private:
  void plan_workspace();
  void emit_task(const AttentionPlace& place, Value* kv_head);
  void load_rows(const AttentionPlace& place);
  void emit_keys(const AttentionPlace& place, Value* kv_head, Value* first, Value* count);
  void store_keys(const AttentionPlace& place, Value* kv_head, Value* first, Value* count);
  llvm::Function* gradients_of_scores();

  int64_t query_bytes() const { return m_a.rows.padded_bytes(m_attention.head_dim); }
  int64_t value_bytes() const { return m_a.rows.padded_bytes(m_attention.value_dim); }
  Value* at(int64_t offset) { return m_a.at(offset); }
  Value* of_row(int64_t offset, const DecodeRows::Row& row, int64_t bytes) {
    return m_rows.row_of(at(offset), row.number, bytes);
  }

  const AttentionSchedule m_blocks;
  AttentionEmission m_a;
  DecodeRows m_rows;
  Emitter& e;
  const AttentionBackwardSpec& m_spec;
  const AttentionSpec& m_attention;
  int64_t m_queries = 0, m_grads = 0, m_outputs = 0, m_scores = 0, m_grad_scores = 0, m_grad_q = 0, m_lse = 0,
          m_delta = 0, m_keys = 0, m_values = 0, m_grad_k = 0, m_grad_v = 0;
  llvm::Function* m_gradients = nullptr;
};

void DecodeBackward::plan_workspace() {
  const auto take = [&](int64_t bytes) { return m_a.take(bytes); };
  const int64_t rows = m_rows.row_count(), keys = m_blocks.key_block;
  m_queries = take(rows * query_bytes());
  m_grads = take(rows * value_bytes());
  m_outputs = take(rows * value_bytes());
  m_scores = take(rows * m_rows.score_bytes());
  m_grad_scores = take(rows * m_rows.score_bytes());
  m_grad_q = take(rows * query_bytes());
  m_lse = take(rows * 4);
  m_delta = take(rows * 4);
  m_keys = take(keys * query_bytes());
  m_values = take(keys * value_bytes());
  m_grad_k = take(keys * query_bytes());
  m_grad_v = take(keys * value_bytes());
}

LaunchShape DecodeBackward::emit() {
  plan_workspace();
  return m_rows.emit_tasks([&](const AttentionPlace& place, Value* kv_head) { emit_task(place, kv_head); });
}

void DecodeBackward::emit_task(const AttentionPlace& place, Value* kv_head) {
  load_rows(place);
  m_a.fill(at(m_grad_q), m_rows.row_count() * query_bytes(), 0);
  const auto store_zeros = [&](Value* first, Value* count) {
    m_a.fill(at(m_grad_k), m_blocks.key_block * query_bytes(), 0);
    m_a.fill(at(m_grad_v), m_blocks.key_block * value_bytes(), 0);
    store_keys(place, kv_head, first, count);
  };
  const auto store_gradients = [&](Value* first, Value* count) {
    emit_keys(place, kv_head, first, count);
    store_keys(place, kv_head, first, count);
  };
  m_rows.for_seen_blocks(place, store_gradients, store_zeros);
  m_rows.for_key_blocks(m_rows.seen_keys(), m_a.k_len(), store_zeros);
  m_rows.store(m_spec.grad_q, m_attention.head_dim, place, at(m_grad_q), m_attention.scale);
}

void DecodeBackward::load_rows(const AttentionPlace& place) {
  m_rows.load(m_attention.q, m_attention.head_dim, place, at(m_queries), m_attention.scale);
  m_rows.load(m_spec.grad_out, m_attention.value_dim, place, at(m_grads), 1);
  m_rows.load(m_attention.out, m_attention.value_dim, place, at(m_outputs), 1);
  m_rows.for_each_row(place, [&](const DecodeRows::Row& row) {
    e.store(m_a.load_logsumexp(row.place, row.query), of_row(m_lse, row, 4));
    Value *grad = of_row(m_grads, row, value_bytes()), *out = of_row(m_outputs, row, value_bytes());
    const auto add = [&](Value* offset, const Values& sum) {
      return Values{e.fma(m_a.load(e.advance(grad, offset), 0), m_a.load(e.advance(out, offset), 0), sum[0])};
    };
    Value* products = e.loop(e.index(0), e.index(value_bytes()), m_a.vector_bytes(), {m_a.real(0)}, add)[0];
    Value* delta = e.fold_lanes(products, [&](Value* a, Value* b) { return e.ir.CreateFAdd(a, b); });
    e.store(delta, of_row(m_delta, row, 4));
  });
}

void DecodeBackward::emit_keys(const AttentionPlace& place, Value* kv_head, Value* first, Value* count) {
  const int64_t head_dim = m_attention.head_dim, value_dim = m_attention.value_dim;
  Value *k = m_a.base(m_attention.k, place, kv_head), *v = m_a.base(m_attention.v, place, kv_head);
  const auto keys = m_rows.keys_of(m_attention.k, head_dim, k, first, count, at(m_keys));
  const auto values = m_rows.keys_of(m_attention.v, value_dim, v, first, count, at(m_values));
  m_rows.for_each_row(place, [&](const DecodeRows::Row& row) {
    Value *scores = of_row(m_scores, row, m_rows.score_bytes()),
          *grads = of_row(m_grad_scores, row, m_rows.score_bytes());
    m_rows.multiply(of_row(m_queries, row, query_bytes()), keys, head_dim, scores, count);
    m_rows.multiply(of_row(m_grads, row, value_bytes()), values, value_dim, grads, count);
    Value *lse = e.load(e.f32(), of_row(m_lse, row, 4)), *delta = e.load(e.f32(), of_row(m_delta, row, 4));
    e.ir.CreateCall(gradients_of_scores(), {place.buffers, place.status, place.batch, row.place.head, row.query, first,
                                            count, scores, grads, lse, delta});
  });
  m_rows.sum_over_keys(at(m_grad_scores), keys, head_dim, at(m_grad_q), count);
  m_rows.sum_over_rows(at(m_scores), at(m_grads), value_dim, at(m_grad_v), count);
  m_rows.sum_over_rows(at(m_grad_scores), at(m_queries), head_dim, at(m_grad_k), count);
}

/// The gradients of a block of keys and values.
void DecodeBackward::store_keys(const AttentionPlace& place, Value* kv_head, Value* first, Value* count) {
  const auto store = [&](const Access& access, int64_t columns, int64_t block) {
    Value* start = e.advance(m_a.base(access, place, kv_head), e.ir.CreateMul(first, m_a.row_bytes(access)));
    m_a.rows.store(m_a.layout(access, columns), at(block), start, count, 1);
  };
  store(m_spec.grad_k, m_attention.head_dim, m_grad_k);
  store(m_spec.grad_v, m_attention.value_dim, m_grad_v);
}

/// (buffers, status, batch, head, query, first key, count, scores, their gradients, lse, delta): S of a row becomes P, dP
/// becomes dS; both are 0 of keys that are not seen, and of whole vectors behind the last key.
llvm::Function* DecodeBackward::gradients_of_scores() {
  if (m_gradients != nullptr) return m_gradients;
  const auto resume = e.ir.saveIP();
  llvm::Type *p = e.pointer(), *i = e.i64();
  m_gradients = e.begin_function("gradients", e.ir.getVoidTy(), {p, p, i, i, i, i, i, p, p, e.f32(), e.f32()});
  auto* argument = m_gradients->arg_begin();
  Value *scores = argument + 7, *gradients = argument + 8;
  Value *lse = e.splat(argument + 9, e.lanes()), *delta = e.splat(argument + 10, e.lanes());
  m_rows.for_each_score({argument, argument + 1, argument + 2, argument + 3}, argument + 4, argument + 5, argument + 6,
                        scores, {}, [&](Value* key, Value* score, const Values&) {
                          Value *weights = m_rows.row_of(scores, key, 4), *grads = m_rows.row_of(gradients, key, 4);
                          Value* weight = m_a.probability(score, lse);
                          m_a.store(weight, weights, 0);
                          Value* grad = e.ir.CreateFSub(m_a.load(grads, 0), delta);
                          m_a.store(e.ir.CreateFMul(weight, grad), grads, 0);
                          return Values{};
                        });
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return m_gradients;
}

}  // namespace

Expected<LaunchShape> emit_decode_backward(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes) {
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<DecodeSchedule>(bytes));
  KILN_RETURN_IF_ERROR(schedule.validate(emitter.target()));
  return DecodeBackward(emitter, spec, std::get<AttentionBackwardSpec>(spec.kernel), schedule).emit();
}

}  // namespace kiln::cpu
