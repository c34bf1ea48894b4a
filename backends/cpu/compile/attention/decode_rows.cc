#include "backends/cpu/compile/attention/decode_rows.h"

#include <algorithm>
#include <bit>

#include "backends/attention_scores.h"
#include "backends/cpu/compile/emit/split.h"

namespace kiln::cpu {

using llvm::Value;

LaunchShape DecodeRows::emit_tasks(const std::function<void(const AttentionPlace&, Value*)>& body) {
  const auto tasks = [&] { return e.index(m_attention.batch * m_attention.kv_heads); };
  return m_a.emit_tasks(tasks, [&](const Emitter::Entry& entry, Value* task) {
    Value* kv_heads = e.index(m_attention.kv_heads);
    Value* kv_head = e.ir.CreateURem(task, kv_heads);
    body({entry.buffers, entry.status, e.ir.CreateUDiv(task, kv_heads), e.ir.CreateMul(kv_head, e.index(m_a.group())),
          entry.extents},
         kv_head);
  });
}

Value* DecodeRows::seen_keys() {
  if (!m_attention.causal) return m_a.k_len();
  return e.index(std::clamp<int64_t>(m_attention.q_len + m_attention.causal_offset, 0, m_attention.k_len));
}

void DecodeRows::for_key_blocks(Value* begin, Value* end, const KeyBlock& body) {
  const int64_t step = m_a.schedule.key_block;
  e.loop(begin, end, step, [&](Value* first) {
    body(first, e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, e.ir.CreateSub(end, first), e.index(step)));
  });
}

void DecodeRows::for_seen_blocks(const AttentionPlace& place, const KeyBlock& body, const KeyBlock& left_out) {
  const bool may_be_left_out = leaves_out_scores(m_attention.score, m_attention.score_value);
  for_key_blocks(e.index(0), seen_keys(), [&](Value* first, Value* count) {
    if (!may_be_left_out) return body(first, count);
    const auto run = [&](const KeyBlock& either) {
      either(first, count);
      return Values{};
    };
    Value* counts =
        e.ir.CreateCall(some_score_counts(), {place.buffers, place.status, place.batch, place.head, first, count});
    e.if_else(counts, [&] { return run(body); }, [&] { return run(left_out); });
  });
}

/// (buffers, status, batch, first head, first key, count)
llvm::Function* DecodeRows::some_score_counts() {
  if (m_some_score_counts != nullptr) return m_some_score_counts;
  const auto resume = e.ir.saveIP();
  llvm::Type *p = e.pointer(), *i = e.i64();
  m_some_score_counts = e.begin_function("some_score_counts", e.i1(), {p, p, i, i, i, i});
  auto* argument = m_some_score_counts->arg_begin();
  const auto of_row = [&](Value* number) {
    const Row at = row({argument, argument + 1, argument + 2, argument + 3}, number);
    return for_each_score(at.place, at.query, argument + 4, argument + 5, nullptr, {e.ir.getFalse()},
                          [&](Value*, Value* score, const Values& found) {
                            Value* counts = e.ir.CreateOrReduce(e.ir.CreateFCmpUNE(score, m_a.real(-k_infinity)));
                            return Values{e.ir.CreateOr(found[0], counts)};
                          });
  };
  Value* found = e.loop(e.index(0), e.index(row_count()), 1, {e.ir.getFalse()}, [&](Value* number, const Values& now) {
    return e.if_else(now[0], [&] { return now; }, [&] { return of_row(number); });
  })[0];
  e.ir.CreateRet(found);
  e.ir.restoreIP(resume);
  return m_some_score_counts;
}

void DecodeRows::for_each_head(const AttentionPlace& place,
                               const std::function<void(Value* head, Value* first_row)>& body) {
  e.loop(e.index(0), e.index(m_a.group()), 1,
         [&](Value* i) { body(e.ir.CreateAdd(place.head, i), e.ir.CreateMul(i, e.index(m_attention.q_len))); });
}

DecodeRows::Row DecodeRows::row(const AttentionPlace& place, Value* number) {
  Value* queries = e.index(m_attention.q_len);
  AttentionPlace of_head = place;
  of_head.head = e.ir.CreateAdd(place.head, e.ir.CreateUDiv(number, queries));
  return {number, of_head, e.ir.CreateURem(number, queries)};
}

