#pragma once

#include <limits>
#include <memory>
#include <numbers>
#include <vector>

#include "backends/cpu/compile/attention/numbers.h"
#include "backends/cpu/compile/attention/rows.h"
#include "backends/cpu/compile/attention/schedule.h"
#include "backends/cpu/compile/attention/tiles.h"
#include "backends/cpu/compile/emit/body_emitter.h"
#include "backends/cpu/compile/emit/kernel_emission.h"
#include "base/ceil_div.h"

namespace kiln::cpu {

inline constexpr double k_log2_e = std::numbers::log2e, k_ln_2 = std::numbers::ln2;
inline constexpr double k_infinity = std::numeric_limits<double>::infinity();

/// Where a function of attention stands. Values of the function being written.
struct AttentionPlace {
  llvm::Value* buffers = nullptr;
  llvm::Value* status = nullptr;
  llvm::Value* batch = nullptr;
  llvm::Value* head = nullptr;     // of the queries
  llvm::Value* extents = nullptr;  // what the launch carries
};

/// What forward and backward share. "Block" is a block of queries: lanes of every score run along its queries.
class AttentionEmission {
 public:
  /// `numbers`: those that the launch carries.
  AttentionEmission(Emitter& emitter, const KernelSpec& spec, const AttentionSpec& attention,
                    const AttentionSchedule& schedule, AttentionStep step, AttentionNumbers numbers = {})
      : e(emitter),
        scalars(emitter),
        products(emitter),
        rows(emitter, scalars),
        spec(spec),
        attention(attention),
        schedule(schedule),
        pairs(step != AttentionStep::element),
        tiles(step == AttentionStep::tile),
        m_numbers(std::move(numbers)) {
    m_numbers.score.launch = &m_numbers.launch;
  }

  Emitter& e;
  ScalarEmitter scalars;
  TileProducts products;
  RowMover rows;
  const KernelSpec& spec;
  const AttentionSpec& attention;
  const AttentionSchedule& schedule;
  const bool pairs;  // a step of a product multiplies two neighbours, in bf16
  const bool tiles;  // steps, by registers of AMX: operands are padded to them

  int64_t vectors() const { return schedule.query_vectors; }
  int64_t vector_bytes() const { return e.lanes() * 4; }
  int64_t block() const { return vectors() * e.lanes(); }  // queries
  int64_t block_bytes() const { return block() * 4; }
  int64_t group() const { return attention.heads / attention.kv_heads; }
  bool has_score() const { return attention.score_value != k_no_expr; }
  // Sizes, in the function that is being written.
  bool is_sized() const { return !m_numbers.launch.carried().empty(); }
  llvm::Value* batch() { return number(m_numbers.batch, attention.batch); }
  llvm::Value* heads() { return number(m_numbers.heads, attention.heads); }
  llvm::Value* kv_heads() { return e.ir.CreateUDiv(heads(), e.index(group())); }
  llvm::Value* q_len() { return number(m_numbers.q_len, attention.q_len); }
  llvm::Value* k_len() { return number(m_numbers.k_len, attention.k_len); }
  llvm::Value* causal_offset() { return number(m_numbers.causal_offset, attention.causal_offset); }
  llvm::Value* blocks() { return e.ceil_div(q_len(), e.index(block())); }

  llvm::Type* vector() const { return Emitter::vector(e.f32(), e.lanes()); }
  llvm::Value* real(double value) const { return Emitter::real(vector(), value); }
  /// How many steps so many elements take.
  int64_t steps(int64_t elements) const { return pairs ? ceil_div(elements, 2) : elements; }
  llvm::Value* steps(llvm::Value* elements) const;
  llvm::Value* load(llvm::Value* block_row, int64_t v) const;
  void store(llvm::Value* value, llvm::Value* block_row, int64_t v) const;
  /// All vectors of a row, as they are multiplied: pairs are neighbours in the row's first half.
  void store_row(const Values& values, llvm::Value* block_row) const;

