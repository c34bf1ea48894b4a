/// Scatters: the result starts as the first operand, then rows of the source go where the indices say.
///
/// Two source elements may meet at one place, so the dims along which they can are reduced dims of one parallel point,
/// walked in order: sums are deterministic without atomics, and the last of several assignments wins as torch's does.
/// Everything else (columns) is parallel. slice_scatter with a step is one too, with places that need no data.
#include "frontend/fuse/iteration.h"
#include "frontend/fuse/kernels.h"
#include "frontend/ops/attributes.h"

namespace kiln {

namespace {

class ScatterLowering {
 public:
  ScatterLowering(const FusionState& state, GroupId group, NodeId node)
      : m_state(state),
        m_group(group),
        m_node(state.facts->graph->node(node)),
        m_result(m_node.results[0]),
        m_dim(static_cast<size_t>(integer_of(m_node.attributes, "dim"))),
        m_takes_rows(m_node.op->name == "index_add"),
        m_is_slice(m_node.op->name == "slice_scatter"),
        m_mode(m_is_slice || m_node.op->name == "scatter" ? StoreMode::assign : StoreMode::add) {}

  LoweringResult run() {
    LoweringResult result;
    if (!lower(result, m_node.operands[0], &ScatterLowering::initialise)) return lowering_failed(m_failure);
    if (is_finished_at_once()) return result;
    if (!lower(result, m_node.operands.back(), &ScatterLowering::scatter)) return lowering_failed(m_failure);
    return result;
  }

 private:
  using Emit = bool (ScatterLowering::*)(BodyLowering&, const Index&, LoopsSpec&);

  /// With nothing to scatter, what it starts as is the result.
  bool is_finished_at_once() const { return m_state.facts->elements[m_node.operands.back()] == 0; }

  // One kernel over the elements of `iterated`.
  bool lower(LoweringResult& result, ValueId iterated, Emit emit) {
    IterationSpace space(m_state.facts->extents[iterated]);
    for (int attempt = 0; attempt < k_most_cuts; ++attempt) {
      m_buffers = {};
      LoopsSpec loops;
      BodyLowering lowering(m_state, m_group, m_buffers, space.extents());
      if (!(this->*emit)(lowering, space.index(), loops)) {
        if (lowering.failure().split && space.split(*lowering.failure().split)) continue;
        m_failure = lowering.failure();
        return false;
      }
      loops.body = std::move(lowering.body());
      loops.extents = space.extents();
      arrange(loops, space, emit == &ScatterLowering::scatter);
      KernelSpec spec{buffer_specs(m_state, m_buffers), std::move(loops)};
      if (const Status status = validate(spec); !status.ok()) {
        m_failure = {std::nullopt, std::nullopt, k_none, status.message()};
        return false;
      }
      result.kernels.push_back({std::move(spec), m_buffers.entries});
      return true;
    }
    m_failure.why = "the iteration space is cut too often";
    return false;
  }

  bool initialise(BodyLowering& lowering, const Index& index, LoopsSpec& loops) {
    const ExprId value = lowering.emit(m_node.operands[0], index);
    if (value == k_no_expr) return false;
    loops.stages = {
        {false, {}, {lowering.store_expr(value, m_result, 0, index, StoreMode::assign, BufferRole::output)}}};
    for (KernelBuffers::Entry& entry : m_buffers.entries) {
      if (entry.role == BufferRole::output && !is_finished_at_once()) entry.holds = m_node.operands[0];
    }
    return true;
  }

  bool scatter(BodyLowering& lowering, const Index& index, LoopsSpec& loops) {
    const ExprId value = lowering.emit(m_node.operands.back(), index);
    const std::optional<Index> to = m_is_slice ? sliced(index) : chosen(lowering, index);
    if (value == k_no_expr || !to) return false;
    loops.stages = {{false, {}, {lowering.store_expr(value, m_result, 0, *to, m_mode, BufferRole::inout)}}};
    for (KernelBuffers::Entry& entry : m_buffers.entries) {
      if (entry.role == BufferRole::inout) entry.initial = m_node.operands[0];
    }
    return true;
  }

  Index sliced(Index index) const {
    index[m_dim] =
        index[m_dim] * integer_of(m_node.attributes, "step") + extent_of(m_node.attributes, "start").constant();
    return index;
  }

  // Where the indices send the source's element.
  std::optional<Index> chosen(BodyLowering& lowering, const Index& index) const {
    const auto dim = static_cast<ptrdiff_t>(m_dim);
    const auto rank = static_cast<ptrdiff_t>(m_state.facts->extents[m_node.operands[1]].size());
    const Index at = m_takes_rows ? Index(index.begin() + dim, index.begin() + dim + rank) : index;
    const ExprId target = lowering.cast(lowering.emit(m_node.operands[1], at), DType::i64);
    if (target == k_no_expr) return std::nullopt;
    Index to(index.begin(), index.begin() + dim);
    to.push_back(lowering.indirect(target, m_state.facts->extents[m_result][m_dim]));
    to.insert(to.end(), index.begin() + dim + (m_takes_rows ? rank : 1), index.end());
    return to;
  }

  bool is_row_dim(size_t d) const {
    if (m_is_slice) return false;
    const size_t rank = m_takes_rows ? m_state.facts->extents[m_node.operands[1]].size() : 1;
    return d >= m_dim && d < m_dim + rank;
  }

  void arrange(LoopsSpec& loops, const IterationSpace& space, bool has_rows) const {
    std::vector<uint32_t> order;
    for (const bool rows : {false, true}) {
      uint32_t d = 0;
      for (size_t logical = 0; logical < space.pieces().size(); ++logical) {
        for (size_t piece = 0; piece < space.pieces()[logical].size(); ++piece, ++d) {
          if ((has_rows && is_row_dim(logical)) == rows) order.push_back(d);
        }
      }
      if (!rows) loops.parallel_rank = static_cast<uint32_t>(order.size());
    }
    permute_dims(loops.body, order);
    std::vector<int64_t> extents;
    for (const uint32_t d : order) extents.push_back(loops.extents[d]);
    loops.extents = std::move(extents);
  }

  const FusionState& m_state;
  GroupId m_group;
  const Node& m_node;
  ValueId m_result;
  size_t m_dim;
  bool m_takes_rows;
  bool m_is_slice;
  StoreMode m_mode;
  KernelBuffers m_buffers;
  LoweringFailure m_failure;
};

}  // namespace

LoweringResult lower_scatter(const FusionState& state, GroupId group, NodeId node) {
  return ScatterLowering(state, group, node).run();
}

}  // namespace kiln
