#pragma once

#include <deque>
#include <map>
#include <span>
#include <vector>

#include "frontend/ops/element_evaluator.h"

namespace kiln {

/// Evaluates many elements of a value node by node: each node of the way computes all that is asked of it in one loop,
/// and once. Internal to frontend/ops: ElementEvaluator::many is the way in.
class BatchEvaluation {
 public:
  BatchEvaluation(ElementEvaluator& evaluator, const Graph& graph) : m_evaluator(evaluator), m_graph(graph) {}

  void evaluate(ValueId value, std::span<const int64_t> indices, std::span<double> out);

 private:
  using Elements = std::vector<double>;
  /// A list of indices: nodes that are asked for the same elements share it.
  using ListId = size_t;

  const Elements& at(ValueId value, ListId list);
  Elements compute(ValueId value, ListId list);
  Elements pointwise(const Node& node, ListId list);
  Elements held(ValueId value, ListId list, Elements elements) const;
  Elements one_by_one(ValueId value, const Node& node, ListId list);
  ListId broadcast(ValueId operand, ValueId result, ListId list);
  ListId behind_view(const Node& node, ValueId value, ListId list);

  ElementEvaluator& m_evaluator;
  const Graph& m_graph;
  std::deque<std::vector<int64_t>> m_lists;
  std::map<std::pair<ValueId, ListId>, Elements> m_known;
  std::map<std::tuple<ListId, std::vector<int64_t>, std::vector<int64_t>>, ListId> m_broadcast;  // list, from, to
  std::map<std::pair<ListId, ValueId>, ListId> m_behind_view;
};

}  // namespace kiln
