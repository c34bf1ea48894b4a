/// From a matrix product and what follows it to one gemm kernel.
///
/// The epilogue is lowered as a loops body is, from the last stored value backwards; where the walk meets the product
/// it writes the accumulator and notes the index. That index then says which iteration dims are batch, m and n. The
/// operands are lowered over (batch, m, k) and (batch, k, n); what remains is usually one load each, with strides.
/// Cut dims must merge again, since a gemm has exactly these dims; but operands of a product of windows, as convolutions
/// are, stay in pieces where these have runs of neighbours. Batch dims that lie side by side become one, and a
/// batch that the right operand does not have becomes more rows: then [batch, seq, hidden] @ [hidden, n] is one
/// product.
#include <algorithm>

#include "frontend/fuse/iteration.h"
#include "frontend/fuse/kernels.h"
#include "frontend/ops/attributes.h"
#include "frontend/ops/op.h"

namespace kiln {

namespace {

class GemmLowering {
 public:
  GemmLowering(const FusionState& state, GroupId group, NodeId product, std::span<const ValueId> roots)
      : m_state(state), m_group(group), m_node(state.facts->graph->node(product)), m_roots(roots) {
    const std::vector<int64_t>& extents = state.facts->extents[m_node.results[0]];
    m_gemm.n = extents.back();
    m_gemm.m = extents[extents.size() - 2];
    m_gemm.k = state.facts->extents[m_node.operands[0]].back();
    if (m_node.operands.size() == 3) {
      const bool are_rows = extents.size() == 2;
      m_gemm.groups = {are_rows ? GemmGroups::Along::m : GemmGroups::Along::k, {}};
      m_gemm.batch = state.facts->extents[m_node.operands[2]];
      return;
    }
    if (has_attribute(m_node.attributes, "window")) m_gemm.window = integer_of(m_node.attributes, "window");
    for (size_t d = 0; d + 2 < extents.size(); ++d) {
      if (extents[d] > 1) m_gemm.batch.push_back(extents[d]);
    }
  }

  LoweringResult run() {
    if (!lower_operand(m_node.operands[0], m_gemm.m, m_gemm.k, m_gemm.a, m_gemm.a_value, m_gemm.a_pieces) ||
        !lower_operand(m_node.operands[1], m_gemm.k, m_gemm.n, m_gemm.b, m_gemm.b_value, m_gemm.b_pieces)) {
      return lowering_failed(m_failure);
    }
    if (m_gemm.groups && !lower_ends(m_node.operands[2])) return lowering_failed(m_failure);
    settle_dtype();
    if (!lower_epilogue()) return lowering_failed(m_failure);
    merge_batch();
    KernelSpec spec{buffer_specs(m_state, m_buffers), std::move(m_gemm)};
    if (const Status status = validate(spec); !status.ok()) return lowering_failed(k_none, status.message());
    return {{{std::move(spec), m_buffers.entries}}, std::nullopt};
  }

 private:
  bool fail(ValueId materialise, std::string why) {
    m_failure = {std::nullopt, std::nullopt, materialise, std::move(why)};
    return false;
  }

  bool lower_operand(ValueId operand, int64_t rows, int64_t columns, Body& body, ExprId& value, GemmPieces& pieces) {
    const std::vector<int64_t>& extents = m_state.facts->extents[operand];
    const std::vector<int64_t>& result = m_state.facts->extents[m_node.results[0]];
    std::vector<int64_t> logical = m_gemm.batch;
    logical.insert(logical.end(), {rows, columns});
    IterationSpace space(logical);
    for (int attempt = 0; attempt < k_most_cuts; ++attempt) {
      KernelBuffers buffers = m_buffers;
      BodyLowering lowering(m_state, m_group, buffers, space.extents());
      const Index position = space.index();
      Index index(extents.size());
      index[extents.size() - 2] = position[position.size() - 2];
      index[extents.size() - 1] = position[position.size() - 1];
      if (m_gemm.groups && extents.size() == 3) index[0] = position[0];
      for (size_t d = 0, batch = 0; d + 2 < result.size() && !m_gemm.groups; ++d) {
        if (result[d] == 1) continue;
        const size_t missing = result.size() - extents.size();
        if (d >= missing && extents[d - missing] != 1) index[d - missing] = position[batch];
        ++batch;
      }
      const bool is_empty = m_gemm.k == 0;
      value = is_empty ? lowering.constant(0, BodyLowering::compute_dtype(m_state.facts->dtype(operand)))
                       : lowering.emit(operand, index);
      if (value == k_no_expr) {
        if (lowering.failure().split && space.split(*lowering.failure().split)) continue;
        const ValueId culprit = lowering.failure().materialise;
        return fail(culprit == k_none ? operand : culprit, lowering.failure().why);
      }
      body = std::move(lowering.body());
      if (!settle_pieces(body, value, space, pieces)) {
        return fail(operand, "an operand has more dims than rows and columns");
      }
      m_buffers = std::move(buffers);
      return true;
    }
    return fail(operand, "an operand is cut too often");
  }

