#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/expected.h"
#include "frontend/ir/graph.h"
#include "frontend/ops/element_evaluator.h"

namespace kiln::fuzz {

using Memory = std::vector<std::vector<std::byte>>;

/// What each output of a graph must hold, and how far off a right program may be: by rounding, as far as the graph's own
/// arithmetic determines the element.
class Reference {
 public:
  /// Refers to graph and memory.
  static Expected<Reference> create(const Graph& graph, const Memory& inputs);

  struct Element {
    double expected = 0;
    double allowed = 0;
    bool is_determined = true;  // else nothing can be said of it
  };
  /// Demanded elements of an output, all when there are few.
  std::vector<int64_t> demanded(size_t output) const;
  std::vector<Element> elements(size_t output, std::span<const int64_t> indices);
  /// Whether `got` may be what a right program gives for an element that it seems to miss: many more roundings are
  /// tried, of composites taken apart and of each use, so that ties are found out.
  bool is_possible(size_t output, int64_t index, double got, const Element& element);
  const Status& status() const { return m_exact->status(); }

 private:
  Reference(const Graph& graph, const Memory& inputs) : m_graph(&graph), m_inputs(inputs.begin(), inputs.end()) {}
  Status round(const Graph& graph, uint64_t times, std::vector<ElementEvaluator>& rounded) const;
  Status take_apart();
  /// Whether some rounding gives `got`: two numbers that a comparison finds equal in few.
  bool becomes(size_t output, int64_t index, double got) const;

  const Graph* m_graph;
  std::vector<std::span<const std::byte>> m_inputs;
  /// The graph taken apart, its uses apart too: two kernels may see one value in two precisions.
  std::unique_ptr<Graph> m_apart;
  std::optional<ElementEvaluator> m_exact;
  std::vector<ElementEvaluator> m_rounded;        // of the graph
  std::vector<ElementEvaluator> m_rounded_apart;  // of m_apart, when first asked for
};

/// Of each value: whether most of what is looked at of it is finite and determined, so that comparing it says something.
std::vector<bool> sound_values(const Graph& graph, const Memory& inputs);

}  // namespace kiln::fuzz
