#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/expected.h"
#include "frontend/ops/element_evaluator.h"
#include "verdict/doubts.h"

namespace kiln {

/// The f64 values of a graph over given inputs; how far its outputs move in other arithmetic; and what they are where each
/// step keeps to its dtype's range. What is seldom asked for is made when it is.
///
/// Ownership: refers to the inputs, which must outlive it. Threading: one thread at a time.
class FragmentReference {
 public:
  static Expected<std::unique_ptr<FragmentReference>> create(Graph graph,
                                                             std::vector<std::span<const std::byte>> inputs);

  const Graph& graph() const { return *m_graph; }
  ElementEvaluator& exact() { return *m_exact; }
  const Status& status() const { return m_exact->status(); }

  /// How far an output's element may be off for the sake of what it is computed from, composites taken apart, each use
  /// for itself: many times its largest change when inputs and all that is computed on the way are a rounding off at random,
  /// of the dtypes that they are computed in; and twice that when what is f16 or bf16 on the way is rounded to it and one
  /// more off. Infinite where that decides whether it is finite. Integers that f64 does not hold are unknown: any of theirs.
  /// What is known of it is the answer once `is_enough` says so of that.
  double uncertainty(size_t output, int64_t flat, const IsEnough& is_enough);
  double uncertainty(size_t output, int64_t flat) {
    return uncertainty(output, flat, [](double) { return false; });
  }
  /// Some of these elements of an output are about to be asked for: what one takes is computed for all of them at once.
  void ask_together(size_t output, std::span<const int64_t> flats);
  /// The output's element where intermediate values are kept in range.
  double within_range(size_t output, int64_t flat);

 private:
  FragmentReference() = default;
  Status take_apart();
  Status perturb();
  double change(ElementEvaluator& perturbed, size_t output, int64_t flat);

  std::vector<std::span<const std::byte>> m_inputs;
  std::unique_ptr<const Graph> m_graph, m_apart;  // as given, and with its uses apart
  std::optional<ElementEvaluator> m_exact, m_within_range;
  std::vector<ElementEvaluator> m_perturbed, m_rounded;  // in the dtypes of computing, and of halves
  std::vector<std::vector<int64_t>> m_together;          // by output
};

}  // namespace kiln