  /// Where groups end is loaded as it lies.
  bool lower_ends(ValueId ends) {
    IterationSpace space(m_gemm.batch);
    BodyLowering lowering(m_state, m_group, m_buffers, space.extents());
    const ExprId value = lowering.emit(ends, space.index());
    Body body = std::move(lowering.body());
    if (value == k_no_expr || body.exprs[value].op != ScalarOp::load || !merge_pieces(body, space)) {
      return fail(ends, "ends of groups that are no tensor");
    }
    m_gemm.groups->ends = body.accesses[body.exprs[value].slot];
    return true;
  }

  bool settle_pieces(Body& body, ExprId value, const IterationSpace& space, GemmPieces& pieces) {
    std::vector<std::vector<int64_t>> left = merge_what_can(body, space);
    std::vector<int64_t>&rows = left[left.size() - 2], &columns = left.back();
    for (size_t d = 0; d + 2 < left.size(); ++d) {
      if (left[d].size() > 1) return false;
    }
    if (rows.size() == 1 && columns.size() == 1) return true;
    const ScalarNode* load = load_behind_casts(body, value);
    if (load == nullptr || load->operands[0] != k_no_expr) return false;
    const Access& access = body.accesses[load->slot];
    const size_t last = access.strides.size() - 1, last_of_rows = last - columns.size();
    const auto is_run = [&](size_t d, int64_t extent) { return access.strides[d] == 1 && extent > 1; };
    const bool has_runs = is_run(last, columns.back()) || is_run(last_of_rows, rows.back());
    const bool is_of_windows = sees_windows(m_node.operands[0]) || sees_windows(m_node.operands[1]);
    const bool is_weight = &body == &m_gemm.b && lies_in_panels(access, rows, columns);
    if (!access.indirect.empty() || !has_runs || !(is_of_windows || is_weight)) return false;
    if (rows.size() > 1) pieces.rows = std::move(rows);
    if (columns.size() > 1) pieces.columns = std::move(columns);
    return true;
  }

  /// Whether the rows of a few columns lie side by side, as packed weights do; or small groups of rows, column by column.
  static bool lies_in_panels(const Access& access, const std::vector<int64_t>& rows,
                             const std::vector<int64_t>& columns) {
    const size_t last = access.strides.size() - 1;
    size_t row = last - columns.size();
    const int64_t group = access.strides[last];
    if (group != 1) {
      if (rows.size() < 2 || rows.back() != group || access.strides[row] != 1) return false;
      --row;
    }
    return columns.back() > 1 && access.strides[row] == group * columns.back();
  }

  /// Whether the value is, behind other views, windows: laid out anew these would be larger than what they are of.
  bool sees_windows(ValueId value) const {
    while (m_state.is_inline(value, m_group)) {
      const Node& node = m_state.facts->producer(value);
      if (node.op->kind != OpKind::view) return false;
      if (node.op->name == "window") return true;
      value = node.operands[0];
    }
    return false;
  }

  // What was widened exactly from the same narrow kind on both sides, loads or weights made of bytes, is multiplied in
  // that: the sums are the same.
  void settle_dtype() {
    const auto is_of_bytes = [](const Body& body, const ScalarNode& node) {
      return node.op == ScalarOp::cast && size_of(body.exprs[node.operands[0]].dtype) == 1;
    };
    const auto narrow_value = [&](const Body& body, ExprId value) -> ExprId {
      const ScalarNode& node = body.exprs[value];
      if (node.op != ScalarOp::cast) return k_no_expr;
      const ScalarNode& operand = body.exprs[node.operands[0]];
      const bool is_widened = operand.dtype != DType::boolean && size_of(operand.dtype) < size_of(node.dtype) &&
                              accumulator_of(operand.dtype) == accumulator_of(node.dtype);
      const bool is_held = operand.op == ScalarOp::load || is_of_bytes(body, operand);
      return is_widened && is_held ? node.operands[0] : k_no_expr;
    };
    const ExprId a = narrow_value(m_gemm.a, m_gemm.a_value), b = narrow_value(m_gemm.b, m_gemm.b_value);
    if (a != k_no_expr && b != k_no_expr && m_gemm.a.exprs[a].dtype == m_gemm.b.exprs[b].dtype) {
      m_gemm.a.exprs.pop_back();
      m_gemm.b.exprs.pop_back();
      m_gemm.a_value = a;
      m_gemm.b_value = b;
    }
    m_gemm.dtype = m_gemm.a.exprs[m_gemm.a_value].dtype;
  }

