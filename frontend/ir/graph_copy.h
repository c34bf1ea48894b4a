#pragma once

#include <vector>

#include "frontend/ir/graph.h"

namespace kiln {

/// A copy of a graph that grows node by node: symbols and inputs at once, the rest as asked. Names of results and guards stay
/// behind. Refers to the graph that it is made of.
class GraphCopy {
 public:
  explicit GraphCopy(const Graph& from);

  /// What there is of the copy.
  Graph& graph() { return m_graph; }
  const Graph& graph() const { return m_graph; }
  /// A value of the graph it is made of, in the copy; k_none where it is not there, and for k_none.
  ValueId operator[](ValueId value) const { return value == k_none ? k_none : m_values[value]; }
  void bind(ValueId value, ValueId here) { m_values[value] = here; }

  /// A node's operands, which are there.
  std::vector<ValueId> operands_of(const Node& node) const;
  void add(const Node& node) { add(node, operands_of(node), node.attributes); }
  /// The node, of other operands or with other attributes, for results of the same types.
  void add(const Node& node, std::vector<ValueId> operands, Attributes attributes);

  /// Has `values`, of the graph it is made of, be of the copy.
  void carry(std::vector<ValueId>& values) const;
  /// The copy, with all outputs, which are there, and their strides.
  Graph finish();

 private:
  const Graph& m_from;
  Graph m_graph;
  std::vector<ValueId> m_values;
};

}  // namespace kiln
