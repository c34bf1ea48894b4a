#include "backends/cpu/compile/attention/emission.h"

#include <limits>
#include <numeric>

#include "backends/attention_scores.h"
#include "backends/cpu/compile/emit/split.h"
#include "base/ceil_div.h"

namespace kiln::cpu {

using llvm::Value;

Value* AttentionEmission::load(Value* block_row, int64_t v) const {
  return e.load(vector(), e.advance(block_row, v * vector_bytes()), static_cast<uint64_t>(vector_bytes()));
}

void AttentionEmission::store(Value* value, Value* block_row, int64_t v) const {
  e.store(value, e.advance(block_row, v * vector_bytes()), static_cast<uint64_t>(vector_bytes()));
}

void AttentionEmission::store_row(const Values& values, Value* block_row) const {
  for (int64_t v = 0; v < vectors() && !pairs; ++v) store(values[v], block_row, v);
  std::vector<int> lower(static_cast<size_t>(e.lanes()));
  std::iota(lower.begin(), lower.end(), 0);
  for (int64_t v = 0; v < vectors() && pairs; v += 2) {
    const bool is_last = v + 1 == vectors();
    Value* both = e.bf16_of(values[v], values[is_last ? v : v + 1]);
    e.store(is_last ? e.ir.CreateShuffleVector(both, lower) : both, e.advance(block_row, v * vector_bytes() / 2));
  }
}

LaunchShape AttentionEmission::emit_tasks(const std::function<Value*()>& count,
                                          const std::function<void(const Emitter::Entry&, Value*)>& body) {
  const Emitter::Entry entry = e.begin_entry();
  m_workspace = entry.workspace;
  m_numbers.launch.load(e, entry.extents);
  const uint64_t tasks = emit_pieces(e, entry, count(), [&](Value* piece) { body(entry, piece); });
  e.ir.CreateRetVoid();
  return {tasks, static_cast<uint64_t>(m_workspace_bytes)};
}

void AttentionEmission::write_function(llvm::Function*& function, const std::string& name, llvm::Type* result,
                                       std::vector<llvm::Type*> parameters,
                                       const std::function<void(llvm::Argument*)>& body) {
  const auto resume = e.ir.saveIP();
  const size_t own = parameters.size();
  parameters.push_back(e.pointer());
  function = e.begin_function(name, result, parameters);
  Values outer = m_numbers.launch.exchange_loaded({});
  m_numbers.launch.load(e, function->getArg(static_cast<unsigned>(own)));
  body(function->arg_begin());
  m_numbers.launch.exchange_loaded(std::move(outer));
  e.ir.restoreIP(resume);
}

int64_t AttentionEmission::take(int64_t bytes) {
  constexpr int64_t k_line_bytes = 64;
  const int64_t offset = m_workspace_bytes;
  m_workspace_bytes += round_up(bytes, k_line_bytes);
  return offset;
}

Value* AttentionEmission::in_nats(Value* score) const { return e.ir.CreateFMul(score, real(has_score() ? 1 : k_ln_2)); }

Value* AttentionEmission::weight_of(Value* difference) const {
  return softmax_exp2(e, has_score() ? e.ir.CreateFMul(difference, real(k_log2_e)) : difference);
}

Value* AttentionEmission::larger(Value* a, Value* b) const { return e.ir.CreateSelect(e.ir.CreateFCmpOGT(a, b), a, b); }

Value* AttentionEmission::probability(Value* score, Value* lse) const {
  return softmax_exp2(e, e.ir.CreateFMul(e.ir.CreateFSub(score, lse), real(k_log2_e)));
}

Value* AttentionEmission::load_logsumexp(const AttentionPlace& place, Value* query) {
  Value* value = e.load(e.f32(), from_query(attention.lse, place, query));
  Value* no_key = e.ir.CreateFCmpOEQ(value, Emitter::real(e.f32(), -k_infinity));
  return e.ir.CreateSelect(no_key, Emitter::real(e.f32(), k_infinity), value);
}

Value* AttentionEmission::from_query(const Access& access, const AttentionPlace& place, Value* first_query) {
  return e.advance(base(access, place, place.head), e.ir.CreateMul(first_query, row_bytes(access)));
}

Value* AttentionEmission::base(const Access& access, const AttentionPlace& place, Value* head) {
  Value* pointer = e.load(e.pointer(), e.advance(place.buffers, int64_t{access.buffer} * 8));
  pointer = e.advance(pointer, offset_bytes(access));
  pointer = e.advance(pointer, e.ir.CreateMul(place.batch, stride_bytes(access, 0)));
  return e.advance(pointer, e.ir.CreateMul(head, stride_bytes(access, 1)));
}

Value* AttentionEmission::offset_bytes(const Access& access) {
  const auto opened = m_numbers.accesses.find(&access);
  return bytes_of(access, opened == m_numbers.accesses.end() ? 0 : opened->second.offset, access.offset);
}

Value* AttentionEmission::stride_bytes(const Access& access, size_t dim) {
  const auto opened = m_numbers.accesses.find(&access);
  const LaunchNumbers::Place place = opened == m_numbers.accesses.end() ? 0 : opened->second.strides[dim];
  return bytes_of(access, place, access.strides[dim]);
}

Value* AttentionEmission::bytes_of(const Access& access, LaunchNumbers::Place place, int64_t elements) {
  return e.ir.CreateMul(number(place, elements), e.index(static_cast<int64_t>(size_of(dtype_of(access)))));
}

RowsLayout AttentionEmission::layout(const Access& access, int64_t columns) {
  return {dtype_of(access), columns, access.strides[3], row_bytes(access)};
}

Value* AttentionEmission::steps(Value* elements) const {
  return pairs ? e.ir.CreateLShr(e.ir.CreateAdd(elements, e.index(1)), e.index(1)) : elements;
}

void AttentionEmission::load_transposed(const Access& access, int64_t columns, const AttentionPlace& place,
                                        Value* first_query, Value* scratch, Value* transposed, double scale) {
  Value* from = from_query(access, place, first_query);
  Value* last = e.ir.CreateSub(valid_queries(first_query), e.index(1));
  const RowsLayout of_rows = layout(access, columns);
  if (pairs) {
    rows.load_halves(of_rows, from, scratch, e.index(block()), last);
  } else {
    rows.load(of_rows, from, scratch, e.index(block()), last, scale);
  }
  const int64_t lanes_of_steps = transposed_steps(columns);
  rows.transpose(scratch, lanes_of_steps * 4, transposed, block_bytes(), block(), lanes_of_steps);
}

int64_t AttentionEmission::row_scratch_bytes(const Access& access, int64_t columns) const {
  const bool is_read_in_place = pairs ? !tiles && access.strides[3] == 1 && columns % 2 == 0 : !widens(access);
  return is_read_in_place ? 0 : schedule.key_block * transposed_steps(columns) * 4;
}

AttentionEmission::Operand AttentionEmission::key_rows(const Access& access, int64_t columns, Value* tensor,
                                                       Value* first, Value* count, Value* scratch) {
  Value* start = e.advance(tensor, e.ir.CreateMul(first, row_bytes(access)));
  if (row_scratch_bytes(access, columns) == 0) return {start, row_bytes(access), access.strides[3] * 4};
  Value* last = e.ir.CreateSub(count, e.index(1));
  if (pairs) {
    rows.load_halves(layout(access, columns), start, scratch, tiles ? round_to_tile(count) : count, last);
  } else {
    rows.load(layout(access, columns), start, scratch, count, last, 1);
  }
  return {scratch, e.index(transposed_steps(columns) * 4), 4};
}

int64_t AttentionEmission::column_scratch_bytes(const Access& access, int64_t columns) const {
  return pairs ? schedule.key_block / 2 * rows.padded_bytes(columns) : row_scratch_bytes(access, columns);
}

AttentionEmission::Operand AttentionEmission::key_columns(const Access& access, int64_t columns, Value* tensor,
                                                          Value* first, Value* count, Value* scratch) {
  if (!pairs) return key_rows(access, columns, tensor, first, count, scratch);
  Value* start = e.advance(tensor, e.ir.CreateMul(first, row_bytes(access)));
  rows.load_row_pairs(layout(access, columns), start, scratch, count);
  return {scratch, e.index(rows.padded_bytes(columns)), 4};
}

AttentionEmission::KeyRange AttentionEmission::key_range(Value* first_query) {
  const int64_t step = schedule.key_block;
  Value* keys = k_len();
  const auto whole_blocks = [&](Value* count) {
    return e.ir.CreateMul(e.ir.CreateUDiv(count, e.index(step)), e.index(step));
  };
  if (!attention.causal) return {whole_blocks(keys), keys};
  const auto clamp = [&](Value* value) {
    value = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smax, value, e.index(0));
    return e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, value, keys);
  };
  // The first query sees keys up to its own number + offset, the last one block() - 1 more.
  Value* seen_by_first = clamp(e.ir.CreateAdd(first_query, e.ir.CreateAdd(causal_offset(), e.index(1))));
  Value* past = e.ir.CreateAdd(first_query, valid_queries(first_query));
  Value* seen_by_last = clamp(e.ir.CreateAdd(past, causal_offset()));
  return {whole_blocks(seen_by_first), seen_by_last};
}

