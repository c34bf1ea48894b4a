#include "backends/reference/body_runner.h"

namespace kiln {

BodyRunner::BodyRunner(const KernelSpec& spec, const Body& body, std::span<void* const> buffers)
    : m_spec(spec), m_body(body), m_buffers(buffers), m_values(body.exprs.size()) {}

void BodyRunner::evaluate(std::span<const ExprId> order, std::span<const int64_t> point) {
  for (const ExprId id : order) m_values[id] = evaluate_node(m_body.exprs[id], point);
}

void BodyRunner::store(const Store& store, std::span<const int64_t> point) {
  const Access& access = m_body.accesses[store.access];
  const int64_t element = address(access, point);
  if (element < 0) return;
  const DType dtype = m_spec.buffers[access.buffer].dtype;
  void* buffer = m_buffers[access.buffer];
  Number value = m_values[store.value];
  if (store.mode == StoreMode::add) {
    value = apply(ScalarOp::add, dtype, load_number(dtype, buffer, element), value, {});
  }
  store_number(dtype, buffer, element, value);
}

void BodyRunner::set_reduced(size_t reduction, Number value) {
  if (m_reduced.size() <= reduction) m_reduced.resize(reduction + 1);
  m_reduced[reduction] = value;
}

int64_t BodyRunner::address(const Access& access, std::span<const int64_t> point) {
  int64_t element = plain_address(access, point);
  for (const IndirectTerm& term : access.indirect) {
    const int64_t index = m_values[term.index].integer;
    if (index < 0 || index >= term.bound) {
      m_index_out_of_range = true;
      return -1;
    }
    element += index * term.stride;
  }
  return element;
}

Number BodyRunner::evaluate_node(const ScalarNode& node, std::span<const int64_t> point) {
  const auto operand = [&](size_t i) { return node.operands[i] == k_no_expr ? Number{} : m_values[node.operands[i]]; };
  switch (node.op) {
    case ScalarOp::constant:
      return {node.immediate, node.immediate_int};
    case ScalarOp::index:
      return {0, point[node.slot]};
    case ScalarOp::reduced:
      return m_reduced[node.slot];
    case ScalarOp::accumulator:
      return m_accumulator;
    case ScalarOp::load: {
      if (node.operands[0] != k_no_expr && operand(0).integer == 0) return {};
      const Access& access = m_body.accesses[node.slot];
      const int64_t element = address(access, point);
      return element < 0 ? Number{} : load_number(node.dtype, m_buffers[access.buffer], element);
    }
    case ScalarOp::cast:
      return cast_number(operand(0), m_body.exprs[node.operands[0]].dtype, node.dtype);
    default:
      break;
  }
  const size_t typed = node.op == ScalarOp::select ? 1 : 0;
  return apply(node.op, m_body.exprs[node.operands[typed]].dtype, operand(0), operand(1), operand(2));
}

int64_t plain_address(const Access& access, std::span<const int64_t> point) {
  int64_t element = access.offset;
  for (size_t d = 0; d < point.size(); ++d) element += access.strides[d] * point[d];
  return element;
}

bool next_point(std::span<int64_t> point, std::span<const int64_t> extents) {
  for (size_t d = point.size(); d-- > 0;) {
    if (++point[d] < extents[d]) return true;
    point[d] = 0;
  }
  return false;
}

}  // namespace kiln
