/// Attention and its backward: operands are plain tensors with strides (whatever views led to them), the bias or what makes
/// the scores becomes the score's expression.
#include "frontend/fuse/iteration.h"
#include "frontend/fuse/kernels.h"
#include "frontend/fuse/score_path.h"
#include "frontend/ops/attributes.h"

namespace kiln {

namespace {

class AttentionLowering {
 public:
  AttentionLowering(const FusionState& state, GroupId group, NodeId node)
      : m_state(state), m_group(group), m_node(state.facts->graph->node(node)) {}

  LoweringResult run() {
    const bool is_backward = m_node.op->name == "attention_backward";
    const bool is_of_scores = m_node.op->name == "attention_of_scores";
    if (!is_backward && !is_of_scores && m_node.op->name != "attention") {
      return lowering_failed(k_none, std::string(m_node.op->name) + " has no kernel");
    }
    const std::span operands(m_node.operands);
    AttentionSpec attention;
    AttentionBackwardSpec backward;
    const bool lowered = is_backward    ? lower_backward(operands, backward)
                         : is_of_scores ? lower_of_scores(operands, attention)
                                        : lower_forward(operands, attention);
    if (!lowered) return lowering_failed(m_failure);
    KernelSpec spec{buffer_specs(m_state, m_buffers), {}};
    if (is_backward) {
      spec.kernel = std::move(backward);
    } else {
      spec.kernel = std::move(attention);
    }
    if (const Status status = validate(spec); !status.ok()) return lowering_failed(k_none, status.message());
    return {{{std::move(spec), m_buffers.entries}}, std::nullopt};
  }

 private:
  bool lower_forward(std::span<const ValueId> operands, AttentionSpec& attention) {
    if (!lower_inputs(operands[0], operands[1], operands[2], m_node.attributes, attention)) return false;
    attention.out = stored(m_node.results[0]);
    attention.lse = stored(m_node.results[1]);
    return operands.size() < 4 || operands[3] == k_none || lower_score(operands[3], k_none, attention);
  }

  bool lower_of_scores(std::span<const ValueId> operands, AttentionSpec& attention) {
    const Graph& graph = *m_state.facts->graph;
    const Node& scores = graph.node(score_path(graph, graph.value(m_node.results[0]).producer).front());
    if (!lower_inputs(scores.operands[0], scores.operands[1], operands[1], scores.attributes, attention)) return false;
    attention.out = stored(m_node.results[0]);
    attention.lse = stored(m_node.results[1]);
    return lower_score(operands[0], scores.results[0], attention);
  }

  bool lower_backward(std::span<const ValueId> operands, AttentionBackwardSpec& backward) {
    AttentionSpec& forward = backward.forward;
    if (!lower_inputs(operands[1], operands[2], operands[3], m_node.attributes, forward) ||
        !loaded(operands[0], backward.grad_out) || !loaded(operands[4], forward.out) ||
        !loaded(operands[5], forward.lse)) {
      return false;
    }
    backward.grad_q = stored(m_node.results[0]);
    backward.grad_k = stored(m_node.results[1]);
    backward.grad_v = stored(m_node.results[2]);
    return operands.size() < 7 || operands[6] == k_none || lower_score(operands[6], k_none, forward);
  }

  /// of_scores: the attributes of what multiplies q and k.
  bool lower_inputs(ValueId q, ValueId k, ValueId v, const Attributes& of_scores, AttentionSpec& attention) {
    const std::vector<int64_t>&queries = extents_of(q), keys = extents_of(k);
    attention.batch = queries[0], attention.heads = queries[1], attention.kv_heads = keys[1];
    attention.q_len = queries[2], attention.k_len = keys[2];
    attention.head_dim = queries[3], attention.value_dim = extents_of(v)[3];
    attention.dtype = m_state.facts->dtype(q);
    attention.scale = number_of(of_scores, "scale");
    attention.causal = boolean_of(m_node.attributes, "causal");
    attention.causal_offset = integer_of(m_node.attributes, "causal_offset");
    return loaded(q, attention.q) && loaded(k, attention.k) && loaded(v, attention.v);
  }

