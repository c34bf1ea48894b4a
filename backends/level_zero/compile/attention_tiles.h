#pragma once

#include "backends/level_zero/compile/attention_schedule.h"
#include "backends/level_zero/compile/body_emitter.h"

namespace kiln::level_zero {

/// A tensor of attention at a place. A row is a key, or a query of one of the heads that share keys.
struct AttentionTensor {
  const Access* access = nullptr;
  bool is_of_queries = false;
  int64_t rows = 0, depth = 0;
  Id begin = 0;  // of the place, 64 bits
};

/// Rows of a tensor in local memory, zeros past its ends.
struct LocalTile {
  Id memory = 0;
  int64_t rows = 0, depth = 0;
  int64_t pitch() const { return attention_pitch(depth); }
  int64_t width() const { return pitch() - 1; }
};

/// What kernels of both passes are made of. Numbers of rows and columns have 32 bits.
///
/// A sub-group holds rows of a product in registers: of 16 elements at a time lane l has the l-th, and a shuffle hands one of
/// them to all lanes. Lane l has the columns l, l + 16, … of the sums; what they are multiplied with lies in local memory.
class AttentionTiles {
 public:
  /// Variables of a work-item's sums, or values: [row of the sub-group][column of the lane].
  using Block = std::vector<Ids>;
  struct Query {
    Id head, index;  // in its batch; in its head
    Id is_there;     // its row is not past the end
  };

  AttentionTiles(Emitter& emitter, const AttentionProblem& problem, const AttentionSchedule& schedule);

  ScalarEmitter& scalars() { return m_score.scalars(); }
  DType dtype() const { return accumulator_of(m_forward.dtype); }
  Id number(int64_t value) { return e.constant(e.integer(32), value); }
  Id nothing() { return scalars().identity(Combiner::maximum, dtype()); }  // -inf

  /// The number of this work-group among its place's `tiles`; the place is set from then on.
  Id enter_place(int64_t tiles);
  AttentionTensor of_queries(const Access& access, int64_t depth);
  AttentionTensor of_keys(const Access& access, int64_t depth);
  /// The place's row that is the sub-group's row i, the first of the group's being `first`.
  Id row_of(Id first, int i);
  /// The column that is the lane's column j.
  Id column_of(Id first, int j) { return e.add(e.add(first, e.lane()), number(int64_t{j} * m_schedule.lanes)); }

  // Memory.

  /// An element, which must be there. `depth` counts along the last dim.
  Id load(const AttentionTensor& tensor, Id row, Id depth);
  /// The same, or 0 past the ends.
  Id load_or_zero(const AttentionTensor& tensor, Id row, Id depth);
  /// The sub-group's rows of a tensor, each times a factor (0: none), where they are there.
  void store(const AttentionTensor& tensor, Id first, const Block& values, const Ids& factors);
  /// Where the logsumexp of a query lies.
  Id lse_pointer(const Query& query);
  uint32_t alignment() const { return static_cast<uint32_t>(size_of(dtype())); }

  LocalTile tile(int64_t rows, int64_t depth);
  /// By the whole group: rows from `first` on.
  void fill(const LocalTile& tile, const AttentionTensor& tensor, Id first);

  // Products.

  /// `rows` x `columns` zeros.
  Block zeros(int64_t columns);
  /// The sub-group's rows of one tile times the columns that rows of the other are.
  Block products(const LocalTile& rows, const LocalTile& columns);
  /// sums += weights * what lies in the tile, whose rows are the weights' columns.
  void accumulate(const Block& sums, const Block& weights, const LocalTile& tile);

  // Scores.

  Query query_at(Id row);
  /// -inf where the query or the key is past the ends or the key comes too late.
  Id score(const Query& query, Id key, Id product);

  /// Passes over tiles of `columns` rows of what the group's rows meet, but for those in which no score is kept. `body` may
  /// let the group meet.
  void for_columns(bool rows_are_queries, Id first_row, const std::function<void(Id first_column)>& body);

 private:
  struct Area {
    Id row, key;  // where it begins
    int64_t rows, keys;
  };
  Id is_kept(const Query& query, Id key);
  Id last_key_of(Id query);
  Id is_early_enough(const Area& area);
  Id keeps_some(const Area& area);
  AttentionTensor tensor(const Access& access, bool is_of_queries, int64_t rows, int64_t depth);
  /// How far a row begins behind the place: in 32 bits where they hold all of the place's elements.
  Id row_offset(const AttentionTensor& tensor, Id row);
  Id element(const AttentionTensor& tensor, Id row_offset, Id depth);
  void multiply(const Block& sums, const Ids& factors, const std::function<Id(Id step, size_t column)>& element);
  Id divided(Id value, int64_t by) { return e.op(spv::Op::OpUDiv, e.integer(32), {value, number(by)}); }
  Id rest(Id value, int64_t by) { return e.op(spv::Op::OpUMod, e.integer(32), {value, number(by)}); }
  Id at_most(Id value, int64_t most) { return e.math(OpenCLLIB::UMin, e.integer(32), {value, number(most)}); }

  Emitter& e;
  const AttentionProblem m_problem;
  const AttentionSpec& m_forward;
  const AttentionSchedule m_schedule;
  const KernelArguments m_arguments;
  BodyEmitter m_score;
  Id m_flags = 0;              // of tiles of columns: whether some score is kept; where the score leaves some out
  Id m_batch = 0, m_head = 0;  // of keys; the batch has 64 bits
};

/// Forms of the kernel, one for each pass: from the parameters on.
void emit_attention_forward(Emitter& emitter, const AttentionProblem& problem, const AttentionSchedule& schedule,
                            const DeviceFamily& family);
void emit_attention_backward(Emitter& emitter, const AttentionProblem& problem, const AttentionSchedule& schedule,
                             const DeviceFamily& family);

}  // namespace kiln::level_zero
