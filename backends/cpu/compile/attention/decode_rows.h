#pragma once

#include <map>
#include <utility>

#include "backends/cpu/compile/attention/decode.h"
#include "backends/cpu/compile/attention/emission.h"

namespace kiln::cpu {

/// What both passes of attention of few queries share. A task is one head of the keys, with all queries of all heads that share
/// it: its *rows*. Lanes run along the depth in products, so keys and values are read as they lie, and along the keys in what
/// becomes of scores.
class DecodeRows {
 public:
  explicit DecodeRows(AttentionEmission& emission) : m_a(emission), e(emission.e), m_attention(emission.attention) {}

  /// As an emission has them: lanes are never queries here.
  static AttentionSchedule blocks(const DecodeSchedule& schedule) {
    return {.query_vectors = 1, .key_block = schedule.key_block, .tile_rows = 1};
  }
  /// `body` for each task; the head of its place is the first of those that share the keys.
  LaunchShape emit_tasks(const std::function<void(const AttentionPlace& place, llvm::Value* kv_head)>& body);
  /// Causality leaves no row any of the keys from here on.
  llvm::Value* seen_keys();
  /// `body` for blocks of the keys [begin, end).
  using KeyBlock = std::function<void(llvm::Value* first, llvm::Value* count)>;
  void for_key_blocks(llvm::Value* begin, llvm::Value* end, const KeyBlock& body);
  /// `body` for blocks of the keys that some row sees; `left_out` for those whose scores are all -inf by the score expression,
  /// where it tells so before the product.
  void for_seen_blocks(const AttentionPlace& place, const KeyBlock& body, const KeyBlock& left_out);
  struct Row {
    llvm::Value* number = nullptr;
    AttentionPlace place;  // of its head
    llvm::Value* query = nullptr;
  };
  Row row(const AttentionPlace& place, llvm::Value* number);
  void for_each_row(const AttentionPlace& place, const std::function<void(const Row& row)>& body);

  int64_t row_count() const { return m_a.group() * m_attention.q_len; }
  int64_t score_bytes() const { return int64_t{m_a.schedule.key_block} * 4; }
  llvm::Value* row_of(llvm::Value* base, llvm::Value* row, int64_t bytes) {
    return e.advance(base, e.ir.CreateMul(row, e.index(bytes)));
  }
  /// block[row, :] = scale * tensor[head and query of the row, :], and the way back.
  void load(const Access& access, int64_t columns, const AttentionPlace& place, llvm::Value* block, double scale);
  void store(const Access& access, int64_t columns, const AttentionPlace& place, llvm::Value* block, double scale);

  /// Keys or values: how they are read.
  struct Keys {
    llvm::Value* base = nullptr;
    int64_t bytes = 0;  // from one to the next
  };
  /// Where they lie, when they are whole vectors of f32, else from a block of the workspace.
  Keys keys_of(const Access& access, int64_t columns, llvm::Value* tensor, llvm::Value* first, llvm::Value* count,
               llvm::Value* scratch);
  /// products[key] = row · keys[key, :]. Whole vectors are written, from `count` on of the last key.
  void multiply(llvm::Value* row, const Keys& keys, int64_t columns, llvm::Value* products, llvm::Value* count);
  /// out[row, :] += Σ_key weights[row, key] * keys[key, :]
  void sum_over_keys(llvm::Value* weights, const Keys& keys, int64_t columns, llvm::Value* out, llvm::Value* count);
  /// out[key, :] = Σ_row weights[row, key] * rows[row, :]; written up to the next multiple of lanes.
  void sum_over_rows(llvm::Value* weights, llvm::Value* rows, int64_t columns, llvm::Value* out, llvm::Value* count);
  /// Inside a function: each vector of a query's scores of `count` keys from `first` on, by the score expression and the mask;
  /// lanes without a key are -inf. `key` counts from `first`. Without `scores`, products are zeros.
  using ScoreBody = std::function<Values(llvm::Value* key, llvm::Value* score, const Values& carried)>;
  Values for_each_score(const AttentionPlace& place, llvm::Value* query, llvm::Value* first, llvm::Value* count,
                        llvm::Value* scores, const Values& initial, const ScoreBody& body);

 private:
  llvm::Function* some_score_counts();
  void for_each_head(const AttentionPlace& place,
                     const std::function<void(llvm::Value* head, llvm::Value* first_row)>& body);
  llvm::Function* product_function(int64_t row_bytes, int64_t key_bytes);
  llvm::Value* sums_of_keys(llvm::Function* function, int64_t row_bytes, int64_t key_bytes, llvm::Value* key,
                            llvm::Value* last);
  void weighted_sum(TileProduct tile, llvm::Value* weights, llvm::Value* rows, llvm::Value* out, llvm::Value* count,
                    llvm::Value* steps);

  AttentionEmission& m_a;
  Emitter& e;
  const AttentionSpec& m_attention;
  std::map<std::pair<int64_t, int64_t>, llvm::Function*> m_products;
  llvm::Function* m_some_score_counts = nullptr;
};

}  // namespace kiln::cpu