  /// Writes the kernel's entry, which runs `body` for each of `count()` pieces: each is a task, but where the launch says how
  /// many there are, tasks share them evenly. The workspace is what was taken of it before.
  LaunchShape emit_tasks(const std::function<llvm::Value*()>& count,
                         const std::function<void(const Emitter::Entry& entry, llvm::Value* piece)>& body);
  /// Writes a function that knows the launch's numbers: its last parameter, beside `parameters`, is what the launch carries.
  /// What was being written goes on afterwards. Gives the function by `function` before `body` is written.
  void write_function(llvm::Function*& function, const std::string& name, llvm::Type* result,
                      std::vector<llvm::Type*> parameters, const std::function<void(llvm::Argument* argument)>& body);
  /// Bytes of the workspace, which `at` finds again.
  int64_t take(int64_t bytes);
  llvm::Value* at(int64_t offset) { return e.advance(m_workspace, offset); }

  /// What products of queries and keys are scaled by. Where there is no score expression, scores are exponents of 2.
  double score_scale() const { return attention.scale * (has_score() ? 1 : k_log2_e); }
  /// Such a score in natural units, and e to the power of a difference of two.
  llvm::Value* in_nats(llvm::Value* score) const;
  llvm::Value* weight_of(llvm::Value* difference) const;
  llvm::Value* larger(llvm::Value* a, llvm::Value* b) const;
  /// The probability of a score in natural units, by the logsumexp of its query, whatever score_scale() is.
  llvm::Value* probability(llvm::Value* score, llvm::Value* lse) const;
  /// A query's logsumexp; +inf of one that sees no key, so that all its probabilities are 0.
  llvm::Value* load_logsumexp(const AttentionPlace& place, llvm::Value* query);

  /// The address of (batch, head, 0, 0); `head` counts the access's own heads.
  llvm::Value* base(const Access& access, const AttentionPlace& place, llvm::Value* head);
  /// The address of (batch, head, first_query, 0) of a tensor with as many heads as the queries.
  llvm::Value* from_query(const Access& access, const AttentionPlace& place, llvm::Value* first_query);
  /// Bytes from one row (query or key) of a tensor to the next.
  llvm::Value* row_bytes(const Access& access) { return stride_bytes(access, 2); }
  RowsLayout layout(const Access& access, int64_t columns);
  DType dtype_of(const Access& access) const { return spec.buffers[access.buffer].dtype; }

  /// Vectors of a block of queries, one after the other for each step along `columns`.
  int64_t transposed_steps(int64_t columns) const { return rows.padded(steps(columns)); }
  /// Rows of the block, transposed into that by way of `scratch`, which is as large. Pairs are not scaled.
  void load_transposed(const Access& access, int64_t columns, const AttentionPlace& place, llvm::Value* first_query,
                       llvm::Value* scratch, llvm::Value* transposed, double scale);

  /// How keys (or values) are read, step by step: where they lie when they are multiplied so, else from a block of the
  /// workspace.
  struct Operand {
    llvm::Value* base = nullptr;
    llvm::Value* row_bytes = nullptr;
    int64_t column_bytes = 0;
  };
  bool widens(const Access& access) const { return dtype_of(access) != DType::f32; }
  /// Of a block of keys by rows, steps along the columns: bytes of the workspace, 0 where they are read where they lie.
  int64_t row_scratch_bytes(const Access& access, int64_t columns) const;
  /// Keys [first, first + count), in `scratch` when need be.
  Operand key_rows(const Access& access, int64_t columns, llvm::Value* tensor, llvm::Value* first, llvm::Value* count,
                   llvm::Value* scratch);
  /// The same where steps run along the keys.
  int64_t column_scratch_bytes(const Access& access, int64_t columns) const;
  Operand key_columns(const Access& access, int64_t columns, llvm::Value* tensor, llvm::Value* first,
                      llvm::Value* count, llvm::Value* scratch);

