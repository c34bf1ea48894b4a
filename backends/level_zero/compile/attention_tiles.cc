#include "backends/level_zero/compile/attention_tiles.h"

#include <algorithm>

#include "backends/attention_scores.h"

namespace kiln::level_zero {

using spv::Op;

AttentionTiles::AttentionTiles(Emitter& emitter, const AttentionProblem& problem, const AttentionSchedule& schedule)
    : e(emitter),
      m_problem(problem),
      m_forward(*problem.forward),
      m_schedule(schedule),
      m_arguments(begin_kernel(emitter, *problem.spec, schedule.group_size(), schedule.lanes)),
      m_score(emitter, *problem.spec, m_forward.score, m_arguments) {
  if (leaves_out_scores(m_forward.score, m_forward.score_value)) {
    m_flags = e.local_array(e.integer(8), static_cast<uint32_t>(most_column_tiles(problem, schedule)));
  }
}

Id AttentionTiles::enter_place(int64_t tiles) {
  const Id group = e.op(Op::OpUConvert, e.integer(32), {e.group_id()});
  const Id place = divided(group, tiles);
  m_batch = e.widen(divided(place, m_forward.kv_heads));
  m_head = rest(place, m_forward.kv_heads);
  return rest(group, tiles);
}

Id AttentionTiles::row_of(Id first, int i) {
  const Id of_sub_group = e.add(first, e.mul(e.sub_group_id(), number(m_schedule.rows)));
  return e.add(of_sub_group, number(i));
}

// Memory.

AttentionTensor AttentionTiles::tensor(const Access& access, bool is_of_queries, int64_t rows, int64_t depth) {
  const int64_t heads = is_of_queries ? m_problem.group() : 1;
  const Id batch = e.mul(m_batch, e.index(access.strides[0]));
  const Id head = e.mul(e.widen(m_head), e.index(heads * access.strides[1]));
  return {&access, is_of_queries, rows, depth, e.add(e.add(batch, head), e.index(access.offset))};
}

AttentionTensor AttentionTiles::of_queries(const Access& access, int64_t depth) {
  return tensor(access, true, m_problem.queries(), depth);
}

AttentionTensor AttentionTiles::of_keys(const Access& access, int64_t depth) {
  return tensor(access, false, m_forward.k_len, depth);
}

Id AttentionTiles::row_offset(const AttentionTensor& tensor, Id row) {
  const std::vector<int64_t>& strides = tensor.access->strides;
  const int64_t heads = tensor.is_of_queries ? m_problem.group() : 1, length = tensor.rows / heads;
  const int64_t reach = (heads - 1) * strides[1] + (length - 1) * strides[2] + (tensor.depth - 1) * strides[3];
  const bool is_narrow = std::ranges::min(strides) >= 0 && reach <= INT32_MAX;
  const auto times = [&](Id index, int64_t stride) {
    const Id sized = is_narrow ? index : e.widen(index);
    return e.mul(sized, e.constant(e.type_of(sized), stride));
  };
  if (heads == 1 || strides[1] == length * strides[2]) return times(row, strides[2]);
  return e.add(times(divided(row, length), strides[1]), times(rest(row, length), strides[2]));
}

Id AttentionTiles::element(const AttentionTensor& tensor, Id row_offset, Id depth) {
  const Id sized = e.type_of(row_offset) == e.integer(32) ? depth : e.widen(depth);
  const Id along = e.mul(sized, e.constant(e.type_of(sized), tensor.access->strides[3]));
  const Id offset = e.add(tensor.begin, e.widen(e.add(row_offset, along)));
  return e.element_pointer(m_arguments.buffers[tensor.access->buffer], offset);
}

Id AttentionTiles::load(const AttentionTensor& tensor, Id row, Id depth) {
  const Id pointer = element(tensor, row_offset(tensor, row), depth);
  return scalars().from_memory(m_forward.dtype, e.load(pointer, static_cast<uint32_t>(size_of(m_forward.dtype))));
}

Id AttentionTiles::load_or_zero(const AttentionTensor& tensor, Id row, Id depth) {
  const Id inside = e.both(e.compare(Op::OpULessThan, row, number(tensor.rows)),
                           e.compare(Op::OpULessThan, depth, number(tensor.depth)));
  const Id value = load(tensor, at_most(row, tensor.rows - 1), at_most(depth, tensor.depth - 1));
  return e.select(inside, value, scalars().zero(dtype()));
}

void AttentionTiles::store(const AttentionTensor& tensor, Id first, const Block& values, const Ids& factors) {
  const auto store_row = [&](size_t i, Id row) {
    const Id begin = row_offset(tensor, row);
    for (size_t c = 0; c < values[i].size(); ++c) {
      const Id depth = column_of(number(0), static_cast<int>(c));
      const auto write = [&] {
        Id value = e.load(values[i][c]);
        if (!factors.empty()) value = e.op(Op::OpFMul, e.type_of(value), {value, factors[i]});
        e.store(element(tensor, begin, depth), scalars().to_memory(m_forward.dtype, value),
                static_cast<uint32_t>(size_of(m_forward.dtype)));
      };
      const bool is_whole = static_cast<int64_t>(c + 1) * m_schedule.lanes <= tensor.depth;
      is_whole ? write() : e.if_then(e.compare(Op::OpULessThan, depth, number(tensor.depth)), write);
    }
  };
  for (size_t i = 0; i < values.size(); ++i) {
    const Id row = row_of(first, static_cast<int>(i));
    e.if_then(e.compare(Op::OpULessThan, row, number(tensor.rows)), [&] { store_row(i, row); });
  }
}

Id AttentionTiles::lse_pointer(const Query& query) {
  const Access& lse = m_forward.lse;
  Id element = e.index(lse.offset);
  const Id index[] = {m_batch, e.widen(query.head), e.widen(query.index)};
  for (size_t d = 0; d < std::size(index); ++d) element = e.add(element, e.mul(index[d], e.index(lse.strides[d])));
  return e.element_pointer(m_arguments.buffers[lse.buffer], element);
}

LocalTile AttentionTiles::tile(int64_t rows, int64_t depth) {
  LocalTile tile{0, rows, depth};
  tile.memory = e.local_array(scalars().register_type(dtype()), static_cast<uint32_t>(rows * tile.pitch()));
  return tile;
}

/// Neighbouring items read neighbours along the depth, unless it is the rows that are adjacent.
void AttentionTiles::fill(const LocalTile& tile, const AttentionTensor& tensor, Id first) {
  const std::vector<int64_t>& strides = tensor.access->strides;
  const int64_t width = tile.width(), elements = tile.rows * width;
  const bool along_rows = strides[2] == 1 && strides[3] != 1;
  const Id item = e.op(Op::OpUConvert, e.integer(32), {e.local_id()});
  e.loop(item, number(elements), number(m_schedule.group_size()), [&](Id element) {
    const int64_t inner = along_rows ? tile.rows : width;
    const Id fast = rest(element, inner), slow = divided(element, inner);
    const Id line = along_rows ? fast : slow, depth = along_rows ? slow : fast;
    const Id value = load_or_zero(tensor, e.add(first, line), depth);
    const Id place = e.add(e.mul(line, number(tile.pitch())), depth);
    e.store(e.array_pointer(tile.memory, place), value, alignment());
  });
}

// Products.

AttentionTiles::Block AttentionTiles::zeros(int64_t columns) {
  Block block;
  for (int i = 0; i < m_schedule.rows; ++i) {
    block.emplace_back();
    for (int64_t c = 0; c < columns; ++c) {
      block.back().push_back(e.variable(scalars().register_type(dtype())));
      e.store(block.back().back(), scalars().zero(dtype()));
    }
  }
  return block;
}

/// Sums += the products of 16 factors of each row, one in each lane, and 16 elements of each column.
void AttentionTiles::multiply(const Block& sums, const Ids& factors,
                              const std::function<Id(Id step, size_t column)>& element) {
  e.loop(number(0), number(m_schedule.lanes), number(1), [&](Id step) {
    Ids of_columns;
    for (size_t c = 0; c < sums.front().size(); ++c) of_columns.push_back(element(step, c));
    for (size_t i = 0; i < sums.size(); ++i) {
      const Id factor = e.shuffle(factors[i], step);
      for (size_t c = 0; c < of_columns.size(); ++c) {
        const Id old = e.load(sums[i][c]);
        e.store(sums[i][c], e.math(OpenCLLIB::Fma, e.type_of(old), {factor, of_columns[c], old}));
      }
    }
  });
}

AttentionTiles::Block AttentionTiles::products(const LocalTile& rows, const LocalTile& columns) {
  const Block sums = zeros(m_schedule.columns);
  e.loop(number(0), number(rows.width()), number(m_schedule.lanes), [&](Id begin) {
    Ids factors;
    for (int i = 0; i < m_schedule.rows; ++i) {
      const Id place = e.add(e.add(e.mul(row_of(number(0), i), number(rows.pitch())), begin), e.lane());
      factors.push_back(e.load(e.array_pointer(rows.memory, place), alignment()));
    }
    multiply(sums, factors, [&](Id step, size_t column) {
      const Id line = e.mul(column_of(number(0), static_cast<int>(column)), number(columns.pitch()));
      return e.load(e.array_pointer(columns.memory, e.add(line, e.add(begin, step))), alignment());
    });
  });
  return sums;
}

void AttentionTiles::accumulate(const Block& sums, const Block& weights, const LocalTile& tile) {
  for (int j = 0; j < m_schedule.columns; ++j) {
    Ids factors;
    for (const Ids& row : weights) factors.push_back(e.load(row[static_cast<size_t>(j)]));
    multiply(sums, factors, [&](Id step, size_t column) {
      const Id line = e.mul(e.add(step, number(int64_t{j} * m_schedule.lanes)), number(tile.pitch()));
      const Id place = e.add(line, column_of(number(0), static_cast<int>(column)));
      return e.load(e.array_pointer(tile.memory, place), alignment());
    });
  }
}

// Scores.

AttentionTiles::Query AttentionTiles::query_at(Id row) {
  const int64_t group = m_problem.group();
  const Id is_there = e.compare(Op::OpULessThan, row, number(m_problem.queries()));
  if (group == 1) return {m_head, row, is_there};
  return {e.add(e.mul(m_head, number(group)), divided(row, m_forward.q_len)), rest(row, m_forward.q_len), is_there};
}

Id AttentionTiles::is_kept(const Query& query, Id key) {
  const Id is_there = e.both(query.is_there, e.compare(Op::OpULessThan, key, number(m_forward.k_len)));
  if (!m_forward.causal) return is_there;
  return e.both(is_there, e.compare(Op::OpSLessThanEqual, key, last_key_of(query.index)));
}

/// Further out than this offset, all keys come too late, or none.
Id AttentionTiles::last_key_of(Id query) {
  return e.add(query, number(std::clamp(m_forward.causal_offset, -m_forward.q_len, m_forward.k_len)));
}

Id AttentionTiles::score(const Query& query, Id key, Id product) {
  const Id scale = e.constant_real(e.type_of(product), m_forward.scale);
  const Id scaled = e.op(Op::OpFMul, e.type_of(product), {product, scale});
  if (m_forward.score_value == k_no_expr) return e.select(is_kept(query, key), scaled, nothing());
  const Id result = e.variable(e.type_of(product));
  e.store(result, nothing());
  e.if_then(is_kept(query, key), [&] {
    Scope scope = m_score.root(4);
    scope.index = {m_batch, e.widen(query.head), e.widen(query.index), e.widen(key)};
    scope.accumulator = scaled;
    e.store(result, m_score.evaluate(scope, m_forward.score_value));
  });
  return e.load(result);
}

/// Whether causality keeps some of it, where that can be said at once.
Id AttentionTiles::is_early_enough(const Area& area) {
  const int64_t length = m_forward.q_len;
  const Id last_row = at_most(e.add(area.row, number(area.rows - 1)), m_problem.queries() - 1);
  Id query = last_row;
  if (m_problem.group() > 1) {
    const Id is_of_one_head = e.compare(Op::OpIEqual, divided(area.row, length), divided(last_row, length));
    query = e.select(is_of_one_head, rest(last_row, length), number(length - 1));
  }
  return e.compare(Op::OpSLessThanEqual, area.key, last_key_of(query));
}

/// Whether some score is not -inf: 0 or 1, in 8 bits. By one sub-group together.
Id AttentionTiles::keeps_some(const Area& area) {
  const Id found = e.variable(e.integer(32)), none = number(0);
  e.store(found, none);
  e.loop(e.lane(), number(area.rows * area.keys), number(m_schedule.lanes), [&](Id point) {
    e.if_then(e.compare(Op::OpIEqual, e.load(found), none), [&] {
      const Query query = query_at(e.add(area.row, divided(point, area.keys)));
      const Id of_zero = score(query, e.add(area.key, rest(point, area.keys)), scalars().zero(dtype()));
      // Of NaN, too.
      e.store(found, e.select(e.compare(Op::OpFUnordNotEqual, of_zero, nothing()), number(1), none));
    });
  });
  const auto either = [&](Id a, Id b) { return e.op(Op::OpBitwiseOr, e.integer(32), {a, b}); };
  return e.op(Op::OpUConvert, e.integer(8), {combine_lanes(e, e.load(found), either, m_schedule.lanes)});
}

void AttentionTiles::for_columns(bool rows_are_queries, Id first_row, const std::function<void(Id)>& body) {
  const int64_t columns = m_schedule.tile_columns(), rows = m_schedule.tile_rows();
  const Id count = number(rows_are_queries ? m_forward.k_len : m_problem.queries());
  const auto area_at = [&](Id column) {
    return rows_are_queries ? Area{first_row, column, rows, columns} : Area{column, first_row, columns, rows};
  };
  const auto flag_at = [&](Id column) { return e.array_pointer(m_flags, divided(column, columns)); };
  if (m_flags != 0) {
    const Id first = e.mul(e.sub_group_id(), number(columns));
    e.loop(first, count, number(columns * m_schedule.sub_groups),
           [&](Id column) { e.store(flag_at(column), keeps_some(area_at(column)), 1); });
    e.barrier(/*global_memory=*/false);
  }
  e.loop(number(0), count, number(columns), [&](Id column) {
    Id is_live = m_forward.causal ? is_early_enough(area_at(column)) : 0;
    if (m_flags != 0) {
      const Id flag = e.load(flag_at(column), 1);
      is_live = e.both(is_live, e.compare(Op::OpINotEqual, flag, e.constant(e.integer(8), 0)));
    }
    is_live == 0 ? body(column) : e.if_then(is_live, [&] { body(column); });
  });
}

}  // namespace kiln::level_zero
