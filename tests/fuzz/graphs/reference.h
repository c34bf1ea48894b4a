#pragma once

#include <cstddef>
#include <cstdint>
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
  const Status& status() const { return m_exact.status(); }

 private:
  Reference(ElementEvaluator exact, std::vector<ElementEvaluator> rounded, const Graph& graph)
      : m_exact(std::move(exact)), m_rounded(std::move(rounded)), m_graph(&graph) {}

  ElementEvaluator m_exact;
  std::vector<ElementEvaluator> m_rounded;
  const Graph* m_graph;
};

/// Of each value: whether most of what is looked at of it is finite and determined, so that comparing it says something.
std::vector<bool> sound_values(const Graph& graph, const Memory& inputs);

}  // namespace kiln::fuzz
