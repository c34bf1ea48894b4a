#include "backends/cpu/compile/attention/decode.h"

#include "backends/cpu/compile/attention/attention.h"
#include "backends/cpu/compile/attention/decode_rows.h"
#include "backends/cpu/compile/attention/emission.h"
#include "backends/schedule_bytes.h"

/// Attention of few queries, as when a model writes one token after the other: keys and values are read once, and that is
/// what it costs.
///
/// A task is one head of the keys, with its rows (decode_rows.h):
///
///   for each block of keys
///     scores = rows · keys         as many keys as lanes at a time, whose sums are folded together
///     p = 2^(score - m)            row by row, m the running maximum
///     output = output * 2^(m_before - m) + p · values
///   output / l, lse = m + log l
///
/// What is masked, without keys, or folded into the queries, is as in forward.cc.
namespace kiln::cpu {
namespace {

using llvm::Value;

/// How many keys there are, and where a head's begin.
OpenedAttention<AttentionSpec> opened_keys(const AttentionSpec& attention) {
  OpenedAttention<AttentionSpec> result{attention, {}};
  AttentionNumbers& numbers = result.numbers;
  numbers.k_len = numbers.launch.open(result.form.k_len);
  numbers.open(attention.k, result.form.k, /*opens_rows=*/false);
  numbers.open(attention.v, result.form.v, /*opens_rows=*/false);
  return result;
}

class AttentionDecode {
 public:
  AttentionDecode(Emitter& emitter, const KernelSpec& spec, const AttentionSpec& attention,
                  const DecodeSchedule& schedule, AttentionNumbers numbers = {})
      : m_blocks(DecodeRows::blocks(schedule)),
        m_a(emitter, spec, attention, m_blocks, AttentionStep::element, std::move(numbers)),
        m_rows(m_a),
        e(emitter),
        m_attention(attention) {}

  LaunchShape emit();

 private:
  void plan_workspace();
  void emit_task(const AttentionPlace& place, Value* kv_head);
  void emit_keys(const AttentionPlace& place, Value* kv_head, Value* first, Value* count);
  void finish(const AttentionPlace& place);
  llvm::Function* softmax();

  int64_t query_bytes() const { return m_a.rows.padded_bytes(m_attention.head_dim); }
  int64_t value_bytes() const { return m_a.rows.padded_bytes(m_attention.value_dim); }
  Value* at(int64_t offset) { return m_a.at(offset); }
  Value* of_row(int64_t offset, const DecodeRows::Row& row, int64_t bytes) {
    return m_rows.row_of(at(offset), row.number, bytes);
  }
  /// All lanes, by `combine`, in each lane.
  Value* fold(Value* vector, const std::function<Value*(Value*, Value*)>& combine);

