/// From values to expressions.
///
/// A kernel is made backwards: asked for a value at an index (affine in the iteration dims), its definition is written
/// out, asking for its operands at their indices, down to what lies in buffers. So fusion needs no rewriting: what is
/// computed here and what is loaded is only a question of where this walk stops (FusionState::is_inline).
///
/// Three things can stand in the way, and each is reported with its cure: a reshape that cuts an iteration dim (split
/// the dim and start over), a reduction that needs dims of its own (append them and start over), a value that must
/// lie in a buffer (give it a kernel).
#include "frontend/fuse/lowering.h"

#include <algorithm>
#include <cassert>

#include "frontend/fuse/copy_points.h"
#include "frontend/ops/attributes.h"
#include "frontend/ops/tensor.h"

namespace kiln {

namespace {

/// Whether a cast from `narrow` to `wide` and back gives every value again.
bool is_exact_widening(DType narrow, DType wide) {
  return is_floating(narrow) == is_floating(wide) && size_of(narrow) < size_of(wide);
}

// Beyond this a body neither compiles quickly nor keeps anything in registers.
constexpr size_t k_body_exprs = 512;

std::vector<int64_t> memo_key(ValueId value, const Index& index, ExprId predicate) {
  std::vector<int64_t> key{value, predicate};
  for (const Affine& affine : index) {
    key.push_back(affine.constant);
    key.push_back(static_cast<int64_t>(affine.terms.size()));
    for (const auto& [dim, coefficient] : affine.terms) {
      key.push_back(dim);
      key.push_back(coefficient);
    }
  }
  return key;
}

bool keeps_order(const Node& node) { return node.op->name == "reshape" || is_copy_point(node); }

}  // namespace

std::vector<int64_t> FusionState::strides_of(ValueId value) const {
  if (!homes[value].empty()) return homes[value].front().strides;
  return dense_strides(facts->extents[value]);
}

uint32_t KernelBuffers::slot(ValueId value, uint32_t home, BufferRole role) {
  for (uint32_t i = 0; i < entries.size(); ++i) {
    if (entries[i].value == value && entries[i].home == home && entries[i].role == role) return i;
  }
  entries.push_back({value, home, role, k_none, k_none});
  return static_cast<uint32_t>(entries.size() - 1);
}

BodyLowering::BodyLowering(const FusionState& state, GroupId group, KernelBuffers& buffers,
                           std::vector<int64_t> extents, ReductionScope* reductions)
    : m_state(state), m_group(group), m_buffers(buffers), m_dims{std::move(extents), {}}, m_reductions(reductions) {}

ExprId BodyLowering::fail(ValueId value, std::string why) {
  if (!m_failed) m_failure = {std::nullopt, std::nullopt, value, std::move(why)};
  m_failed = true;
  return k_no_expr;
}

ExprId BodyLowering::fail_split(DimSplit split) {
  if (!m_failed) m_failure = {split, std::nullopt, k_none, "a reshape cuts an iteration dim"};
  m_failed = true;
  return k_no_expr;
}

ExprId BodyLowering::add_node(ScalarNode node) {
  const auto found = std::find(m_body.exprs.begin(), m_body.exprs.end(), node);
  if (found != m_body.exprs.end()) return static_cast<ExprId>(found - m_body.exprs.begin());
  m_body.exprs.push_back(node);
  return static_cast<ExprId>(m_body.exprs.size() - 1);
}

ExprId BodyLowering::cast(ExprId expr, DType dtype) {
  if (expr == k_no_expr || m_body.exprs[expr].dtype == dtype) return expr;
  // A value that was only widened is not rounded: a product reads it as it lies in memory.
  const ScalarNode& node = m_body.exprs[expr];
  const bool is_back = node.op == ScalarOp::cast && m_body.exprs[node.operands[0]].dtype == dtype;
  if (is_back && is_exact_widening(dtype, node.dtype)) return node.operands[0];
  return add_node({ScalarOp::cast, dtype, {expr, k_no_expr, k_no_expr}});
}

ExprId BodyLowering::constant(double value, DType dtype) {
  ScalarNode node{ScalarOp::constant, dtype};
  if (is_floating(dtype)) {
    node.immediate = value;
  } else {
    node.immediate_int = static_cast<int64_t>(round_to(dtype, value));  // what the dtype holds of it
  }
  return add_node(node);
}

ExprId BodyLowering::index_expr(const Affine& affine) {
  ExprId sum = k_no_expr;
  const auto add = [&](ExprId term) {
    sum = sum == k_no_expr ? term : add_node({ScalarOp::add, DType::i64, {sum, term, k_no_expr}});
  };
  const auto integer = [&](int64_t value) {
    ScalarNode node{ScalarOp::constant, DType::i64};
    node.immediate_int = value;
    return add_node(node);
  };
  for (const auto& [dim, coefficient] : affine.terms) {
    ExprId term = dim >= DimTable::k_first_indirect
                      ? m_indirect[dim - DimTable::k_first_indirect]
                      : add_node({ScalarOp::index, DType::i64, {k_no_expr, k_no_expr, k_no_expr}, dim});
    if (coefficient != 1) {
      term = add_node({ScalarOp::mul, DType::i64, {term, integer(coefficient), k_no_expr}});
    }
    add(term);
  }
  if (affine.constant != 0 || sum == k_no_expr) add(integer(affine.constant));
  return sum;
}

Affine BodyLowering::indirect(ExprId index, int64_t bound) {
  for (size_t i = 0; i < m_indirect.size(); ++i) {
    if (m_indirect[i] == index && m_dims.indirect[i] == bound) {
      return Affine::of_dim(DimTable::k_first_indirect + static_cast<uint32_t>(i));
    }
  }
  m_indirect.push_back(index);
  m_dims.indirect.push_back(bound);
  return Affine::of_dim(DimTable::k_first_indirect + static_cast<uint32_t>(m_indirect.size() - 1));
}

uint32_t BodyLowering::add_access(uint32_t buffer, const Affine& address) {
  Access access{buffer, address.constant, std::vector<int64_t>(m_dims.iteration.size(), 0), {}};
  for (const auto& [dim, coefficient] : address.terms) {
    if (dim < DimTable::k_first_indirect) {
      access.strides[dim] = coefficient;
    } else {
      const size_t i = dim - DimTable::k_first_indirect;
      access.indirect.push_back({m_indirect[i], coefficient, m_dims.indirect[i]});
    }
  }
  const auto found = std::find(m_body.accesses.begin(), m_body.accesses.end(), access);
  if (found != m_body.accesses.end()) return static_cast<uint32_t>(found - m_body.accesses.begin());
  m_body.accesses.push_back(std::move(access));
  return static_cast<uint32_t>(m_body.accesses.size() - 1);
}

ExprId BodyLowering::load(ValueId value, const Affine& address, ExprId predicate) {
  const DType dtype = m_state.facts->dtype(value);
  const uint32_t access = add_access(m_buffers.slot(value, 0, BufferRole::input), address);
  const ExprId loaded = add_node({ScalarOp::load, dtype, {predicate, k_no_expr, k_no_expr}, access});
  return cast(loaded, compute_dtype(dtype));
}

bool BodyLowering::is_dense_leaf(ValueId value) const {
  if (value == m_accumulator || m_state.is_inline(value, m_group)) return false;
  const std::vector<int64_t>&extents = extents_of(value), strides = m_state.strides_of(value);
  const std::vector<int64_t> dense = dense_strides(extents);
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] > 1 && strides[d] != dense[d]) return false;
  }
  return true;
}

