#include "backends/cpu/compile/attention/decode.h"

#include <algorithm>

#include "backends/cpu/compile/attention/attention.h"
#include "backends/cpu/compile/attention/emission.h"
#include "backends/cpu/compile/emit/split.h"
#include "backends/schedule_bytes.h"

/// Attention of few queries, as when a model writes one token after the other: keys and values are read once, and that is
/// what it costs.
///
/// A task is one head of the keys, with all queries of all heads that share it: its *rows*. Lanes run along the depth in
/// products, so keys and values are read as they lie, and along the keys in the softmax:
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
      : m_blocks{.query_vectors = 1, .key_block = schedule.key_block, .tile_rows = 1},
        m_a(emitter, spec, attention, m_blocks, AttentionStep::element, std::move(numbers)),
        e(emitter),
        m_attention(attention) {}

  LaunchShape emit();

 private:
  void plan_workspace();
  void emit_task(const Emitter::Entry& entry, Value* task);
  void for_each_head(const AttentionPlace& place, const std::function<void(Value* head, Value* first_row)>& body);
  struct Rows {
    Value* base = nullptr;
    int64_t bytes = 0;  // from one to the next
  };
  Rows rows_of(const Access& access, int64_t columns, Value* tensor, Value* first, Value* count, Value* scratch);
  void emit_keys(const AttentionPlace& place, Value* kv_head, Value* first, Value* count);
  void finish(const AttentionPlace& place);
  llvm::Function* scores(const Rows& keys);
  Value* sums_of_keys(const Rows& keys, llvm::Function* function, Value* key, Value* last);
  llvm::Function* softmax();
  void weighted_sum(const Rows& values, Value* count);

  int64_t row_count() const { return m_a.group() * m_attention.q_len; }
  int64_t lanes() const { return e.lanes(); }
  int64_t query_bytes() const { return m_a.rows.padded_bytes(m_attention.head_dim); }
  int64_t value_bytes() const { return m_a.rows.padded_bytes(m_attention.value_dim); }
  int64_t score_bytes() const { return int64_t{m_blocks.key_block} * 4; }
  Value* at(int64_t offset) { return m_a.at(offset); }
  Value* row_of(Value* base, Value* row, int64_t bytes) { return e.advance(base, e.ir.CreateMul(row, e.index(bytes))); }
  /// All lanes, by `combine`, in each lane.
  Value* fold(Value* vector, const std::function<Value*(Value*, Value*)>& combine);

  const AttentionSchedule m_blocks;
  AttentionEmission m_a;
  Emitter& e;
  const AttentionSpec& m_attention;
  int64_t m_queries = 0, m_scores = 0, m_output = 0, m_maximum = 0, m_sum = 0, m_keys = 0, m_values = 0;
  llvm::Function *m_score_function = nullptr, *m_softmax = nullptr;
};

/// Of a row, the maximum is a vector of one number, the sum a vector whose lanes are to be added up.
void AttentionDecode::plan_workspace() {
  const auto take = [&](int64_t bytes) { return m_a.take(bytes); };
  m_queries = take(row_count() * query_bytes());
  m_scores = take(row_count() * score_bytes());
  m_output = take(row_count() * value_bytes());
  m_maximum = take(row_count() * m_a.vector_bytes());
  m_sum = take(row_count() * m_a.vector_bytes());
  m_keys = take(m_blocks.key_block * query_bytes());
  m_values = take(m_blocks.key_block * value_bytes());
}

LaunchShape AttentionDecode::emit() {
  plan_workspace();
  return m_a.emit_tasks([&] { return e.index(m_attention.batch * m_attention.kv_heads); },
                        [&](const Emitter::Entry& entry, Value* task) { emit_task(entry, task); });
}