void DecodeRows::for_each_row(const AttentionPlace& place, const std::function<void(const Row&)>& body) {
  e.loop(e.index(0), e.index(row_count()), 1, [&](Value* number) { body(row(place, number)); });
}

void DecodeRows::load(const Access& access, int64_t columns, const AttentionPlace& place, Value* block, double scale) {
  for_each_head(place, [&](Value* head, Value* first_row) {
    m_a.rows.load(m_a.layout(access, columns), m_a.base(access, place, head),
                  row_of(block, first_row, m_a.rows.padded_bytes(columns)), e.index(m_attention.q_len),
                  e.index(m_attention.q_len - 1), scale);
  });
}

void DecodeRows::store(const Access& access, int64_t columns, const AttentionPlace& place, Value* block, double scale) {
  for_each_head(place, [&](Value* head, Value* first_row) {
    m_a.rows.store(m_a.layout(access, columns), row_of(block, first_row, m_a.rows.padded_bytes(columns)),
                   m_a.base(access, place, head), e.index(m_attention.q_len), scale);
  });
}

DecodeRows::Keys DecodeRows::keys_of(const Access& access, int64_t columns, Value* tensor, Value* first, Value* count,
                                     Value* scratch) {
  const int64_t row_bytes = access.strides[2] * static_cast<int64_t>(size_of(m_a.dtype_of(access)));
  Value* start = row_of(tensor, first, row_bytes);
  if (!m_a.widens(access) && access.strides[3] == 1 && columns % e.lanes() == 0) return {start, row_bytes};
  m_a.rows.load(m_a.layout(access, columns), start, scratch, count, e.ir.CreateSub(count, e.index(1)), 1);
  return {scratch, m_a.rows.padded_bytes(columns)};
}

void DecodeRows::multiply(Value* row, const Keys& keys, int64_t columns, Value* products, Value* count) {
  e.ir.CreateCall(product_function(m_a.rows.padded_bytes(columns), keys.bytes), {row, keys.base, products, count});
}

/// (row, keys, products, count)
llvm::Function* DecodeRows::product_function(int64_t row_bytes, int64_t key_bytes) {
  llvm::Function*& function = m_products[{row_bytes, key_bytes}];
  if (function != nullptr) return function;
  const auto resume = e.ir.saveIP();
  llvm::Type* p = e.pointer();
  function = e.begin_function("products", e.ir.getVoidTy(), {p, p, p, e.i64()});
  Value* count = function->getArg(3);
  const auto put = [&](Value* key, Value* last) {
    Value* sums = sums_of_keys(function, row_bytes, key_bytes, key, last);
    m_a.store(sums, row_of(function->getArg(2), key, 4), 0);
  };
  Value* whole = e.ir.CreateAnd(count, e.index(-e.lanes()));
  e.loop(e.index(0), whole, e.lanes(), [&](Value* key) { put(key, nullptr); });
  e.if_then(e.ir.CreateICmpSLT(whole, count), [&] { put(whole, e.ir.CreateSub(count, e.index(1))); });
  e.ir.CreateRetVoid();
  e.ir.restoreIP(resume);
  return function;
}

/// The row times the keys from `key` on, one in each lane; behind `last`, where it is given, that one again.
Value* DecodeRows::sums_of_keys(llvm::Function* function, int64_t row_bytes, int64_t key_bytes, Value* key,
                                Value* last) {
  Values from;
  for (int64_t i = 0; i < e.lanes(); ++i) {
    Value* base = function->getArg(1);
    if (last == nullptr) {
      from.push_back(e.advance(row_of(base, key, key_bytes), i * key_bytes));
    } else {
      Value* number = e.ir.CreateAdd(key, e.index(i));
      from.push_back(row_of(base, e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, number, last), key_bytes));
    }
  }
  const Values zeros(static_cast<size_t>(e.lanes()), m_a.real(0));
  const Values sums =
      e.loop(e.index(0), e.index(row_bytes), m_a.vector_bytes(), zeros, [&](Value* offset, const Values& now) {
        Value* row = m_a.load(e.advance(function->getArg(0), offset), 0);
        Values next;
        for (size_t i = 0; i < now.size(); ++i) {
          Value* of_key = e.load(m_a.vector(), e.advance(from[i], offset), 4);
          next.push_back(e.fma(of_key, row, now[i]));
        }
        return next;
      });
  return e.sum_of_each(sums);
}