ExprId BodyLowering::emit(ValueId value, const Index& index, ExprId predicate) {
  if (m_failed) return k_no_expr;
  if (value == m_accumulator) {
    if (m_accumulator_index && *m_accumulator_index != index) return fail(value, "the product is used at two indices");
    m_accumulator_index = index;
    const DType accumulator = accumulator_of(m_state.facts->dtype(value));
    const ExprId leaf = add_node({ScalarOp::accumulator, accumulator});
    return as_loaded(cast(leaf, compute_dtype(m_state.facts->dtype(value))), value);
  }
  if (!m_state.is_inline(value, m_group)) {
    Affine address;
    const std::vector<int64_t> strides = m_state.strides_of(value);
    for (size_t d = 0; d < index.size(); ++d) address = address + index[d] * strides[d];
    return load(value, address, predicate);
  }
  std::vector<int64_t> key = memo_key(value, index, predicate);
  if (const auto found = m_emitted.find(key); found != m_emitted.end()) return found->second;
  ExprId expr = emit_inline(value, index, predicate);
  if (expr == k_no_expr) return k_no_expr;
  expr = as_loaded(expr, value);
  if (m_body.exprs.size() > k_body_exprs) return fail(k_none, "the kernel's body grows too large");
  m_emitted.emplace(std::move(key), expr);
  if (predicate == k_no_expr) m_emitted_at[value].push_back(index);
  return expr;
}