void AttentionDecode::emit_task(const Emitter::Entry& entry, Value* task) {
  Value* kv_heads = e.index(m_attention.kv_heads);
  Value* kv_head = e.ir.CreateURem(task, kv_heads);
  const AttentionPlace place{entry.buffers, entry.status, e.ir.CreateUDiv(task, kv_heads),
                             e.ir.CreateMul(kv_head, e.index(m_a.group())), entry.extents};
  for_each_head(place, [&](Value* head, Value* first_row) {
    m_a.rows.load(m_a.layout(m_attention.q, m_attention.head_dim), m_a.base(m_attention.q, place, head),
                  row_of(at(m_queries), first_row, query_bytes()), e.index(m_attention.q_len),
                  e.index(m_attention.q_len - 1), m_a.score_scale());
  });
  m_a.fill(at(m_output), row_count() * value_bytes(), 0);
  m_a.fill(at(m_maximum), row_count() * m_a.vector_bytes(), -k_infinity);
  m_a.fill(at(m_sum), row_count() * m_a.vector_bytes(), 0);
  Value* last = m_a.k_len();
  if (m_attention.causal) {
    last = e.index(std::clamp<int64_t>(m_attention.q_len + m_attention.causal_offset, 0, m_attention.k_len));
  }
  e.loop(e.index(0), last, m_blocks.key_block, [&](Value* first) {
    Value* rest = e.ir.CreateSub(last, first);
    emit_keys(place, kv_head, first,
              e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, rest, e.index(m_blocks.key_block)));
  });
  finish(place);
}

/// The heads of the queries that share the task's keys, and where their rows begin.
void AttentionDecode::for_each_head(const AttentionPlace& place,
                                    const std::function<void(Value* head, Value* first_row)>& body) {
  e.loop(e.index(0), e.index(m_a.group()), 1,
         [&](Value* i) { body(e.ir.CreateAdd(place.head, i), e.ir.CreateMul(i, e.index(m_attention.q_len))); });
}

/// Where they lie, when they are whole vectors of f32, else from a block of the workspace.
AttentionDecode::Rows AttentionDecode::rows_of(const Access& access, int64_t columns, Value* tensor, Value* first,
                                               Value* count, Value* scratch) {
  const int64_t row_bytes = access.strides[2] * static_cast<int64_t>(size_of(m_a.dtype_of(access)));
  Value* start = e.advance(tensor, e.ir.CreateMul(first, e.index(row_bytes)));
  if (!m_a.widens(access) && access.strides[3] == 1 && columns % lanes() == 0) return {start, row_bytes};
  m_a.rows.load(m_a.layout(access, columns), start, scratch, count, e.ir.CreateSub(count, e.index(1)), 1);
  return {scratch, m_a.rows.padded_bytes(columns)};
}

void AttentionDecode::emit_keys(const AttentionPlace& place, Value* kv_head, Value* first, Value* count) {
  Value* k = m_a.base(m_attention.k, place, kv_head);
  const auto keys = rows_of(m_attention.k, m_attention.head_dim, k, first, count, at(m_keys));
  e.loop(e.index(0), e.index(row_count()), 1, [&](Value* row) {
    Value* in_row = row_of(at(m_scores), row, score_bytes());
    e.ir.CreateCall(scores(keys), {row_of(at(m_queries), row, query_bytes()), keys.base, in_row, count});
    Value* head = e.ir.CreateAdd(place.head, e.ir.CreateUDiv(row, e.index(m_attention.q_len)));
    Value* query = e.ir.CreateURem(row, e.index(m_attention.q_len));
    e.ir.CreateCall(softmax(), {place.buffers, place.status, place.batch, head, query, first, count, in_row,
                                row_of(at(m_maximum), row, m_a.vector_bytes()),
                                row_of(at(m_sum), row, m_a.vector_bytes()), row_of(at(m_output), row, value_bytes())});
  });
  Value* v = m_a.base(m_attention.v, place, kv_head);
  weighted_sum(rows_of(m_attention.v, m_attention.value_dim, v, first, count, at(m_values)), count);
}

/// (query, keys, scores, count): whole vectors of scores are written, those from `count` on are of the last key.
llvm::Function* AttentionDecode::scores(const Rows& keys) {
  if (m_score_function != nullptr) return m_score_function;
  const auto resume = e.ir.saveIP();
  llvm::Type* p = e.pointer();
  m_score_function = e.begin_function("scores", e.ir.getVoidTy(), {p, p, p, e.i64()});
  Value* count = m_score_function->getArg(3);
  const auto put = [&](Value* key, Value* last) {
    Value* sums = sums_of_keys(keys, m_score_function, key, last);
    m_a.store(sums, e.advance(m_score_function->getArg(2), e.ir.CreateMul(key, e.index(4))), 0);
  };
  Value* whole = e.ir.CreateAnd(count, e.index(-lanes()));
  e.loop(e.index(0), whole, lanes(), [&](Value* key) { put(key, nullptr); });
  e.if_then(e.ir.CreateICmpSLT(whole, count), [&] { put(whole, e.ir.CreateSub(count, e.index(1))); });
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return m_score_function;
}