void DecodeRows::sum_over_keys(Value* weights, const Keys& keys, int64_t columns, Value* out, Value* count) {
  TileProduct tile;
  tile.a_row = score_bytes();
  tile.a_step = 4;
  tile.b_step = keys.bytes;
  tile.b_is_aligned = false;
  tile.c_row = m_a.rows.padded_bytes(columns);
  tile.start = TileProduct::Start::accumulate;
  weighted_sum(tile, weights, keys.base, out, e.index(row_count()), count);
}

void DecodeRows::sum_over_rows(Value* weights, Value* rows, int64_t columns, Value* out, Value* count) {
  TileProduct tile;
  tile.a_row = 4;
  tile.a_step = score_bytes();
  tile.b_step = tile.c_row = m_a.rows.padded_bytes(columns);
  weighted_sum(tile, weights, rows, out, count, e.index(row_count()));
}

/// out[i, :] (+)= Σ_t weights[i, t] * rows[t, :] for `count` i; where that is no constant, up to the next multiple of lanes.
void DecodeRows::weighted_sum(TileProduct tile, Value* weights, Value* rows, Value* out, Value* count, Value* steps) {
  const bool wide = e.target().has(Feature::avx512);
  const int64_t registers = wide ? 32 : 16, most_vectors = wide ? 8 : 4;
  const Split columns = Split::of(tile.c_row / m_a.vector_bytes(), most_vectors);
  const auto* known = llvm::dyn_cast<llvm::ConstantInt>(count);
  columns.for_each_size([&](int64_t first_vector, int64_t last_vector, int64_t vectors) {
    tile.vectors = vectors;
    const auto put = [&](Value* begin, Value* end, int64_t height) {
      tile.rows = height;
      e.loop(e.index(first_vector), e.index(last_vector), vectors, [&](Value* vector) {
        Value* offset = e.ir.CreateMul(vector, e.index(m_a.vector_bytes()));
        e.loop(begin, end, height, [&](Value* i) {
          m_a.products.run(tile, row_of(weights, i, tile.a_row), e.advance(rows, offset),
                           e.advance(row_of(out, i, tile.c_row), offset), steps);
        });
      });
    };
    // The sums, and one of the rows that are added.
    const int64_t most_rows = std::max<int64_t>(1, (registers - 1) / vectors - 1);
    if (known == nullptr) {
      return put(e.index(0), count, std::bit_floor(std::min<uint64_t>(most_rows, e.lanes())));
    }
    Split::of(known->getSExtValue(), most_rows).for_each_size([&](int64_t begin, int64_t end, int64_t height) {
      put(e.index(begin), e.index(end), height);
    });
  });
}

Values DecodeRows::for_each_score(const AttentionPlace& place, Value* query, Value* first, Value* count, Value* scores,
                                  const Values& initial, const ScoreBody& body) {
  Value* seen = count;  // of the block's keys
  if (m_attention.causal) {
    Value* last = e.ir.CreateAdd(query, e.index(m_attention.causal_offset + 1));
    seen = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, count, e.ir.CreateSub(last, first));
  }
  RowScore score(m_a, place, query);
  return e.loop(e.index(0), count, e.lanes(), initial, [&](Value* key, const Values& now) {
    Value* value = scores == nullptr ? m_a.real(0) : m_a.load(row_of(scores, key, 4), 0);
    Value* is_seen = e.prefix_mask(e.ir.CreateSub(seen, key), e.lanes());
    if (m_a.has_score()) value = score.apply(e.ir.CreateAdd(first, key), is_seen, value);
    return body(key, e.ir.CreateSelect(is_seen, value, m_a.real(-k_infinity)), now);
  });
}

}  // namespace kiln::cpu
