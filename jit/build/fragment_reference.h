#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/expected.h"
#include "frontend/ops/element_evaluator.h"

namespace kiln {

/// The f64 values of a fragment over what was made before; how far they move when inputs are rounded differently; and
/// what they are where each step keeps to its dtype's range.
class FragmentReference {
 public:
  static Expected<std::unique_ptr<FragmentReference>> create(Graph graph,
                                                             std::vector<std::span<const std::byte>> inputs) {
    auto reference = std::make_unique<FragmentReference>(std::move(graph), std::move(inputs));
    KILN_ASSIGN_OR_RETURN(reference->m_exact, reference->look({}));
    return reference;
  }
  FragmentReference(Graph graph, std::vector<std::span<const std::byte>> inputs)
      : m_graph(std::move(graph)), m_inputs(std::move(inputs)) {}

  const Status& status() const { return m_exact->status(); }
  double at(ValueId value, int64_t flat) { return m_exact->at(value, flat); }
  double sensitivity(ValueId value, int64_t flat) {
    for (uint64_t seed = m_perturbed.size() + 1; seed <= k_perturbations; ++seed) {
      auto perturbed = look({.rounding_seed = seed});
      if (!perturbed.ok()) break;  // one was created from the same graph before
      m_perturbed.push_back(std::move(*perturbed));
    }
    double largest = 0;
    for (const auto& perturbed : m_perturbed) {
      const double change = std::abs(perturbed->at(value, flat) - at(value, flat));
      if (change > largest) largest = change;
    }
    return largest;
  }
  double within_range(ValueId value, int64_t flat) {
    if (m_within_range == nullptr) {
      auto evaluator = look({.within_range = true});
      if (!evaluator.ok()) return at(value, flat);
      m_within_range = std::move(*evaluator);
    }
    return m_within_range->at(value, flat);
  }

 private:
  static constexpr uint64_t k_perturbations = 2;
  Expected<std::unique_ptr<ElementEvaluator>> look(ElementEvaluator::View view) const {
    KILN_ASSIGN_OR_RETURN(auto evaluator, ElementEvaluator::create(m_graph, m_inputs, view));
    return std::make_unique<ElementEvaluator>(std::move(evaluator));
  }

  const Graph m_graph;
  const std::vector<std::span<const std::byte>> m_inputs;
  std::unique_ptr<ElementEvaluator> m_exact, m_within_range;
  std::vector<std::unique_ptr<ElementEvaluator>> m_perturbed;  // made when first asked for
};

}  // namespace kiln
