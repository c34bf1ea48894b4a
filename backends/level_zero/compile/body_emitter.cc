#include "backends/level_zero/compile/body_emitter.h"

#include "backends/backend.h"

namespace kiln::level_zero {
namespace {

using spv::Op;

constexpr uint32_t k_status_bytes = 4;

}  // namespace

KernelArguments begin_kernel(Emitter& emitter, const KernelSpec& spec, uint32_t group_size, uint32_t sub_group_size) {
  ScalarEmitter scalars(emitter);
  Ids pointees;
  for (const BufferSpec& buffer : spec.buffers) pointees.push_back(scalars.memory_type(buffer.dtype));
  pointees.push_back(emitter.integer(32));
  KernelArguments arguments{emitter.begin_kernel(k_kernel_name, pointees, group_size, sub_group_size)};
  arguments.status = arguments.buffers.back();
  arguments.buffers.pop_back();
  return arguments;
}

BodyEmitter::BodyEmitter(Emitter& emitter, const KernelSpec& spec, const Body& body, const KernelArguments& arguments,
                         const std::vector<bool>& changing)
    : e(emitter), m_spec(spec), m_body(body), m_arguments(arguments), m_scalars(emitter), m_dims(body, /*results=*/0) {
  for (const ScalarNode& node : body.exprs) {
    bool changes = false;
    const auto uses = [&](ExprId id) { changes = changes || (id != k_no_expr && m_changing[id]); };
    for (const ExprId operand : node.operands) uses(operand);
    if (node.op == ScalarOp::load) {
      const Access& access = body.accesses[node.slot];
      changes = changes || (!changing.empty() && changing[access.buffer]);
      for (const IndirectTerm& term : access.indirect) uses(term.index);
    }
    m_changing.push_back(changes);
  }
}

Scope BodyEmitter::root(size_t dims) const { return {Ids(dims, 0), Ids(m_body.exprs.size(), 0), {}, 0}; }

void BodyEmitter::prepare(Scope& scope, std::span<const ExprId> roots) {
  uint64_t open = 0;
  for (size_t d = 0; d < scope.index.size(); ++d) open |= scope.index[d] != 0 ? uint64_t{1} << d : 0;
  for (const ExprId id : needed_by(m_body, roots)) {
    if (!m_changing[id] && (m_dims.of(id) & ~open) == 0) evaluate(scope, id);
  }
}

Id BodyEmitter::evaluate(Scope& scope, ExprId id) {
  const ExprId root = id;
  for (const ExprId needed : needed_by(m_body, std::span(&root, 1))) {
    if (scope.values[needed] == 0) scope.values[needed] = compute(scope, needed);
  }
  return scope.values[id];
}

Id BodyEmitter::compute(Scope& scope, ExprId id) {
  const ScalarNode& node = m_body.exprs[id];
  const auto operand = [&](size_t i) { return node.operands[i] == k_no_expr ? 0 : scope.values[node.operands[i]]; };
  switch (node.op) {
    case ScalarOp::constant:
      return m_scalars.constant(node);
    case ScalarOp::index:
      return scope.index[node.slot];
    case ScalarOp::reduced:
      return scope.reduced[node.slot];
    case ScalarOp::accumulator:
      return scope.accumulator;
    case ScalarOp::load:
      return load(scope, node);
    case ScalarOp::cast:
      return m_scalars.cast(operand(0), m_body.exprs[node.operands[0]].dtype, node.dtype);
    default:
      break;
  }
  const size_t typed = node.op == ScalarOp::select ? 1 : 0;
  return m_scalars.apply(node.op, m_body.exprs[node.operands[typed]].dtype, operand(0), operand(1), operand(2));
}

// Memory.

BodyEmitter::Address BodyEmitter::address(Scope& scope, const Access& access) {
  Address result;
  const auto move = [&](Id index, int64_t stride) {
    const Id step = stride == 1 ? index : e.mul(index, e.index(stride));
    result.element = result.element == 0 ? step : e.add(result.element, step);
  };
  for (size_t d = 0; d < access.strides.size(); ++d) {
    if (access.strides[d] != 0) move(scope.index[d], access.strides[d]);
  }
  for (const IndirectTerm& term : access.indirect) {
    const Id index = scope.values[term.index];
    result.valid = e.both(result.valid, e.compare(Op::OpULessThan, index, e.index(term.bound)));
    move(index, term.stride);
  }
  if (result.element == 0) {
    result.element = e.index(access.offset);
  } else if (access.offset != 0) {
    result.element = e.add(result.element, e.index(access.offset));
  }
  return result;
}

/// Sets the status where the access is wanted and its index is not valid.
void BodyEmitter::report(Id valid, Id wanted) {
  if (valid == 0) return;
  const Id bad = e.both(e.opposite(valid), wanted);
  e.if_then(bad, [&] {
    const auto value = static_cast<int64_t>(LaunchStatus::index_out_of_range);
    e.store(m_arguments.status, e.constant(e.integer(32), value), k_status_bytes);
  });
}

Id BodyEmitter::load(Scope& scope, const ScalarNode& node) {
  const Access& access = m_body.accesses[node.slot];
  const Address where = address(scope, access);
  const Id wanted = node.operands[0] == k_no_expr ? 0 : scope.values[node.operands[0]];
  report(where.valid, wanted);
  const Id active = e.both(where.valid, wanted);
  const auto alignment = static_cast<uint32_t>(size_of(node.dtype));
  const Id base = m_arguments.buffers[access.buffer];
  if (active == 0) return m_scalars.from_memory(node.dtype, e.load(e.element_pointer(base, where.element), alignment));
  const Id pattern = e.variable(m_scalars.memory_type(node.dtype));
  e.store(pattern, e.null(m_scalars.memory_type(node.dtype)));
  e.if_then(active, [&] { e.store(pattern, e.load(e.element_pointer(base, where.element), alignment)); });
  return m_scalars.from_memory(node.dtype, e.load(pattern));
}

void BodyEmitter::store(Scope& scope, const Store& store) {
  const Access& access = m_body.accesses[store.access];
  for (const IndirectTerm& term : access.indirect) evaluate(scope, term.index);
  const Id value = evaluate(scope, store.value);
  const Address where = address(scope, access);
  report(where.valid, 0);
  const DType dtype = m_body.exprs[store.value].dtype;
  const auto write = [&] {
    const auto alignment = static_cast<uint32_t>(size_of(dtype));
    const Id pointer = e.element_pointer(m_arguments.buffers[access.buffer], where.element);
    Id written = value;
    if (store.mode == StoreMode::add) {
      const Id old = m_scalars.from_memory(dtype, e.load(pointer, alignment));
      written = m_scalars.apply(ScalarOp::add, dtype, old, value, 0);
    }
    e.store(pointer, m_scalars.to_memory(dtype, written), alignment);
  };
  where.valid == 0 ? write() : e.if_then(where.valid, write);
}

}  // namespace kiln::level_zero