/// The query times the keys from `key` on, one in each lane; behind `last`, where it is given, that one again.
Value* AttentionDecode::sums_of_keys(const Rows& keys, llvm::Function* function, Value* key, Value* last) {
  Values from;
  for (int64_t i = 0; i < lanes(); ++i) {
    Value* base = function->getArg(1);
    if (last == nullptr) {
      from.push_back(e.advance(row_of(base, key, keys.bytes), i * keys.bytes));
    } else {
      Value* number = e.ir.CreateAdd(key, e.index(i));
      from.push_back(row_of(base, e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, number, last), keys.bytes));
    }
  }
  const Values zeros(static_cast<size_t>(lanes()), m_a.real(0));
  const Values sums =
      e.loop(e.index(0), e.index(query_bytes()), m_a.vector_bytes(), zeros, [&](Value* offset, const Values& now) {
        Value* query = m_a.load(e.advance(function->getArg(0), offset), 0);
        Values next;
        for (size_t i = 0; i < now.size(); ++i) {
          Value* of_key = e.load(m_a.vector(), e.advance(from[i], offset), 4);
          next.push_back(e.fma(of_key, query, now[i]));
        }
        return next;
      });
  return e.sum_of_each(sums);
}

/// (buffers, status, batch, head, query, first key, count, scores, maximum, sum, output): scores of a row become
/// probabilities, and what there is of its output is rescaled.
llvm::Function* AttentionDecode::softmax() {
  if (m_softmax != nullptr) return m_softmax;
  const auto resume = e.ir.saveIP();
  llvm::Type *p = e.pointer(), *i = e.i64();
  m_softmax = e.begin_function("softmax", e.ir.getVoidTy(), {p, p, i, i, i, i, i, p, p, p, p});
  auto* argument = m_softmax->arg_begin();
  Value *query = argument + 4, *first = argument + 5, *count = argument + 6, *scores = argument + 7;
  Value *maximum = argument + 8, *sum = argument + 9, *output = argument + 10;

  Value* seen = count;  // of the block's keys
  if (m_attention.causal) {
    Value* last = e.ir.CreateAdd(query, e.index(m_attention.causal_offset + 1));
    seen = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, count, e.ir.CreateSub(last, first));
  }
  RowScore score(m_a, {argument, argument + 1, argument + 2, argument + 3}, query);
  const auto each = [&](const Values& initial, const std::function<Values(Value * key, const Values&)>& body) {
    return e.loop(e.index(0), count, lanes(), initial, [&](Value* key, const Values& now) { return body(key, now); });
  };
  const auto scores_at = [&](Value* key) { return e.advance(scores, e.ir.CreateMul(key, e.index(4))); };
  Value* largest = each({m_a.real(-k_infinity)}, [&](Value* key, const Values& now) {
    Value* value = m_a.load(scores_at(key), 0);
    Value* is_seen = e.prefix_mask(e.ir.CreateSub(seen, key), e.lanes());
    if (m_a.has_score()) value = score.apply(e.ir.CreateAdd(first, key), is_seen, value);
    value = e.ir.CreateSelect(is_seen, value, m_a.real(-k_infinity));
    m_a.store(value, scores_at(key), 0);
    return Values{m_a.larger(value, now[0])};
  })[0];

  Value* before = m_a.load(maximum, 0);
  Value* now = m_a.larger(fold(largest, [&](Value* a, Value* b) { return m_a.larger(a, b); }), before);
  Value* none = e.ir.CreateFCmpOEQ(now, m_a.real(-k_infinity));
  Value* shift = e.ir.CreateSelect(none, m_a.real(0), now);
  Value* shrink = m_a.weight_of(e.ir.CreateFSub(before, shift));
  m_a.store(now, maximum, 0);
  Value* total = each({e.ir.CreateFMul(m_a.load(sum, 0), shrink)}, [&](Value* key, const Values& sums) {
    Value* weight = m_a.weight_of(e.ir.CreateFSub(m_a.load(scores_at(key), 0), shift));
    m_a.store(weight, scores_at(key), 0);
    return Values{e.ir.CreateFAdd(sums[0], weight)};
  })[0];
  m_a.store(total, sum, 0);
  e.loop(e.index(0), e.index(value_bytes()), m_a.vector_bytes(), [&](Value* offset) {
    Value* place = e.advance(output, offset);
    m_a.store(e.ir.CreateFMul(m_a.load(place, 0), shrink), place, 0);
  });
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return m_softmax;
}