bool BodyLowering::is_read_elsewhere(ValueId value) const {
  if (m_state.facts->is_stored[value] || m_state.is_pinned[value]) return true;
  return std::ranges::any_of(m_state.facts->users[value], [&](NodeId user) {
    if (!m_state.is_virtual[user]) return m_state.group_of[user] != m_group;
    const std::vector<ValueId>& results = m_state.facts->graph->node(user).results;
    return std::ranges::any_of(results, [&](ValueId result) { return is_read_elsewhere(result); });
  });
}

ExprId BodyLowering::as_loaded(ExprId expr, ValueId value) {
  const DType dtype = m_state.facts->dtype(value);
  return is_half(dtype) && is_read_elsewhere(value) ? cast(cast(expr, dtype), compute_dtype(dtype)) : expr;
}

ExprId BodyLowering::emit_inline(ValueId value, const Index& index, ExprId predicate) {
  const Node& node = m_state.facts->producer(value);
  switch (node.op->kind) {
    case OpKind::pointwise:
      return emit_pointwise(value, index, predicate);
    case OpKind::view:
      return emit_view(value, index, predicate);
    case OpKind::creation:
      return emit_creation(value, index);
    case OpKind::reduction:
      return emit_reduction(value, index, predicate);
    case OpKind::indexing:
      return emit_indexing(value, index, predicate);
    default:
      return fail(value, std::string(node.op->name) + " has no expression");
  }
}

ExprId BodyLowering::emit_pointwise(ValueId value, const Index& index, ExprId predicate) {
  const Node& node = m_state.facts->producer(value);
  const DType dtype = m_state.facts->dtype(value);
  std::array<ExprId, 3> operands{k_no_expr, k_no_expr, k_no_expr};
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const std::vector<int64_t>& extents = extents_of(node.operands[i]);
    Index operand_index(extents.size());
    const size_t missing = index.size() - extents.size();
    for (size_t d = 0; d < extents.size(); ++d) {
      if (extents[d] != 1) operand_index[d] = index[missing + d];
    }
    operands[i] = emit(node.operands[i], operand_index, predicate);
    if (operands[i] == k_no_expr) return k_no_expr;
  }
  if (node.op->scalar == ScalarOp::cast) {
    // Rounds as asked, even where the arithmetic around it is wider.
    return cast(cast(operands[0], dtype), compute_dtype(dtype));
  }
  return add_node({node.op->scalar, compute_dtype(dtype), operands});
}

ExprId BodyLowering::emit_creation(ValueId value, const Index& index) {
  const Node& node = m_state.facts->producer(value);
  const DType dtype = compute_dtype(m_state.facts->dtype(value));
  if (node.op->name == "full") return constant(number_of(node.attributes, "value"), dtype);
  if (node.op->name == "extent") {
    return constant(static_cast<double>(extent_of(node.attributes, "value").constant()), dtype);
  }
  if (node.op->name != "iota") return fail(k_none, std::string(node.op->name) + " has no expression");
  const double start = number_of(node.attributes, "start"), step = number_of(node.attributes, "step");
  const Affine& at = index[static_cast<size_t>(integer_of(node.attributes, "dim"))];
  if (!is_floating(dtype)) {
    return cast(index_expr(at * static_cast<int64_t>(step) + static_cast<int64_t>(start)), dtype);
  }
  const ExprId steps = cast(index_expr(at), dtype);
  const ExprId scaled = add_node({ScalarOp::mul, dtype, {steps, constant(step, dtype), k_no_expr}});
  return add_node({ScalarOp::add, dtype, {scaled, constant(start, dtype), k_no_expr}});
}