void AttentionEmission::for_key_blocks(const AttentionPlace& place, Value* first_query, const KeyBlock& body) {
  const int64_t step = schedule.key_block;
  const KeyRange range = key_range(first_query);
  const bool may_be_left_out = leaves_out_scores(attention.score, attention.score_value);
  const auto unless_left_out = [&](Value* first, Value* count, bool masked) {
    if (!may_be_left_out) return body(first, count, masked);
    Value* counts = e.ir.CreateCall(some_score_counts(), {place.buffers, place.status, place.batch, place.head,
                                                          first_query, first, count, place.extents});
    e.if_then(counts, [&] { body(first, count, masked); });
  };
  e.loop(e.index(0), range.whole, step, [&](Value* first) { unless_left_out(first, e.index(step), false); });
  e.loop(range.whole, range.end, step, [&](Value* first) {
    Value* rest = e.ir.CreateSub(range.end, first);
    unless_left_out(first, e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, rest, e.index(step)), true);
  });
}

/// (buffers, status, batch, head, first query, first key, count)
llvm::Function* AttentionEmission::some_score_counts() {
  if (m_some_score_counts != nullptr) return m_some_score_counts;
  llvm::Type *p = e.pointer(), *i = e.i64();
  write_function(m_some_score_counts, "some_score_counts", e.i1(), {p, p, i, i, i, i, i}, [&](auto* argument) {
    ScoreLoop loop(*this, {argument, argument + 1, argument + 2, argument + 3}, argument + 4);
    e.ir.CreateRet(loop.some_counts(argument + 5, argument + 6));
  });
  return m_some_score_counts;
}

