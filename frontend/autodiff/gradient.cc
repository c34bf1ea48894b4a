// Reverse mode over the graph as it stands: nodes are visited from last to first, each adding to its operands'
// gradients what its row's rule says. Only nodes between wrt and the outputs are visited. Gradients are summed back
// over what broadcasting repeated, here for all rows at once.

#include "frontend/autodiff/gradient.h"

#include <algorithm>

namespace kiln {

namespace {

class ReverseSweep {
 public:
  ReverseSweep(GraphBuilder& builder, std::span<const ValueId> wrt) : m_builder(builder) {
    grow();
    for (const ValueId value : wrt) m_depends[value] = true;
    mark_dependents(0, static_cast<NodeId>(builder.graph().nodes().size()));
  }

  /// Adds `gradient`, of the value's type or what that broadcasts to, to the value's.
  Status accumulate(ValueId value, ValueId gradient) {
    gradient = m_builder.sum_to(gradient, Shape(m_builder.shape(value)));
    if (m_gradients[value] != k_none) gradient = m_builder.add(m_gradients[value], gradient);
    grow();
    m_gradients[value] = gradient;
    return m_builder.status();
  }

  /// Nodes [first, last), which must be all that lie between what has a gradient and what wants one.
  Status sweep(NodeId first, NodeId last) {
    for (NodeId id = last; id-- > first;) {
      const Node node = m_builder.graph().node(id);  // a copy: the graph grows
      if (!wants_gradient(node)) continue;
      std::vector<ValueId> result_gradients;
      for (const ValueId result : node.results) result_gradients.push_back(m_gradients[result]);
      if (std::all_of(result_gradients.begin(), result_gradients.end(), [](ValueId g) { return g == k_none; }))
        continue;
      KILN_RETURN_IF_ERROR(visit(node, result_gradients));
    }
    return {};
  }

  ValueId gradient_of(ValueId value) const { return m_gradients[value]; }

 private:
  bool wants(ValueId value) const { return value != k_none && m_depends[value] && is_floating(m_builder.dtype(value)); }
  bool wants_gradient(const Node& node) const {
    return std::any_of(node.operands.begin(), node.operands.end(), [&](ValueId v) { return wants(v); });
  }

  Status visit(const Node& node, const std::vector<ValueId>& result_gradients) {
    if (node.op->gradient == nullptr) return take_apart(node, result_gradients);
    KILN_ASSIGN_OR_RETURN(const std::vector<ValueId> operand_gradients,
                          node.op->gradient(m_builder, node, node.operands, node.results, result_gradients));
    grow();
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (operand_gradients[i] == k_none || !wants(node.operands[i])) continue;
      KILN_RETURN_IF_ERROR(accumulate(node.operands[i], operand_gradients[i]));
    }
    return {};
  }

  /// Differentiates the decomposition instead: builds it, hands its results the node's gradients, sweeps over it.
  Status take_apart(const Node& node, const std::vector<ValueId>& result_gradients) {
    if (node.op->decompose == nullptr) {
      return error(StatusCode::unimplemented, "{}: has no gradient", node.op->name);
    }
    const auto first = static_cast<NodeId>(m_builder.graph().nodes().size());
    KILN_ASSIGN_OR_RETURN(const std::vector<ValueId> results, node.op->decompose(m_builder, node, node.operands));
    const auto last = static_cast<NodeId>(m_builder.graph().nodes().size());
    grow();
    mark_dependents(first, last);
    for (size_t r = 0; r < results.size(); ++r) {
      if (result_gradients[r] != k_none) KILN_RETURN_IF_ERROR(accumulate(results[r], result_gradients[r]));
    }
    return sweep(first, last);
  }

  void mark_dependents(NodeId first, NodeId last) {
    for (NodeId id = first; id < last; ++id) {
      const Node& node = m_builder.graph().node(id);
      const bool depends = std::any_of(node.operands.begin(), node.operands.end(),
                                       [&](ValueId operand) { return operand != k_none && m_depends[operand]; });
      for (const ValueId result : node.results) m_depends[result] = m_depends[result] || depends;
    }
  }

  void grow() {
    m_depends.resize(m_builder.graph().values().size(), false);
    m_gradients.resize(m_builder.graph().values().size(), k_none);
  }

  GraphBuilder& m_builder;
  std::vector<bool> m_depends;  // on wrt
  std::vector<ValueId> m_gradients;
};

}  // namespace

Expected<std::vector<ValueId>> gradients(GraphBuilder& builder, std::span<const ValueId> outputs,
                                         std::span<const ValueId> seeds, std::span<const ValueId> wrt) {
  assert(outputs.size() == seeds.size() && "one seed per output");
  KILN_RETURN_IF_ERROR(builder.status());
  for (const ValueId value : wrt) {
    if (is_floating(builder.dtype(value))) continue;
    return invalid_argument("gradient of value {}, which is {}: expected a floating dtype", value,
                            builder.type(value).to_string());
  }
  const auto last = static_cast<NodeId>(builder.graph().nodes().size());
  ReverseSweep reverse(builder, wrt);
  for (size_t i = 0; i < outputs.size(); ++i) KILN_RETURN_IF_ERROR(reverse.accumulate(outputs[i], seeds[i]));
  KILN_RETURN_IF_ERROR(reverse.sweep(0, last));
  std::vector<ValueId> results;
  for (const ValueId value : wrt) {
    const ValueId gradient = reverse.gradient_of(value);
    results.push_back(gradient != k_none ? gradient : builder.full(builder.shape(value), 0, builder.dtype(value)));
  }
  return builder.finish(std::move(results));
}

Expected<std::vector<ValueId>> gradients(GraphBuilder& builder, ValueId loss, std::span<const ValueId> wrt) {
  KILN_RETURN_IF_ERROR(builder.status());
  if (!builder.shape(loss).empty() || !is_floating(builder.dtype(loss))) {
    return invalid_argument("the loss is {}, expected a floating scalar", builder.type(loss).to_string());
  }
  const ValueId one = builder.constant(1, loss);
  return gradients(builder, std::span(&loss, 1), std::span(&one, 1), wrt);
}

}  // namespace kiln