  const AttentionSchedule m_blocks;
  AttentionEmission m_a;
  DecodeRows m_rows;
  Emitter& e;
  const AttentionSpec& m_attention;
  int64_t m_queries = 0, m_scores = 0, m_output = 0, m_maximum = 0, m_sum = 0, m_keys = 0, m_values = 0;
  llvm::Function* m_softmax = nullptr;
};

/// Of a row, the maximum is a vector of one number, the sum a vector whose lanes are to be added up.
void AttentionDecode::plan_workspace() {
  const auto take = [&](int64_t bytes) { return m_a.take(bytes); };
  m_queries = take(m_rows.row_count() * query_bytes());
  m_scores = take(m_rows.row_count() * m_rows.score_bytes());
  m_output = take(m_rows.row_count() * value_bytes());
  m_maximum = take(m_rows.row_count() * m_a.vector_bytes());
  m_sum = take(m_rows.row_count() * m_a.vector_bytes());
  m_keys = take(m_blocks.key_block * query_bytes());
  m_values = take(m_blocks.key_block * value_bytes());
}

LaunchShape AttentionDecode::emit() {
  plan_workspace();
  return m_rows.emit_tasks([&](const AttentionPlace& place, Value* kv_head) { emit_task(place, kv_head); });
}

void AttentionDecode::emit_task(const AttentionPlace& place, Value* kv_head) {
  m_rows.load(m_attention.q, m_attention.head_dim, place, at(m_queries), m_a.score_scale());
  m_a.fill(at(m_output), m_rows.row_count() * value_bytes(), 0);
  m_a.fill(at(m_maximum), m_rows.row_count() * m_a.vector_bytes(), -k_infinity);
  m_a.fill(at(m_sum), m_rows.row_count() * m_a.vector_bytes(), 0);
  m_rows.for_seen_blocks(
      place, [&](Value* first, Value* count) { emit_keys(place, kv_head, first, count); }, [](Value*, Value*) {});
  finish(place);
}

void AttentionDecode::emit_keys(const AttentionPlace& place, Value* kv_head, Value* first, Value* count) {
  const int64_t head_dim = m_attention.head_dim, value_dim = m_attention.value_dim;
  Value* k = m_a.base(m_attention.k, place, kv_head);
  const auto keys = m_rows.keys_of(m_attention.k, head_dim, k, first, count, at(m_keys));
  m_rows.for_each_row(place, [&](const DecodeRows::Row& row) {
    Value* scores = of_row(m_scores, row, m_rows.score_bytes());
    m_rows.multiply(of_row(m_queries, row, query_bytes()), keys, head_dim, scores, count);
    e.ir.CreateCall(softmax(), {place.buffers, place.status, place.batch, row.place.head, row.query, first, count,
                                scores, of_row(m_maximum, row, m_a.vector_bytes()),
                                of_row(m_sum, row, m_a.vector_bytes()), of_row(m_output, row, value_bytes())});
  });
  Value* v = m_a.base(m_attention.v, place, kv_head);
  const auto values = m_rows.keys_of(m_attention.v, value_dim, v, first, count, at(m_values));
  m_rows.sum_over_keys(at(m_scores), values, value_dim, at(m_output), count);
}

/// (buffers, status, batch, head, query, first key, count, scores, maximum, sum, output): scores of a row become
/// probabilities, and what there is of its output is rescaled.
llvm::Function* AttentionDecode::softmax() {
  if (m_softmax != nullptr) return m_softmax;
  const auto resume = e.ir.saveIP();
  llvm::Type *p = e.pointer(), *i = e.i64();
  m_softmax = e.begin_function("softmax", e.ir.getVoidTy(), {p, p, i, i, i, i, i, p, p, p, p});
  auto* argument = m_softmax->arg_begin();
  const AttentionPlace place{argument, argument + 1, argument + 2, argument + 3};
  Value *query = argument + 4, *first = argument + 5, *count = argument + 6, *scores = argument + 7;
  Value *maximum = argument + 8, *sum = argument + 9, *output = argument + 10;

  Value* largest = m_rows.for_each_score(place, query, first, count, scores, {m_a.real(-k_infinity)},
                                         [&](Value* key, Value* score, const Values& now) {
                                           m_a.store(score, m_rows.row_of(scores, key, 4), 0);
                                           return Values{m_a.larger(score, now[0])};
                                         })[0];
  Value* before = m_a.load(maximum, 0);
  Value* now = m_a.larger(fold(largest, [&](Value* a, Value* b) { return m_a.larger(a, b); }), before);
  Value* none = e.ir.CreateFCmpOEQ(now, m_a.real(-k_infinity));
  Value* shift = e.ir.CreateSelect(none, m_a.real(0), now);
  Value* shrink = m_a.weight_of(e.ir.CreateFSub(before, shift));
  m_a.store(now, maximum, 0);
  Value* start = e.ir.CreateFMul(m_a.load(sum, 0), shrink);
  Value* total = e.loop(e.index(0), count, e.lanes(), {start}, [&](Value* key, const Values& sums) {
    Value* place_of_key = m_rows.row_of(scores, key, 4);
    Value* weight = m_a.weight_of(e.ir.CreateFSub(m_a.load(place_of_key, 0), shift));
    m_a.store(weight, place_of_key, 0);
    return Values{e.ir.CreateFAdd(sums[0], weight)};
  })[0];
  m_a.store(total, sum, 0);
  e.loop(e.index(0), e.index(value_bytes()), m_a.vector_bytes(), [&](Value* offset) {
    Value* of_output = e.advance(output, offset);
    m_a.store(e.ir.CreateFMul(m_a.load(of_output, 0), shrink), of_output, 0);
  });
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return m_softmax;
}

void AttentionDecode::finish(const AttentionPlace& place) {
  VectorMath math(e);
  m_rows.for_each_row(place, [&](const DecodeRows::Row& row) {
    Value* sum = fold(m_a.load(of_row(m_sum, row, m_a.vector_bytes()), 0),
                      [&](Value* a, Value* b) { return e.ir.CreateFAdd(a, b); });
    Value* none = e.ir.CreateFCmpOEQ(sum, m_a.real(0));
    Value* inverse = e.ir.CreateSelect(none, m_a.real(0), e.ir.CreateFDiv(m_a.real(1), sum));
    Value* maximum = m_a.load(of_row(m_maximum, row, m_a.vector_bytes()), 0);
    Value* logarithm = e.ir.CreateFAdd(m_a.in_nats(maximum), math.log(sum));
    e.store(e.ir.CreateExtractElement(logarithm, uint64_t{0}), m_a.from_query(m_attention.lse, row.place, row.query));
    Value* output = of_row(m_output, row, value_bytes());
    e.loop(e.index(0), e.index(value_bytes()), m_a.vector_bytes(), [&](Value* offset) {
      Value* at_offset = e.advance(output, offset);
      m_a.store(e.ir.CreateFMul(m_a.load(at_offset, 0), inverse), at_offset, 0);
    });
  });
  m_rows.store(m_attention.out, m_attention.value_dim, place, at(m_output), 1);
}

Value* AttentionDecode::fold(Value* vector, const std::function<Value*(Value*, Value*)>& combine) {
  return e.splat(e.fold_lanes(vector, combine), e.lanes());
}

}  // namespace

Status DecodeSchedule::validate(const CpuTarget& target) const {
  const auto refuse = [&](std::string_view why) { return invalid_argument("attention, {}: {}", describe(), why); };
  if (key_block == 0) return refuse("a zero extent");
  if (key_block > k_largest_key_block) return refuse("the block of keys is too large");
  if (key_block % (static_cast<uint32_t>(target.vector_bytes) / 4) != 0) {
    return refuse("the block of keys is no number of vectors");
  }
  return {};
}

std::string DecodeSchedule::describe() const { return fmt::format("decode keys {}", key_block); }

Expected<LaunchShape> emit_decode_attention(Emitter& emitter, const KernelSpec& spec, std::span<const uint8_t> bytes) {
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<DecodeSchedule>(bytes));
  KILN_RETURN_IF_ERROR(schedule.validate(emitter.target()));
  return AttentionDecode(emitter, spec, std::get<AttentionSpec>(spec.kernel), schedule).emit();
}

Expected<LaunchShape> emit_sized_decode_attention(Emitter& emitter, const KernelSpec& spec,
                                                  std::span<const uint8_t> bytes) {
  KILN_ASSIGN_OR_RETURN(const auto schedule, parse_choices<SizedDecodeSchedule>(bytes));
  KILN_RETURN_IF_ERROR(schedule.validate(emitter.target()));
  const auto& attention = std::get<AttentionSpec>(spec.kernel);
  return AttentionDecode(emitter, spec, attention, schedule, opened_keys(attention).numbers).emit();
}

std::optional<SizedSpec> sized_decode_attention(const KernelSpec& spec, std::span<const uint8_t> like) {
  const auto& attention = std::get<AttentionSpec>(spec.kernel);
  if (attention.causal || attention.score_value != k_no_expr) return std::nullopt;
  auto [form, numbers] = opened_keys(attention);
  if (numbers.k_len == 0) return std::nullopt;
  const SizedDecodeSchedule schedule;
  if (!like.empty() && !parse_choices<SizedDecodeSchedule>(like).ok()) return std::nullopt;
  return sized_spec(spec, std::move(form), numbers.launch, {encode_choices(schedule), "sized, " + schedule.describe()});
}

}  // namespace kiln::cpu