ExprId BodyLowering::emit_view(ValueId value, const Index& index, ExprId predicate) {
  const Node& node = m_state.facts->producer(value);
  const ValueId operand = node.operands[0];
  const std::vector<int64_t>& extents = extents_of(operand);
  Index from(extents.size());
  if (node.op->name == "reshape") return emit_reshape(value, index, predicate);
  if (node.op->name == "permute") {
    const std::vector<int64_t>& dims = integers_of(node.attributes, "dims");
    for (size_t d = 0; d < dims.size(); ++d) from[static_cast<size_t>(dims[d])] = index[d];
  } else if (node.op->name == "expand") {
    const size_t missing = index.size() - extents.size();
    for (size_t d = 0; d < extents.size(); ++d) {
      if (extents[d] != 1) from[d] = index[missing + d];
    }
  } else if (node.op->name == "slice") {
    from = index;
    const auto dim = static_cast<size_t>(integer_of(node.attributes, "dim"));
    from[dim] = from[dim] * integer_of(node.attributes, "step") + extent_of(node.attributes, "start").constant();
  } else if (node.op->name == "flip") {
    from = index;
    for (const int64_t dim : integers_of(node.attributes, "dims")) {
      Affine& at = from[static_cast<size_t>(dim)];
      at = at * -1 + (extents[static_cast<size_t>(dim)] - 1);
    }
  } else if (node.op->name == "window") {
    const std::vector<int64_t>& stride = integers_of(node.attributes, "stride");
    const std::vector<int64_t>& dilation = integers_of(node.attributes, "dilation");
    const size_t rank = stride.size(), outer = extents.size() - rank;
    std::copy_n(index.begin(), outer, from.begin());
    for (size_t d = 0; d < rank; ++d) {
      from[outer + d] = index[outer + d] * dilation[d] + index[outer + rank + d] * stride[d];
    }
  } else {
    return fail(k_none, std::string(node.op->name) + " has no index map");
  }
  return emit(operand, from, predicate);
}

ExprId BodyLowering::emit_reshape(ValueId value, const Index& index, ExprId predicate) {
  Affine flat = flatten(index, extents_of(value));
  ValueId operand = m_state.facts->producer(value).operands[0];
  // Reshapes of reshapes need no cut in between. What was met last can be laid out anew.
  ValueId last = value;
  while (operand != m_accumulator && m_state.is_inline(operand, m_group) &&
         keeps_order(m_state.facts->producer(operand))) {
    last = operand;
    operand = m_state.facts->producer(operand).operands[0];
  }
  if (is_dense_leaf(operand)) return load(operand, flat, predicate);
  Unflattened result = unflatten(std::move(flat), extents_of(operand), m_dims);
  if (result.index) return emit(operand, *result.index, predicate);
  if (result.split) return fail_split(*result.split);
  return fail(last, "a reshape cuts across an index map");
}

Store BodyLowering::store_expr(ExprId expr, ValueId value, uint32_t home, const Index& index, StoreMode mode,
                               BufferRole role) {
  const std::vector<int64_t> strides =
      m_state.homes[value].empty() ? dense_strides(extents_of(value)) : m_state.homes[value][home].strides;
  Affine address;
  for (size_t d = 0; d < index.size(); ++d) address = address + index[d] * strides[d];
  const uint32_t access = add_access(m_buffers.slot(value, home, role), address);
  return {cast(expr, m_state.facts->dtype(value)), access, mode};
}

std::vector<Store> BodyLowering::store(ValueId value, const Index& index) {
  std::vector<Store> stores;
  const ExprId expr = emit(value, index);
  if (expr == k_no_expr) return stores;
  const size_t homes = std::max<size_t>(1, m_state.homes[value].size());
  for (uint32_t home = 0; home < homes; ++home) {
    stores.push_back(store_expr(expr, value, home, index, StoreMode::assign, BufferRole::output));
  }
  return stores;
}

std::optional<Index> BodyLowering::emitted_index(ValueId value) const {
  if (value == m_accumulator) return m_accumulator_index;
  const auto found = m_emitted_at.find(value);
  if (found == m_emitted_at.end()) return std::nullopt;
  for (const Index& index : found->second) {
    if (is_bijection(index, extents_of(value), m_dims)) return index;
  }
  return std::nullopt;
}

}  // namespace kiln