/// output[row, :] += Σ_key scores[row, key] * values[key, :]
void AttentionDecode::weighted_sum(const Rows& values, Value* count) {
  const bool wide = e.target().has(Feature::avx512);
  const int64_t registers = wide ? 32 : 16, most_vectors = wide ? 8 : 4;
  const Split columns = Split::of(value_bytes() / m_a.vector_bytes(), most_vectors);
  columns.for_each_size([&](int64_t first_vector, int64_t last_vector, int64_t vectors) {
    // The sums, and a row of values.
    const Split rows = Split::of(row_count(), std::max<int64_t>(1, (registers - 1) / vectors - 1));
    TileProduct tile;
    tile.vectors = vectors;
    tile.a_row = score_bytes();
    tile.a_step = 4;
    tile.b_step = values.bytes;
    tile.b_is_aligned = false;
    tile.c_row = value_bytes();
    tile.start = TileProduct::Start::accumulate;
    rows.for_each_size([&](int64_t first_row, int64_t last_row, int64_t height) {
      tile.rows = height;
      e.loop(e.index(first_vector), e.index(last_vector), vectors, [&](Value* vector) {
        Value* offset = e.ir.CreateMul(vector, e.index(m_a.vector_bytes()));
        e.loop(e.index(first_row), e.index(last_row), height, [&](Value* row) {
          m_a.products.run(tile, row_of(at(m_scores), row, score_bytes()), e.advance(values.base, offset),
                           e.advance(row_of(at(m_output), row, value_bytes()), offset), count);
        });
      });
    });
  });
}

void AttentionDecode::finish(const AttentionPlace& place) {
  VectorMath math(e);
  e.loop(e.index(0), e.index(row_count()), 1, [&](Value* row) {
    Value* sum = fold(m_a.load(row_of(at(m_sum), row, m_a.vector_bytes()), 0),
                      [&](Value* a, Value* b) { return e.ir.CreateFAdd(a, b); });
    Value* none = e.ir.CreateFCmpOEQ(sum, m_a.real(0));
    Value* inverse = e.ir.CreateSelect(none, m_a.real(0), e.ir.CreateFDiv(m_a.real(1), sum));
    Value* maximum = row_of(at(m_maximum), row, m_a.vector_bytes());
    m_a.store(e.ir.CreateFAdd(m_a.in_nats(m_a.load(maximum, 0)), math.log(sum)), maximum, 0);
    Value* output = row_of(at(m_output), row, value_bytes());
    e.loop(e.index(0), e.index(value_bytes()), m_a.vector_bytes(), [&](Value* offset) {
      Value* at_offset = e.advance(output, offset);
      m_a.store(e.ir.CreateFMul(m_a.load(at_offset, 0), inverse), at_offset, 0);
    });
  });
  for_each_head(place, [&](Value* head, Value* first_row) {
    m_a.rows.store(m_a.layout(m_attention.out, m_attention.value_dim), row_of(at(m_output), first_row, value_bytes()),
                   m_a.base(m_attention.out, place, head), e.index(m_attention.q_len), 1);
    Value* lse = m_a.base(m_attention.lse, place, head);
    e.loop(e.index(0), e.index(m_attention.q_len), 1, [&](Value* query) {
      Value* from = row_of(at(m_maximum), e.ir.CreateAdd(first_row, query), m_a.vector_bytes());
      e.store(e.load(e.f32(), from), e.advance(lse, e.ir.CreateMul(query, m_a.row_bytes(m_attention.lse))));
    });
  });
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