void AttentionEmission::score_tiles(const Operand& keys, int64_t depth, Value* queries, Value* scores, Value* count,
                                    bool masked, double scale, Value* maximum) {
  TileProduct tile;
  tile.rows = schedule.tile_rows;
  tile.vectors = vectors();
  tile.a_row = compiled_in(keys.row_bytes);
  tile.a_step = keys.column_bytes;
  tile.b_step = tile.c_row = block_bytes();
  tile.clamped = masked;
  tile.pairs = pairs;
  tile.scale = scale;
  tile.maximum = maximum != nullptr;
  e.loop(e.index(0), count, tile.rows, [&](Value* row) {
    products.run(tile, e.advance(keys.base, e.ir.CreateMul(row, keys.row_bytes)), queries,
                 e.advance(scores, e.ir.CreateMul(row, e.index(tile.c_row))), e.index(steps(depth)), maximum,
                 e.ir.CreateSub(count, row), keys.row_bytes);
  });
}

void AttentionEmission::weighted_sum(const Operand& keys, int64_t depth, Value* weights, Value* out, Value* count,
                                     TileProduct::Start start, Value* factor) {
  const Split tiles = Split::of(depth, schedule.tile_rows);
  TileProduct tile;
  tile.vectors = vectors();
  tile.a_row = keys.column_bytes;
  tile.a_step = compiled_in(keys.row_bytes);
  tile.b_step = tile.c_row = block_bytes();
  tile.pairs = pairs;
  tile.start = start;
  tiles.for_each_size([&](int64_t from, int64_t to, int64_t height) {
    tile.rows = height;
    e.loop(e.index(from), e.index(to), height, [&](Value* d) {
      products.run(tile, e.advance(keys.base, e.ir.CreateMul(d, e.index(tile.a_row))), weights,
                   e.advance(out, e.ir.CreateMul(d, e.index(tile.c_row))), steps(count), factor, nullptr,
                   keys.row_bytes);
    });
  });
}

