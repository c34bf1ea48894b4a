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
  /// Demanded elements of a value, all when there are few.
  std::vector<int64_t> demanded(ValueId value) const;
  std::vector<Element> elements(ValueId value, std::span<const int64_t> indices);
  /// Whether `got` may be what a right program gives for an element that it seems to miss: many more roundings are
  /// tried, so that ties are found out.
  bool is_possible(ValueId value, int64_t index, double got, const Element& element);
  const Status& status() const { return m_exact->status(); }

 private:
  explicit Reference(const Graph& graph, const Memory& inputs);
  Status add_rounded(uint64_t seed);

  const Graph* m_graph;
  std::vector<std::span<const std::byte>> m_inputs;
  /// The graph with every use of a floating value rounded for itself: two kernels may see one value in two precisions.
  std::unique_ptr<Graph> m_by_use;
  std::vector<ValueId> m_values;  // of m_by_use, for each of the graph
  std::optional<ElementEvaluator> m_exact;
  std::vector<ElementEvaluator> m_rounded;
};

/// Of each value: whether most of what is looked at of it is finite and determined, so that comparing it says something.
std::vector<bool> sound_values(const Graph& graph, const Memory& inputs);

}  // namespace kiln::fuzz
