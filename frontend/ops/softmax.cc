// Softmax and its logarithm over one dim, shifted by the row's maximum so that nothing overflows.

#include <cmath>

#include "frontend/infer/builder.h"
#include "frontend/ops/element_evaluator.h"
#include "frontend/ops/families.h"
#include "frontend/ops/index_math.h"
#include "frontend/ops/rules.h"
#include "frontend/ops/scalar_math.h"

namespace kiln {

namespace {

using Values = std::span<const ValueId>;
using Gradients = Expected<std::vector<ValueId>>;

Expected<Types> infer_row_wise(const OpContext& context) {
  KILN_RETURN_IF_ERROR(dim_attribute(context, "dim", context.operands[0]->rank()).status());
  return infer_same_floating(context);
}

std::vector<int64_t> row_dims(const Node& node) { return {integer_of(node.attributes, "dim")}; }

/// The elements of the row along `dim` that element `index` lies in.
class Row {
 public:
  Row(const ElementEvaluator& e, const Node& node, int64_t index) {
    const auto dim = static_cast<size_t>(integer_of(node.attributes, "dim"));
    m_count = e.extents(node.operands[0])[dim];
    m_stride = e.strides(node.operands[0])[dim];
    const Split split = split_at(index, m_count, m_stride);
    m_base = split.outer * m_count * m_stride + split.rest;
  }
  int64_t count() const { return m_count; }
  int64_t at(int64_t i) const { return m_base + i * m_stride; }
  int64_t id() const { return m_base; }

 private:
  int64_t m_count, m_stride, m_base;
};

struct Statistics {
  double largest, sum;
};

Statistics statistics(ElementEvaluator& e, const Graph& graph, NodeId id, int64_t index) {
  const Node& node = graph.node(id);
  const Row row(e, node, index);
  const auto numbers = e.scratch(id, row.id(), 2, [&](std::span<double> out) {
    out[0] = neutral_of(Combiner::maximum, DType::f64);
    for (int64_t i = 0; i < row.count(); ++i) {
      out[0] = combine(Combiner::maximum, out[0], e.at(node.operands[0], row.at(i)));
    }
    for (int64_t i = 0; i < row.count(); ++i) out[1] += std::exp(e.at(node.operands[0], row.at(i)) - out[0]);
  });
  return {numbers[0], numbers[1]};
}

double softmax_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Statistics row = statistics(e, graph, id, index);
  return std::exp(e.at(graph.node(id).operands[0], index) - row.largest) / row.sum;
}

double log_softmax_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Statistics row = statistics(e, graph, id, index);
  return e.at(graph.node(id).operands[0], index) - row.largest - std::log(row.sum);
}

/// out * (grad - Σ grad * out)
double softmax_backward_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const Row row(e, node, index);
  const double dot = e.scratch(id, row.id(), 1, [&](std::span<double> total) {
    for (int64_t i = 0; i < row.count(); ++i) {
      total[0] += e.at(node.operands[0], row.at(i)) * e.at(node.operands[1], row.at(i));
    }
  })[0];
  return e.at(node.operands[1], index) * (e.at(node.operands[0], index) - dot);
}

/// grad - exp(out) * Σ grad
double log_softmax_backward_element(ElementEvaluator& e, const Graph& graph, NodeId id, uint32_t, int64_t index) {
  const Node& node = graph.node(id);
  const Row row(e, node, index);
  const double sum = e.scratch(id, row.id(), 1, [&](std::span<double> total) {
    for (int64_t i = 0; i < row.count(); ++i) total[0] += e.at(node.operands[0], row.at(i));
  })[0];
  return e.at(node.operands[0], index) - std::exp(e.at(node.operands[1], index)) * sum;
}

Gradients decompose_softmax(GraphBuilder& b, const Node& node, Values in) {
  const ValueId x = b.widen(in[0]);
  const ValueId weights = b.exp(b.sub(x, b.amax(x, row_dims(node), true)));
  return b.finish({b.cast(b.div(weights, b.sum(weights, row_dims(node), true)), b.dtype(in[0]))});
}

Gradients decompose_log_softmax(GraphBuilder& b, const Node& node, Values in) {
  const ValueId x = b.widen(in[0]);
  const ValueId shifted = b.sub(x, b.amax(x, row_dims(node), true));
  const ValueId sum = b.sum(b.exp(shifted), row_dims(node), true);
  return b.finish({b.cast(b.sub(shifted, b.log(sum)), b.dtype(in[0]))});
}

Gradients decompose_softmax_backward(GraphBuilder& b, const Node& node, Values in) {
  const ValueId grad = b.widen(in[0]), out = b.widen(in[1]);
  const ValueId dot = b.sum(b.mul(grad, out), row_dims(node), true);
  return b.finish({b.cast(b.mul(out, b.sub(grad, dot)), b.dtype(in[0]))});
}

Gradients decompose_log_softmax_backward(GraphBuilder& b, const Node& node, Values in) {
  const ValueId grad = b.widen(in[0]), out = b.widen(in[1]);
  const ValueId sum = b.sum(grad, row_dims(node), true);
  return b.finish({b.cast(b.sub(grad, b.mul(b.exp(out), sum)), b.dtype(in[0]))});
}

Gradients softmax_gradient(GraphBuilder& b, const Node& node, Values, Values out, Values g) {
  return b.finish({b.op("softmax_backward", {g[0], out[0]}, node.attributes)});
}

Gradients log_softmax_gradient(GraphBuilder& b, const Node& node, Values, Values out, Values g) {
  return b.finish({b.op("log_softmax_backward", {g[0], out[0]}, node.attributes)});
}

}  // namespace

std::span<const OpDef> softmax_ops() {
  const auto row = [](std::string_view name, std::vector<OperandDef> operands, decltype(OpDef::element) element,
                      decltype(OpDef::decompose) decompose, decltype(OpDef::gradient) gradient = nullptr) {
    return OpDef{.name = name,
                 .kind = OpKind::composite,
                 .operands = std::move(operands),
                 .attributes = {required("dim", AttributeType::integer)},
                 .infer = infer_row_wise,
                 .element = element,
                 .decompose = decompose,
                 .gradient = gradient};
  };
  static const std::vector<OpDef> rows = {
      row("softmax", {{"x"}}, softmax_element, decompose_softmax, softmax_gradient),
      row("log_softmax", {{"x"}}, log_softmax_element, decompose_log_softmax, log_softmax_gradient),
      row("softmax_backward", {{"grad"}, {"out"}}, softmax_backward_element, decompose_softmax_backward),
      row("log_softmax_backward", {{"grad"}, {"out"}}, log_softmax_backward_element, decompose_log_softmax_backward),
  };
  return rows;
}

}  // namespace kiln
