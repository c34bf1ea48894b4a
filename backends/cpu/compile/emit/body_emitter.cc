#include "backends/cpu/compile/emit/body_emitter.h"

#include <algorithm>
#include <cassert>

namespace kiln::cpu {

BodyEmitter::BodyEmitter(Emitter& emitter, const KernelSpec& spec, const Body& body, Values buffers,
                         llvm::Value* status)
    : e(emitter),
      m_spec(spec),
      m_body(body),
      m_buffers(std::move(buffers)),
      m_status(status),
      m_scalars(emitter),
      m_dims(body, /*results=*/0),
      m_uses_results(body.exprs.size()),
      m_changing(body.exprs.size()) {
  for (ExprId id = 0; id < m_body.exprs.size(); ++id) {
    const ScalarNode& node = m_body.exprs[id];
    const auto include = [&](ExprId operand) {
      if (operand != k_no_expr && m_uses_results[operand]) m_uses_results[id] = true;
    };
    std::ranges::for_each(node.operands, include);
    if (node.op == ScalarOp::load) {
      for (const IndirectTerm& term : m_body.accesses[node.slot].indirect) include(term.index);
    }
    if (node.op == ScalarOp::reduced || node.op == ScalarOp::accumulator) m_uses_results[id] = true;
  }
}

// Scopes.

std::unique_ptr<Scope> BodyEmitter::root() {
  auto scope = std::make_unique<Scope>();
  scope->values.resize(m_body.exprs.size());
  scope->places.resize(m_body.accesses.size());
  return scope;
}

std::unique_ptr<Scope> BodyEmitter::nest(Scope& scope) {
  auto inner = root();
  inner->around = scope.around;
  inner->around.push_back(&scope);
  inner->bound = scope.bound;
  inner->depth = scope.depth + 1;
  return inner;
}

std::unique_ptr<Scope> BodyEmitter::bind(Scope& scope, int dim, llvm::Value* index) {
  auto inner = nest(scope);
  inner->bound |= uint64_t{1} << dim;
  inner->dim = dim;
  inner->index = index;
  return inner;
}

std::unique_ptr<Scope> BodyEmitter::spread(Scope& scope, int dim, llvm::Value* index, int64_t offset, int lanes,
                                           llvm::Value* mask) {
  auto inner = nest(scope);
  inner->bound |= uint64_t{1} << dim;
  inner->depth = scope.depth;
  inner->lane_dim = dim;
  inner->lanes = lanes;
  inner->lane_index = index;
  inner->lane_offset = offset;
  inner->mask = mask;
  return inner;
}

void BodyEmitter::place(Scope& lane_scope, int dim, llvm::Value* index, int64_t offset) {
  lane_scope.bound |= uint64_t{1} << dim;
  lane_scope.dim = dim;
  lane_scope.index = index;
  lane_scope.offset = offset;
}

std::unique_ptr<Scope> BodyEmitter::join(Scope& inner, Scope& lane_scope) {
  auto joined = root();
  joined->around = inner.around;
  const auto add = [&](Scope* scope) {
    const auto at = std::find(joined->around.begin(), joined->around.end(), scope);
    if (at == joined->around.end()) joined->around.push_back(scope);
  };
  for (Scope* scope : lane_scope.around) add(scope);
  add(&lane_scope);
  add(&inner);
  std::stable_sort(joined->around.begin(), joined->around.end(),
                   [](const Scope* a, const Scope* b) { return a->depth < b->depth; });
  joined->bound = inner.bound | lane_scope.bound;
  joined->depth = inner.depth;
  joined->lane_dim = lane_scope.lane_dim;
  joined->lanes = lane_scope.lanes;
  joined->lane_index = lane_scope.lane_index;
  joined->lane_offset = lane_scope.lane_offset;
  joined->mask = lane_scope.mask;
  return joined;
}

/// Of the scopes that know `dims`, the outermost.
Scope* BodyEmitter::owner(Scope& scope, uint64_t dims) const {
  for (Scope* candidate : scope.around) {
    if ((dims & ~candidate->bound) == 0) return candidate;
  }
  assert((dims & ~scope.bound) == 0 && "a dim has no index here");
  return &scope;
}

/// The scope that gives the dim a scalar index.
const Scope& BodyEmitter::binder_of(Scope& scope, int dim) {
  if (scope.dim == dim) return scope;
  const auto at = std::ranges::find(scope.around, dim, &Scope::dim);
  assert(at != scope.around.end() && "the dim has no scalar index");
  return **at;
}

llvm::Value* BodyEmitter::index_of(Scope& scope, int dim) {
  const Scope& binder = binder_of(scope, dim);
  return binder.offset == 0 ? binder.index : e.ir.CreateAdd(binder.index, e.index(binder.offset));
}

void BodyEmitter::set_accumulator(Scope& scope, llvm::Value* value) {
  for (ExprId id = 0; id < m_body.exprs.size(); ++id) {
    if (m_body.exprs[id].op == ScalarOp::accumulator) scope.values[id] = value;
  }
}

// Values.

void BodyEmitter::set_changing_buffers(const std::vector<bool>& changing) {
  for (ExprId id = 0; id < m_body.exprs.size(); ++id) {
    const ScalarNode& node = m_body.exprs[id];
    bool changes = node.op == ScalarOp::load && changing[m_body.accesses[node.slot].buffer];
    for (const ExprId operand : node.operands) changes = changes || (operand != k_no_expr && m_changing[operand]);
    if (node.op == ScalarOp::load) {
      for (const IndirectTerm& term : m_body.accesses[node.slot].indirect) changes = changes || m_changing[term.index];
    }
    m_changing[id] = changes;
  }
}

void BodyEmitter::forget_changing(Scope& scope) {
  for (ExprId id = 0; id < m_body.exprs.size(); ++id) {
    if (m_changing[id]) scope.values[id] = nullptr;
  }
}

void BodyEmitter::prepare(Scope& scope, const std::vector<ExprId>& roots, const std::vector<Store>& stores) {
  const auto prepare_address = [&](uint32_t number) {
    const Access& access = m_body.accesses[number];
    for (const IndirectTerm& term : access.indirect) {
      if (m_changing[term.index] || m_uses_results[term.index]) return;
    }
    if ((common_dims(access) & ~scope.bound) == 0) common_place(scope, number);
  };
  for (const ExprId id : needed_by(m_body, roots)) {
    const ScalarNode& node = m_body.exprs[id];
    if (node.op == ScalarOp::load) prepare_address(node.slot);
    if ((dims_of(id) & ~scope.bound) != 0 || m_changing[id]) continue;
    // Results that are not there yet belong to a later stage.
    if (m_uses_results[id] && scope.reduced.empty()) continue;
    evaluate(scope, id);
  }
  for (const Store& store : stores) prepare_address(store.access);
}

llvm::Value* BodyEmitter::evaluate(Scope& scope, ExprId id) {
  if (scope.values[id] != nullptr) return scope.values[id];
  for (Scope* around : scope.around) {
    if (around->values[id] != nullptr) return around->values[id];
  }
  // Not evaluated where it belongs: done here, and shared with the scopes emitted side by side with this one.
  Scope* place = &scope;
  for (Scope* around : scope.around) {
    if (around->depth == scope.depth && (dims_of(id) & ~around->bound) == 0 && !m_changing[id]) {
      place = around;
      break;
    }
  }
  llvm::Value* value = compute(*place, id);
  place->values[id] = value;
  return value;
}

llvm::Value* BodyEmitter::evaluate_lanes(Scope& scope, ExprId id) {
  return lanes_like(evaluate(scope, id), scope.lanes);
}

llvm::Value* BodyEmitter::compute(Scope& scope, ExprId id) {
  const ScalarNode& node = m_body.exprs[id];
  switch (node.op) {
    case ScalarOp::constant:
      if (m_numbers == nullptr || m_numbers->constants[id] == 0) return m_scalars.constant(node);
      return number(m_numbers->constants[id], node.immediate_int);
    case ScalarOp::index: {
      const int dim = static_cast<int>(node.slot);
      if (dim != scope.lane_dim) return index_of(scope, dim);
      llvm::Value* first = e.ir.CreateAdd(scope.lane_index, e.index(scope.lane_offset));
      return e.ir.CreateAdd(e.splat(first, scope.lanes), Emitter::iota(e.i64(), scope.lanes));
    }
    case ScalarOp::reduced: {
      const auto finished = [&](const Scope& at) {
        return node.slot < at.reduced.size() ? at.reduced[node.slot] : nullptr;
      };
      llvm::Value* value = finished(scope);
      for (const Scope* around : scope.around) value = value == nullptr ? finished(*around) : value;
      assert(value != nullptr && "a reduction of a later stage");
      return value;
    }
    case ScalarOp::accumulator:
      assert(false && "no accumulator was set");
      return nullptr;
    case ScalarOp::load:
      return load(scope, node);
    case ScalarOp::cast:
      return m_scalars.cast(evaluate(scope, node.operands[0]), m_body.exprs[node.operands[0]].dtype, node.dtype);
    default:
      break;
  }
  std::array<llvm::Value*, 3> operands{};
  int lanes = 1;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (node.operands[i] == k_no_expr) continue;
    operands[i] = evaluate(scope, node.operands[i]);
    lanes = std::max(lanes, Emitter::lanes_of(operands[i]));
  }
  for (llvm::Value*& operand : operands) operand = operand == nullptr ? nullptr : lanes_like(operand, lanes);
  const size_t typed = node.op == ScalarOp::select ? 1 : 0;
  return m_scalars.apply(node.op, m_body.exprs[node.operands[typed]].dtype, operands[0], operands[1], operands[2]);
}

}  // namespace kiln::cpu
