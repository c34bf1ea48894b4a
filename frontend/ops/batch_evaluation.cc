#include "frontend/ops/batch_evaluation.h"

#include <algorithm>

#include "frontend/ops/op.h"
#include "frontend/ops/scalar_math.h"

namespace kiln {

void BatchEvaluation::evaluate(ValueId value, std::span<const int64_t> indices, std::span<double> out) {
  m_lists.emplace_back(indices.begin(), indices.end());
  std::ranges::copy(at(value, m_lists.size() - 1), out.begin());
}

const BatchEvaluation::Elements& BatchEvaluation::at(ValueId value, ListId list) {
  if (const auto found = m_known.find({value, list}); found != m_known.end()) return found->second;
  Elements elements = compute(value, list);
  return m_known.emplace(std::pair(value, list), std::move(elements)).first->second;
}

BatchEvaluation::Elements BatchEvaluation::compute(ValueId value, ListId list) {
  const Value& described = m_graph.value(value);
  if (described.producer == k_none) {
    Elements elements;
    elements.reserve(m_lists[list].size());
    for (const int64_t index : m_lists[list]) elements.push_back(m_evaluator.at(value, index));
    return elements;
  }
  const Node& node = m_graph.node(described.producer);
  if (node.op->kind == OpKind::view) return at(node.operands[0], behind_view(node, value, list));
  if (node.op->kind == OpKind::pointwise) return held(value, list, pointwise(node, list));
  if (node.op->elements != nullptr && described.result_index == 0) {
    Elements elements(m_lists[list].size());
    node.op->elements(m_evaluator, m_graph, described.producer, m_lists[list], elements);
    return held(value, list, std::move(elements));
  }
  return one_by_one(value, node, list);
}

BatchEvaluation::Elements BatchEvaluation::held(ValueId value, ListId list, Elements elements) const {
  if (m_evaluator.holds_as_computed(value)) return elements;
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = m_evaluator.as_held(value, m_lists[list][i], elements[i]);
  return elements;
}

BatchEvaluation::Elements BatchEvaluation::pointwise(const Node& node, ListId list) {
  const size_t count = m_lists[list].size();
  const ValueId result = node.results[0];
  const Elements none(node.operands.size() < 3 ? count : 0);
  Elements repeated[3];
  const Elements* operands[3] = {&none, &none, &none};
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const ValueId operand = node.operands[i];
    if (m_evaluator.elements(operand) == 1) {
      repeated[i].assign(count, m_evaluator.at(operand, 0));
      operands[i] = &repeated[i];
    } else {
      operands[i] = &at(operand, broadcast(operand, result, list));
    }
  }
  const DType from = m_graph.type(node.operands.back()).dtype, to = m_graph.type(result).dtype;
  Elements elements(count);
  for (size_t i = 0; i < count; ++i) {
    elements[i] = apply_scalar(node.op->scalar, from, to, (*operands[0])[i], (*operands[1])[i], (*operands[2])[i]);
  }
  return elements;
}

/// Most ops without a loop of their own need the same elements of an operand of the same shape: these are computed first,
/// behind views too.
BatchEvaluation::Elements BatchEvaluation::one_by_one(ValueId value, const Node& node, ListId list) {
  for (ValueId operand : node.operands) {
    if (operand == k_none || m_evaluator.extents(operand) != m_evaluator.extents(value)) continue;
    ListId wanted = list;
    while (!m_evaluator.is_input(operand)) {
      const Node& producer = m_graph.node(m_graph.value(operand).producer);
      if (producer.op->kind != OpKind::view) break;
      wanted = behind_view(producer, operand, wanted);
      operand = producer.operands[0];
    }
    if (!m_evaluator.is_input(operand)) m_evaluator.remember(operand, m_lists[wanted], at(operand, wanted));
  }
  Elements elements;
  elements.reserve(m_lists[list].size());
  for (const int64_t index : m_lists[list]) elements.push_back(m_evaluator.at(value, index));
  return elements;
}

BatchEvaluation::ListId BatchEvaluation::broadcast(ValueId operand, ValueId result, ListId list) {
  const auto &from = m_evaluator.extents(operand), &to = m_evaluator.extents(result);
  if (from == to) return list;
  const auto [found, is_new] = m_broadcast.try_emplace({list, from, to}, m_lists.size());
  if (is_new) {
    std::vector<int64_t> indices;
    indices.reserve(m_lists[list].size());
    for (const int64_t index : m_lists[list]) indices.push_back(m_evaluator.broadcast_index(operand, result, index));
    m_lists.push_back(std::move(indices));
  }
  return found->second;
}

BatchEvaluation::ListId BatchEvaluation::behind_view(const Node& node, ValueId value, ListId list) {
  if (node.op->source == nullptr) return list;  // a renaming of dims: the flat index stays
  const auto [found, is_new] = m_behind_view.try_emplace({list, value}, m_lists.size());
  if (is_new) {
    std::vector<int64_t> indices;
    indices.reserve(m_lists[list].size());
    for (const int64_t index : m_lists[list]) indices.push_back(node.op->source(m_evaluator, node, index));
    m_lists.push_back(std::move(indices));
  }
  return found->second;
}

}  // namespace kiln