Value* AttentionEmission::round_to_tile(Value* count) {
  Value* rows = e.index(schedule.tile_rows);
  return e.ir.CreateMul(e.ceil_div(count, rows), rows);
}

Value* AttentionEmission::valid_queries(Value* first_query) {
  Value* rest = e.ir.CreateSub(q_len(), first_query);
  return e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, rest, e.index(block()));
}

void AttentionEmission::fill(Value* at, Value* bytes, double value) {
  e.loop(e.index(0), bytes, vector_bytes(), [&](Value* offset) { store(real(value), e.advance(at, offset), 0); });
}

/// The last key that each lane's query sees.
Values AttentionEmission::key_limits(Value* first_query) {
  Values limits;
  Value* last_key = e.splat(e.ir.CreateTrunc(e.ir.CreateSub(k_len(), e.index(1)), e.i32()), e.lanes());
  for (int64_t v = 0; v < vectors(); ++v) {
    Value* last = last_key;
    if (attention.causal) {
      Value* shifted = e.ir.CreateAdd(first_query, e.ir.CreateAdd(causal_offset(), e.index(v * e.lanes())));
      Value* own =
          e.ir.CreateAdd(e.splat(e.ir.CreateTrunc(shifted, e.i32()), e.lanes()), Emitter::iota(e.i32(), e.lanes()));
      last = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, own, last);
    }
    limits.push_back(last);
  }
  return limits;
}

// The score expression.

std::unique_ptr<BodyEmitter> AttentionEmission::score_body(const AttentionPlace& place, int lane_dim) {
  if (!has_score()) return nullptr;
  Values buffers(spec.buffers.size(), nullptr);
  for (const Access& access : attention.score.accesses) {
    buffers[access.buffer] = e.load(e.pointer(), e.advance(place.buffers, int64_t{access.buffer} * 8));
  }
  auto body = std::make_unique<BodyEmitter>(e, spec, attention.score, buffers, place.status);
  body->set_result_dims(0xF);
  body->set_lane_dim(lane_dim);
  if (!m_numbers.score.accesses.empty() || !m_numbers.score.constants.empty()) body->set_numbers(m_numbers.score);
  return body;
}

RowScore::RowScore(AttentionEmission& emission, const AttentionPlace& place, Value* query)
    : m_a(emission), m_body(emission.score_body(place, 3)) {
  if (m_body == nullptr) return;
  m_scopes.push_back(m_body->root());
  m_scopes.push_back(m_body->bind(*m_scopes.back(), 0, place.batch));
  m_scopes.push_back(m_body->bind(*m_scopes.back(), 1, place.head));
  m_scopes.push_back(m_body->bind(*m_scopes.back(), 2, query));
  m_body->prepare(*m_scopes.back(), {m_a.attention.score_value});
  m_scopes.push_back(m_body->nest(*m_scopes.back()));
}

Value* RowScore::apply(Value* key, Value* mask, Value* raw) {
  const auto lanes = m_body->spread(*m_scopes.back(), 3, key, 0, m_a.e.lanes(), mask);
  m_body->set_accumulator(*lanes, raw);
  return m_body->evaluate_lanes(*lanes, m_a.attention.score_value);
}

