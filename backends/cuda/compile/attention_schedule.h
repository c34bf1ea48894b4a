#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "backends/attention_problem.h"
#include "backends/backend.h"
#include "backends/cuda/targets.h"

namespace kiln::cuda {

/// Whether gradients of keys and of values are more than the registers of one warp's rows hold.
bool is_deep(const AttentionProblem& problem);
bool uses_tensor_cores(const AttentionProblem& problem);

/// A tensor whose rows are columns of scores: its dims are batch, heads, rows, depth.
struct AttentionColumns {
  const Access* access;
  std::array<int64_t, 4> extents;
};
/// Keys and values, and of a gradient queries, gradients of results, and results.
std::vector<AttentionColumns> columns_of(const AttentionProblem& problem);

/// A block's tile of rows, and the tiles of columns that it passes over. Forward: queries, and keys, all or one of several
/// parts of them. Backward: keys and queries for the gradients of keys and values, and the other way around for that of
/// queries.
struct AttentionSchedule {
  static constexpr uint32_t k_version = 2;
  enum class Kind : uint8_t { simple = 0, mma = 1, wgmma = 2 };

  Kind kind = Kind::simple;
  uint32_t rows = 64, columns = 64;
  uint32_t stages = 1;  // tiles of columns in shared memory
  uint32_t parts = 1;   // of keys, each with blocks of its own, whose results another kernel combines

  bool operator==(const AttentionSchedule&) const = default;
  static auto fields(auto& s) { return std::tie(s.rows, s.columns, s.stages, s.parts); }

  uint32_t threads() const;
  /// Whether gradients of keys and of values have blocks of their own.
  bool splits(const AttentionProblem& problem) const { return kind != Kind::simple && is_deep(problem); }
  uint64_t blocks(const AttentionProblem& problem) const;
  uint64_t shared_bytes(const AttentionProblem& problem) const;
  /// Of the launch's workspace, for what blocks leave of their parts: numbers of the accumulator's type. 0 of one part.
  uint64_t workspace_elements(const AttentionProblem& problem) const;
  /// Those of a row in a part: the highest score, the sum of weights, the weighted sum of values.
  static int64_t partial_width(const AttentionProblem& problem) { return problem.forward->value_dim + 2; }
  /// "mma rows 64 columns 64 stages 2", and " parts 8" where there are several.
  std::string describe() const;
};

/// A way to make attention's code: a row in the lists of attention_schedule.cc, one for each pass, best first. Its name is
/// in schedules' bytes; the kind follows from it.
struct AttentionImplementation {
  /// A schedule with keys in one part, and how much of a multiprocessor's peak a block's inner loop reaches: an estimate, to
  /// be replaced by measuring.
  struct Row {
    AttentionSchedule schedule;
    double efficiency;
  };
  std::string_view name;
  const std::string_view* text = nullptr;  // the template
  bool takes_any_address = false;          // of buffers
  bool (*claims)(const AttentionProblem&, const CudaTarget&) = nullptr;
  /// Whether the template makes such tiles.
  bool (*makes)(const AttentionProblem&, const AttentionSchedule&) = nullptr;
  uint64_t (*shared_bytes)(const AttentionProblem&, const AttentionSchedule&) = nullptr;
  std::span<const Row> rows;
};
/// Null where the pass has no such kind.
const AttentionImplementation* implementation_of(const AttentionProblem& problem, AttentionSchedule::Kind kind);

/// Best first, by waves of blocks over the machine's multiprocessors: each row, and where its blocks are too few for these and
/// it is sooner done so, the row with keys in parts. Empty where none fits the target's shared memory.
std::vector<AttentionSchedule> ranked_schedules(const AttentionProblem& problem, const CudaTarget& target,
                                                const Machine& machine);

/// The best of those that take any address. Some must be ranked.
AttentionSchedule schedule_for_any_address(const AttentionProblem& problem, const CudaTarget& target);

Schedule to_schedule(const AttentionSchedule& schedule);
/// Errors: invalid_argument for bytes that are none, or a schedule that no kernel of the problem can be made with.
Expected<AttentionSchedule> attention_schedule_of(std::span<const uint8_t> bytes, const AttentionProblem& problem,
                                                  const CudaTarget& target);

}  // namespace kiln::cuda