  // The operand as one load with strides over its own dims.
  bool loaded(ValueId operand, Access& access) {
    IterationSpace space(extents_of(operand));
    for (int attempt = 0; attempt < k_most_cuts; ++attempt) {
      KernelBuffers buffers = m_buffers;
      BodyLowering lowering(m_state, m_group, buffers, space.extents());
      ExprId value = lowering.emit(operand, space.index());
      if (value == k_no_expr) {
        if (lowering.failure().split && space.split(*lowering.failure().split)) continue;
        const ValueId culprit = lowering.failure().materialise;
        return fail(culprit == k_none ? operand : culprit, lowering.failure().why);
      }
      Body& body = lowering.body();
      if (body.exprs[value].op == ScalarOp::cast) value = body.exprs[value].operands[0];
      const ScalarNode node = body.exprs[value];
      if (node.op != ScalarOp::load || node.operands[0] != k_no_expr || !merge_pieces(body, space) ||
          !body.accesses[node.slot].indirect.empty()) {
        return fail(operand, "an operand of attention is not a tensor with strides");
      }
      access = body.accesses[node.slot];
      m_buffers = std::move(buffers);
      return true;
    }
    return fail(operand, "an operand is cut too often");
  }

  Access stored(ValueId result) {
    const uint32_t buffer = m_buffers.slot(result, 0, BufferRole::output);
    return {buffer, 0, ones_to_zero(m_state.strides_of(result), extents_of(result)), {}};
  }

  // A dim of extent 1 has stride 0, as merge_pieces writes it, so that equal kernels have equal specs.
  static std::vector<int64_t> ones_to_zero(std::vector<int64_t> strides, const std::vector<int64_t>& extents) {
    for (size_t d = 0; d < strides.size(); ++d) {
      if (extents[d] == 1) strides[d] = 0;
    }
    return strides;
  }

  /// The score expression: `value` itself, made of `products`, or without these the products and `value`, a bias.
  bool lower_score(ValueId value, ValueId products, AttentionSpec& attention) {
    IterationSpace space({attention.batch, attention.heads, attention.q_len, attention.k_len});
    const std::vector<int64_t>& extents = extents_of(value);
    for (int attempt = 0; attempt < k_most_cuts; ++attempt) {
      KernelBuffers buffers = m_buffers;
      BodyLowering lowering(m_state, m_group, buffers, space.extents());
      lowering.set_accumulator(products);
      const Index position = space.index();
      Index index(extents.size());
      for (size_t d = 0; d < extents.size(); ++d) {
        if (extents[d] != 1) index[d] = position[4 - extents.size() + d];
      }
      const ExprId emitted = lowering.emit(value, index);
      if (emitted == k_no_expr) {
        if (lowering.failure().split && space.split(*lowering.failure().split)) continue;
        const ValueId culprit = lowering.failure().materialise;
        return fail(culprit == k_none ? value : culprit, lowering.failure().why);
      }
      const DType dtype = accumulator_of(attention.dtype);
      attention.score_value = lowering.cast(emitted, dtype);
      if (products == k_none) {
        const ExprId score = lowering.add_node({ScalarOp::accumulator, dtype});
        attention.score_value = lowering.add_node({ScalarOp::add, dtype, {score, attention.score_value, k_no_expr}});
      }
      attention.score = std::move(lowering.body());
      if (!merge_pieces(attention.score, space)) return fail(value, "the score expression is cut");
      m_buffers = std::move(buffers);
      return true;
    }
    return fail(value, "the score expression is cut too often");
  }

  bool fail(ValueId materialise, std::string why) {
    m_failure = {std::nullopt, std::nullopt, materialise, std::move(why)};
    return false;
  }
  const std::vector<int64_t>& extents_of(ValueId value) const { return m_state.facts->extents[value]; }

  const FusionState& m_state;
  GroupId m_group;
  const Node& m_node;
  KernelBuffers m_buffers;
  LoweringFailure m_failure;
};

}  // namespace

LoweringResult lower_attention(const FusionState& state, GroupId group, NodeId node) {
  return AttentionLowering(state, group, node).run();
}

}  // namespace kiln