ScoreLoop::ScoreLoop(AttentionEmission& emission, const AttentionPlace& place, Value* first_query, double scale)
    : m_a(emission),
      m_body(emission.score_body(place, 2)),
      m_limits(emission.key_limits(first_query)),
      m_last_key(emission.e.ir.CreateSub(emission.k_len(), emission.e.index(1))),
      m_scale(scale) {
  if (m_body == nullptr) return;
  Emitter& e = m_a.e;
  m_scopes.push_back(m_body->root());
  m_scopes.push_back(m_body->bind(*m_scopes.back(), 0, place.batch));
  m_scopes.push_back(m_body->bind(*m_scopes.back(), 1, place.head));
  Scope& outer = *m_scopes.back();
  for (int64_t v = 0; v < m_a.vectors(); ++v) {
    const int64_t offset = v * e.lanes();
    Value* mask = nullptr;
    if (m_a.is_sized() || m_a.attention.q_len % m_a.block() != 0) {
      Value* rest = e.ir.CreateSub(e.ir.CreateSub(m_a.q_len(), e.index(offset)), first_query);
      mask = e.prefix_mask(rest, e.lanes());
    }
    m_scopes.push_back(m_body->spread(outer, 2, first_query, offset, e.lanes(), mask));
    m_lanes.push_back(m_scopes.back().get());
    m_body->prepare(*m_lanes.back(), {m_a.attention.score_value});
  }
}

Values ScoreLoop::run(Value* scores, Value* first_key, Value* count, bool masked, const Values& initial,
                      const RowBody& body) {
  Emitter& e = m_a.e;
  return e.loop(e.index(0), count, 1, initial, [&](Value* row, const Values& now) {
    Value* key = e.ir.CreateAdd(first_key, row);
    Value* at = e.advance(scores, e.ir.CreateMul(row, e.index(m_a.block_bytes())));
    // Keys past the end are masked below; the expression sees the last one instead.
    Value* existing = e.ir.CreateBinaryIntrinsic(llvm::Intrinsic::smin, key, m_last_key);
    Values results;
    for (int64_t v = 0; v < m_a.vectors(); ++v) {
      Value* score = m_a.load(at, v);
      if (m_scale != 1) score = e.ir.CreateFMul(score, m_a.real(m_scale));
      if (m_body != nullptr) score = apply(v, existing, score);
      if (masked) {
        Value* number = e.splat(e.ir.CreateTrunc(key, e.i32()), e.lanes());
        Value* seen = e.ir.CreateICmpSLE(number, m_limits[v]);
        score = e.ir.CreateSelect(seen, score, m_a.real(-std::numeric_limits<double>::infinity()));
      }
      results.push_back(score);
    }
    Values carried = now;
    body(row, results, carried);
    return carried;
  });
}

Value* ScoreLoop::some_counts(Value* first_key, Value* count) {
  Emitter& e = m_a.e;
  const auto of_row = [&](Value* row) {
    Value* counts = nullptr;
    for (int64_t v = 0; v < m_a.vectors(); ++v) {
      Value* score = apply(v, e.ir.CreateAdd(first_key, row), m_a.real(0));
      Value* is_seen = e.ir.CreateFCmpUNE(score, m_a.real(-k_infinity));
      if (Value* exist = m_lanes[v]->mask) is_seen = e.ir.CreateAnd(is_seen, exist);
      counts = counts == nullptr ? is_seen : e.ir.CreateOr(counts, is_seen);
    }
    return Values{e.ir.CreateOrReduce(counts)};
  };
  return e.loop(e.index(0), count, 1, {e.ir.getFalse()}, [&](Value* row, const Values& found) {
    return e.if_else(found[0], [&] { return found; }, [&] { return of_row(row); });
  })[0];
}

Value* ScoreLoop::apply(int64_t v, Value* key, Value* raw) {
  m_scopes.push_back(m_body->bind(*m_scopes[2], 3, key));
  Scope& inner = *m_scopes.back();
  m_scopes.push_back(m_body->join(inner, *m_lanes[v]));
  Scope& scope = *m_scopes.back();
  m_body->set_accumulator(scope, raw);
  return m_body->evaluate_lanes(scope, m_a.attention.score_value);
}

}  // namespace kiln::cpu
