#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/expected.h"
#include "frontend/kernel/kernel_spec.h"
#include "frontend/kernel/overwrites.h"
#include "verdict/candidate_runner.h"
#include "verdict/demanded_blocks.h"
#include "verdict/doubts.h"
#include "verdict/sample_data.h"

namespace kiln {

class OutputCheck;

/// What the reference gives of demanded elements, block by block, row by row.
struct ExpectedBlocks {
  DemandedBlocks demanded;
  std::vector<std::vector<double>> values;
};

/// What an output buffer of a kernel must hold: element `flat` (row-major over `dims`) lies at the sum of
/// index times stride, in elements. `expected` is the f64 reference.
struct OutputReference {
  uint32_t buffer = 0;
  std::vector<int64_t> dims, strides;
  int64_t reduction_length = 1;  // terms that are summed into one element, at most; for the tolerance
  std::function<double(int64_t flat)> expected;
  /// How far a right kernel may be off besides, since rounding errors of what is computed on the way come back (below);
  /// infinite where that decides whether it is finite; what is known of it once that is enough. Asked only of elements that
  /// miss the tolerance. May be empty.
  std::function<double(int64_t flat, const IsEnough& is_enough)> uncertainty;
  /// What decides which elements are looked at; without dims those of the output, with a small tile.
  Demand demand = {};
  /// `expected` of many elements at once, where that is cheaper. May be empty.
  std::function<void(std::span<const int64_t> flat, std::span<double> out)> many = {};
  /// `expected` of the kernel's own steps, each value kept in the range of its accumulator: exp(100) is infinite in f32. Asked
  /// only in harsh situations, of elements that miss the tolerance. May be empty.
  std::function<double(int64_t flat)> within_range = {};
  /// What foresee() computed.
  std::shared_ptr<const ExpectedBlocks> foreseen = {};
};

/// Computes what a verdict in an ordinary situation will compare this output with, as long as it demands the same: before there
/// is a candidate.
void foresee(OutputReference& output);

/// How an accepted candidate did.
struct Verdict {
  Status status;         // ok, or what is wrong: buffer, element, got, expected
  double max_error = 0;  // largest error found, as a share of the tolerance
  uint64_t checked = 0;  // elements compared with the reference
  uint64_t tiles = 0,
           tiles_met = 0;  // of all outputs: pieces of the schedule, and those of which an element was compared
  double seconds = 0;      // of the run
  bool reported_bad_index = false;
};

/// Allowed |got - expected|: (8 eps(dtype) + 4 sqrt(reduction_length) eps(accumulator)) * (|expected| + scale), where scale
/// is the root mean square of the output, and the accumulator of f16 and bf16 is f32. 8 eps covers the vector math (≤ 4 ULP,
/// twice); the square root is the growth of rounding errors of random sign (Higham, "Accuracy and Stability of Numerical
/// Algorithms", §2.8).
double tolerance(DType dtype, int64_t reduction_length, double expected, double scale);

/// What the reference's value is once stored: infinity where the dtype ends, for which no kernel can be blamed.
double beyond_range(DType dtype, double value);

/// Whether a number at most `allowed` off `exact` is `got` once stored. Infinity and NaN must be where `exact` has them.
bool is_within(DType dtype, double got, double exact, double allowed);

/// Runs `image` on random inputs and poisoned outputs and compares what it left with the reference: red zones
/// intact, inputs unchanged, every element written, demanded elements within tolerance (NaN and Inf equal).
/// The candidate runs in the runner's process, never here.
class CandidateTrial {
 public:
  /// Lays out and fills the buffers of `spec`. All must outlive the trial; a runner has one trial at a time.
  static Expected<CandidateTrial> prepare(const KernelSpec& spec, CandidateRunner& runner,
                                          Situation situation = Situation::plain, IndexWindow window = {});

  /// What the candidates read and write, one span per buffer of the spec.
  const std::vector<std::span<uint8_t>>& buffers() const { return m_buffers; }
  /// What buffer `index`, which is not an output only, holds before a candidate runs.
  std::span<const std::byte> initial(size_t index) const { return std::as_bytes(initial_bytes(index)); }

  /// Whether some element of an input addresses memory wrongly: what judge_refusal is for.
  bool has_bad_index() const { return m_data.has_bad_index(); }
  /// Whether the inputs would be others in another window.
  bool has_window() const { return m_data.has_window(); }

  /// What launches of the candidates carry (Image): none unless this was called.
  void set_extents(std::vector<int64_t> extents) { m_extents = std::move(extents); }

  /// May be called for one candidate after another. With a `task_step` above 1 only one of so many tasks is run (where the
  /// host's grid is cut into tasks), and what was left as it was is not compared.
  Verdict judge(const Image& image, const std::vector<OutputReference>& outputs, uint32_t timeout_ms,
                uint32_t task_step = 1);
  /// Whether outputs become what they are when they are made over inputs instead, as overwrites() of the spec allows: bit
  /// for bit what judge() has found right. Asked after it, of the same candidate and all its tasks. OK where the runner
  /// shares no arguments.
  Status judge_in_place(const Image& image, uint32_t timeout_ms);
  /// Where an index is bad: the candidate stays inside its buffers, and reports it when `must_report`.
  Status judge_refusal(const Image& image, bool must_report, uint32_t timeout_ms);

 private:
  CandidateTrial(const KernelSpec& spec, CandidateRunner& runner, Situation situation, IndexWindow window);
  void set_outputs(Poison which);
  void set_updated();
  void set_demanded(const std::vector<OutputCheck>& checks);
  /// The run's status, what became of its red zones and inputs.
  Expected<CandidateRun> run(const Image& image, uint32_t timeout_ms, uint32_t task_step);
  Status check_written(const Image& image, const std::vector<OutputReference>& outputs, uint32_t timeout_ms);
  Status run_over(std::span<const Overwrite> pairs, const Image& image, uint32_t timeout_ms);
  std::vector<uint64_t> written_checksums() const;
  std::span<const uint8_t> initial_bytes(size_t index) const;
  Status restore_inputs();
  Status check_output(const OutputCheck& check, bool is_whole, Verdict& verdict) const;
  /// Whether the buffer is the candidate's to read and yet could be written: a source's memory cannot.
  bool is_filled_input(uint32_t buffer) const;
  bool is_untouched(uint32_t buffer, int64_t place) const;

  const KernelSpec* m_spec;
  CandidateRunner* m_runner;
  Situation m_situation;
  std::vector<int64_t> m_extents;
  SampleData m_data;
  std::vector<std::span<uint8_t>> m_buffers;
  std::vector<uint64_t> m_input_checksums;      // of the inputs that were filled, which a candidate could change
  std::vector<SampleMapping> m_initial_floats;  // of buffers with a source that are read and written
  std::vector<std::vector<uint8_t>> m_initial;  // of others
};

}  // namespace kiln