  bool lower_epilogue() {
    IterationSpace space(m_state.facts->extents[m_roots.front()]);
    for (int attempt = 0; attempt < k_most_cuts; ++attempt) {
      KernelBuffers buffers = m_buffers;
      BodyLowering lowering(m_state, m_group, buffers, space.extents());
      lowering.set_accumulator(m_node.results[0]);
      m_gemm.stores.clear();
      for (const ValueId root : m_roots) {
        const std::optional<Index> index = root == m_roots.front() ? space.index() : lowering.emitted_index(root);
        if (!index) return fail(k_none, "a stored value is not on the way to the last one");
        const std::vector<Store> stores = lowering.store(root, *index);
        if (stores.empty()) break;
        m_gemm.stores.insert(m_gemm.stores.end(), stores.begin(), stores.end());
      }
      if (lowering.failed()) {
        if (lowering.failure().split && space.split(*lowering.failure().split)) continue;
        m_failure = lowering.failure();
        return false;
      }
      if (!lowering.accumulator_index()) return fail(k_none, "the product is not used");
      m_gemm.epilogue = std::move(lowering.body());
      m_buffers = std::move(buffers);
      return order_epilogue(space.extents(), *lowering.accumulator_index());
    }
    return fail(k_none, "the epilogue is cut too often");
  }

  // Puts the iteration dims in the product's order and merges those that make up one of its dims.
  bool order_epilogue(const std::vector<int64_t>& extents, const Index& index) {
    const std::vector<int64_t>& result = m_state.facts->extents[m_node.results[0]];
    std::vector<uint32_t> order;
    std::vector<std::vector<int64_t>> logical;  // the pieces of batch…, m, n
    for (size_t d = 0; d < result.size(); ++d) {
      if (d + 2 < result.size() && result[d] == 1) continue;
      std::vector<std::pair<uint32_t, int64_t>> terms = index[d].terms;
      std::sort(terms.begin(), terms.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
      int64_t remaining = result[d];
      logical.emplace_back();
      for (const auto& [dim, coefficient] : terms) {
        if (dim >= extents.size() || coefficient * extents[dim] != remaining) {
          return fail(k_none, "the epilogue walks the product in another way");
        }
        remaining = coefficient;
        order.push_back(dim);
        logical.back().push_back(extents[dim]);
      }
      if (remaining != 1 || index[d].constant != 0) return fail(k_none, "the epilogue sees a part of the product");
    }
    std::vector<uint32_t> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    if (sorted.size() != extents.size() || std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      return fail(k_none, "the epilogue has more elements than the product");
    }
    permute_dims(m_gemm.epilogue, order);
    if (!merge_pieces(m_gemm.epilogue, IterationSpace::of_pieces(std::move(logical)))) {
      return fail(k_none, "the epilogue cuts the product's dims");
    }
    if (m_gemm.groups && (result.size() == 2 || result[0] == 1)) insert_dim(m_gemm.epilogue, 0);
    return true;
  }

  void merge_batch() {
    if (m_gemm.groups) return;
    std::vector<int64_t>& batch = m_gemm.batch;
    Body* const bodies[] = {&m_gemm.a, &m_gemm.b, &m_gemm.epilogue};
    for (size_t d = batch.size(); d-- > 1;) {
      if (!std::all_of(std::begin(bodies), std::end(bodies),
                       [&](const Body* body) { return can_merge(*body, d - 1, batch[d]); })) {
        continue;
      }
      for (Body* body : bodies) merge_dims(*body, d - 1);
      batch[d - 1] *= batch[d];
      batch.erase(batch.begin() + static_cast<ptrdiff_t>(d));
    }
    while (!batch.empty() && m_gemm.a_pieces.rows.empty()) {
      const size_t last = batch.size() - 1;
      if (!ignores_dim(m_gemm.b, last) || !can_merge(m_gemm.a, last, m_gemm.m) ||
          !can_merge(m_gemm.epilogue, last, m_gemm.m)) {
        break;
      }
      merge_dims(m_gemm.a, last);
      merge_dims(m_gemm.epilogue, last);
      remove_dim(m_gemm.b, last);
      m_gemm.m *= batch.back();
      batch.pop_back();
    }
  }

  const FusionState& m_state;
  GroupId m_group;
  const Node& m_node;
  std::span<const ValueId> m_roots;
  GemmSpec m_gemm;
  KernelBuffers m_buffers;
  LoweringFailure m_failure;
};

}  // namespace

LoweringResult lower_gemm(const FusionState& state, GroupId group, NodeId product, std::span<const ValueId> roots) {
  return GemmLowering(state, group, product, roots).run();
}

}  // namespace kiln