  /// Calls `body` for the blocks of keys that some query of the block sees: (first key, count, whether some scores must be
  /// masked). Blocks whose scores are all -inf by the score expression are left out where it tells so before the product.
  using KeyBlock = std::function<void(llvm::Value* first, llvm::Value* count, bool masked)>;
  void for_key_blocks(const AttentionPlace& place, llvm::Value* first_query, const KeyBlock& body);
  /// scores[key, queries] = scale * keys · queries for `count` keys; `queries` transposed. Rows up to the next multiple of
  /// tile_rows are written; masked: no key from `count` on is read. `maximum` as TileProduct::maximum.
  void score_tiles(const Operand& keys, int64_t depth, llvm::Value* queries, llvm::Value* scores, llvm::Value* count,
                   bool masked, double scale = 1, llvm::Value* maximum = nullptr);
  /// out[d, queries] (+)= Σ_key keys[key, d] * weights[key, queries]; `keys` with steps along them.
  void weighted_sum(const Operand& keys, int64_t depth, llvm::Value* weights, llvm::Value* out, llvm::Value* count,
                    TileProduct::Start start, llvm::Value* factor = nullptr);
  llvm::Value* round_to_tile(llvm::Value* count);
  /// rows of a block that exist, from its first query on
  llvm::Value* valid_queries(llvm::Value* first_query);
  void fill(llvm::Value* at, int64_t bytes, double value) { fill(at, e.index(bytes), value); }
  void fill(llvm::Value* at, llvm::Value* bytes, double value);
  /// Evaluates the score expression with lanes along `lane_dim`; null where there is none.
  std::unique_ptr<BodyEmitter> score_body(const AttentionPlace& place, int lane_dim);

 private:
  /// The keys a block of queries looks at: [0, whole) without looking at each, [whole, end) one by one.
  struct KeyRange {
    llvm::Value* whole = nullptr;
    llvm::Value* end = nullptr;
  };
  KeyRange key_range(llvm::Value* first_query);
  llvm::Function* some_score_counts();
  Values key_limits(llvm::Value* first_query);
  llvm::Value* offset_bytes(const Access& access);
  llvm::Value* stride_bytes(const Access& access, size_t dim);
  llvm::Value* bytes_of(const Access& access, LaunchNumbers::Place place, int64_t elements);
  /// A stride as a tile product's kind says it.
  static int64_t compiled_in(llvm::Value* bytes) {
    const auto* known = llvm::dyn_cast<llvm::ConstantInt>(bytes);
    return known != nullptr ? known->getSExtValue() : TileProduct::k_of_argument;
  }
  llvm::Value* number(LaunchNumbers::Place place, int64_t constant) {
    return m_numbers.launch.value(e, place, constant);
  }
  friend class ScoreLoop;

  AttentionNumbers m_numbers;

  llvm::Value* m_workspace = nullptr;
  int64_t m_workspace_bytes = 0;
  llvm::Function* m_some_score_counts = nullptr;
};

/// The score expression over keys of one query, inside one function.
class RowScore {
 public:
  /// Where there is a score expression.
  RowScore(AttentionEmission& emission, const AttentionPlace& place, llvm::Value* query);
  /// Of the keys from `key` on, in a loop that began after this was made; `mask`: lanes that exist.
  llvm::Value* apply(llvm::Value* key, llvm::Value* mask, llvm::Value* raw);

 private:
  AttentionEmission& m_a;
  std::unique_ptr<BodyEmitter> m_body;
  std::vector<std::unique_ptr<Scope>> m_scopes;
};

/// A loop over the rows of a tile of scores inside one function: applies the score expression and the mask.
class ScoreLoop {
 public:
  /// Scores are multiplied by `scale` as they are read.
  ScoreLoop(AttentionEmission& emission, const AttentionPlace& place, llvm::Value* first_query, double scale = 1);
  /// body(v, row, score of vector v, carried) for each vector of each row; keys start at first_key.
  using RowBody = std::function<void(llvm::Value* row, const Values& scores, Values& carried)>;
  Values run(llvm::Value* scores, llvm::Value* first_key, llvm::Value* count, bool masked, const Values& initial,
             const RowBody& body);
  /// Whether some score of keys that exist is not -inf at a product of zero. i1.
  llvm::Value* some_counts(llvm::Value* first_key, llvm::Value* count);

 private:
  llvm::Value* apply(int64_t v, llvm::Value* key, llvm::Value* raw);

  AttentionEmission& m_a;
  std::unique_ptr<BodyEmitter> m_body;
  std::vector<std::unique_ptr<Scope>> m_scopes;
  std::vector<Scope*> m_lanes;
  Values m_limits;
  llvm::Value* m_last_key;
  double m_scale;
};

}  // namespace kiln::cpu
