#include "backends/cpu/compile/body_emitter.h"

#include <algorithm>
#include <cassert>

#include "backends/backend.h"

// How memory is reached.
//
// The address of an access is the sum of a part that all lanes share and a part of each lane. The shared part
// (base, strides of the other dims, indirect indices that do not vary over the lanes) is a pointer, kept in
// the scope that knows its dims. The lanes' part is nothing (a broadcast), a stride of one element (a vector
// load), or a vector of offsets (a gather). A lane touches memory only if it is active: it exists, its
// predicate holds, and its indirect indices are in range.
namespace kiln::cpu {

struct BodyEmitter::Address {
  llvm::Value* pointer = nullptr;  // of lane 0 unless there are offsets
  llvm::Value* valid = nullptr;    // scalar or lanes; null for always
  llvm::Value* offsets = nullptr;  // in bytes, per lane; null when broadcast or contiguous
  bool varies = false;             // over the lanes at all
};

BodyEmitter::BodyEmitter(Emitter& emitter, const KernelSpec& spec, const Body& body, Values buffers,
                         llvm::Value* status)
    : e(emitter),
      m_spec(spec),
      m_body(body),
      m_buffers(std::move(buffers)),
      m_status(status),
      m_scalars(emitter) {
  set_result_dims(0);
}

void BodyEmitter::set_result_dims(uint64_t dims) {
  m_result_dims = dims;
  m_dims.assign(m_body.exprs.size(), 0);
  m_uses_results.assign(m_body.exprs.size(), false);
  m_changing.resize(m_body.exprs.size(), false);
  for (ExprId id = 0; id < m_body.exprs.size(); ++id) {
    const ScalarNode& node = m_body.exprs[id];
    const auto include = [&](ExprId operand) {
      m_dims[id] |= m_dims[operand];
      if (m_uses_results[operand]) m_uses_results[id] = true;
    };
    for (const ExprId operand : node.operands) {
      if (operand != k_no_expr) include(operand);
    }
    if (node.op == ScalarOp::index) m_dims[id] |= uint64_t{1} << node.slot;
    if (node.op == ScalarOp::load) {
      m_dims[id] |= dims_of(m_body.accesses[node.slot]);
      for (const IndirectTerm& term : m_body.accesses[node.slot].indirect) include(term.index);
    }
    if (node.op == ScalarOp::reduced || node.op == ScalarOp::accumulator) {
      m_dims[id] |= m_result_dims;
      m_uses_results[id] = true;
    }
  }
}

uint64_t BodyEmitter::dims_of(const Access& access) const {
  uint64_t dims = 0;
  for (size_t d = 0; d < access.strides.size(); ++d) dims |= access.strides[d] != 0 ? uint64_t{1} << d : 0;
  for (const IndirectTerm& term : access.indirect) dims |= m_dims[term.index];
  return dims;
}

std::vector<ExprId> BodyEmitter::needed_by(const std::vector<ExprId>& roots) const {
  std::vector<bool> needed(m_body.exprs.size(), false);
  for (const ExprId root : roots) needed[root] = true;
  for (size_t id = needed.size(); id-- > 0;) {
    if (!needed[id]) continue;
    const ScalarNode& node = m_body.exprs[id];
    for (const ExprId operand : node.operands) {
      if (operand != k_no_expr) needed[operand] = true;
    }
    if (node.op != ScalarOp::load) continue;
    for (const IndirectTerm& term : m_body.accesses[node.slot].indirect) needed[term.index] = true;
  }
  std::vector<ExprId> list;
  for (ExprId id = 0; id < needed.size(); ++id) {
    if (needed[id]) list.push_back(id);
  }
  return list;
}

// Scopes.

std::unique_ptr<Scope> BodyEmitter::root() {
  auto scope = std::make_unique<Scope>();
  scope->values.resize(m_body.exprs.size());
  scope->places.resize(m_body.accesses.size());
  return scope;
}

std::unique_ptr<Scope> BodyEmitter::bind(Scope& scope, int dim, llvm::Value* index) {
  auto inner = root();
  inner->around = scope.around;
  inner->around.push_back(&scope);
  inner->bound = scope.bound | uint64_t{1} << dim;
  inner->depth = scope.depth + 1;
  inner->dim = dim;
  inner->index = index;
  return inner;
}

std::unique_ptr<Scope> BodyEmitter::nest(Scope& scope) {
  auto inner = root();
  inner->around = scope.around;
  inner->around.push_back(&scope);
  inner->bound = scope.bound;
  inner->depth = scope.depth + 1;
  return inner;
}

std::unique_ptr<Scope> BodyEmitter::spread(Scope& scope, int dim, llvm::Value* index, int64_t offset,
                                           int lanes, llvm::Value* mask) {
  auto inner = root();
  inner->around = scope.around;
  inner->around.push_back(&scope);
  inner->bound = scope.bound | uint64_t{1} << dim;
  inner->depth = scope.depth;
  inner->lane_dim = dim;
  inner->lanes = lanes;
  inner->lane_index = index;
  inner->lane_offset = offset;
  inner->mask = mask;
  return inner;
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

llvm::Value* BodyEmitter::index_of(Scope& scope, int dim) {
  if (scope.dim == dim) return scope.index;
  for (const Scope* around : scope.around) {
    if (around->dim == dim) return around->index;
  }
  assert(false && "the dim has no scalar index");
  return nullptr;
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
    for (const ExprId operand : node.operands)
      changes = changes || (operand != k_no_expr && m_changing[operand]);
    if (node.op == ScalarOp::load) {
      for (const IndirectTerm& term : m_body.accesses[node.slot].indirect)
        changes = changes || m_changing[term.index];
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
  for (const ExprId id : needed_by(roots)) {
    const ScalarNode& node = m_body.exprs[id];
    if (node.op == ScalarOp::load) prepare_address(node.slot);
    if ((m_dims[id] & ~scope.bound) != 0 || m_changing[id]) continue;
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
    if (around->depth == scope.depth && (m_dims[id] & ~around->bound) == 0 && !m_changing[id]) {
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
      return m_scalars.constant(node);
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
      return m_scalars.cast(evaluate(scope, node.operands[0]), m_body.exprs[node.operands[0]].dtype,
                            node.dtype);
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
  return m_scalars.apply(node.op, m_body.exprs[node.operands[typed]].dtype, operands[0], operands[1],
                         operands[2]);
}

// Addresses.

llvm::Value* BodyEmitter::both(llvm::Value* a, llvm::Value* b) {
  if (a == nullptr || b == nullptr) return a == nullptr ? b : a;
  const int lanes = std::max(Emitter::lanes_of(a), Emitter::lanes_of(b));
  return e.ir.CreateAnd(lanes_like(a, lanes), lanes_like(b, lanes));
}

/// Sets the status when a lane that is active is not valid.
void BodyEmitter::report(llvm::Value* valid, llvm::Value* active) {
  if (valid == nullptr) return;
  llvm::Value* bad = both(e.ir.CreateNot(valid), active);
  if (Emitter::lanes_of(bad) > 1) bad = e.ir.CreateOrReduce(bad);
  e.if_then(bad, [&] {
    e.store(e.ir.getInt32(static_cast<uint32_t>(LaunchStatus::index_out_of_range)), m_status);
  });
}

uint64_t BodyEmitter::common_dims(const Access& access) const {
  uint64_t dims = 0;
  for (size_t d = 0; d < access.strides.size(); ++d) dims |= access.strides[d] != 0 ? uint64_t{1} << d : 0;
  for (const IndirectTerm& term : access.indirect) {
    if ((m_dims[term.index] & lane_bit()) == 0) dims |= m_dims[term.index];
  }
  return dims & ~lane_bit();
}

/// What all lanes share: base, dims that have a scalar index, indirect indices that do not vary over the
/// lanes.
Scope::Place BodyEmitter::common_place(Scope& scope, uint32_t number) {
  const Access& access = m_body.accesses[number];
  const uint64_t dims = common_dims(access);
  Scope* home = owner(scope, dims);
  if (home->places[number]) return *home->places[number];
  // The home may be outside of loops already begun; what is computed here may be kept only side by side with
  // here.
  Scope* keep = home;
  if (home->depth != scope.depth) {
    keep = nullptr;
    for (Scope* around : scope.around) {
      if (around->depth == scope.depth && around->lane_dim < 0) keep = around;
    }
    if (keep != nullptr && keep->places[number]) return *keep->places[number];
  }

  const int64_t size = static_cast<int64_t>(size_of(m_spec.buffers[access.buffer].dtype));
  Scope::Place place{e.advance(m_buffers[access.buffer], access.offset * size), nullptr};
  for (size_t d = 0; d < access.strides.size(); ++d) {
    if ((dims >> d & 1) == 0 || access.strides[d] == 0) continue;
    llvm::Value* index = index_of(scope, static_cast<int>(d));
    place.pointer = e.advance(place.pointer, e.ir.CreateMul(index, e.index(access.strides[d] * size)));
  }
  for (const IndirectTerm& term : access.indirect) {
    if ((m_dims[term.index] & lane_bit()) != 0) continue;
    llvm::Value* index = evaluate(scope, term.index);
    place.valid = both(place.valid, e.ir.CreateICmpULT(index, e.index(term.bound)));
    place.pointer = e.advance(place.pointer, e.ir.CreateMul(index, e.index(term.stride * size)));
  }
  if (keep != nullptr) keep->places[number] = place;
  return place;
}

BodyEmitter::Address BodyEmitter::address_of(Scope& scope, uint32_t number) {
  const Access& access = m_body.accesses[number];
  const Scope::Place common = common_place(scope, number);
  Address address{common.pointer, common.valid, nullptr, false};
  if (scope.lane_dim < 0) return address;

  const int64_t size = static_cast<int64_t>(size_of(m_spec.buffers[access.buffer].dtype));
  const int64_t stride = access.strides[static_cast<size_t>(scope.lane_dim)] * size;
  if (stride != 0) {
    address.varies = true;
    address.pointer = e.advance(address.pointer, e.ir.CreateMul(scope.lane_index, e.index(stride)));
    address.pointer = e.advance(address.pointer, scope.lane_offset * stride);
    if (stride != size) {
      // 32-bit offsets gather twice as many lanes at once.
      const bool narrow = std::abs(stride) < INT32_MAX / scope.lanes;
      llvm::Type* type = Emitter::vector(narrow ? e.i32() : e.i64(), scope.lanes);
      address.offsets =
          e.ir.CreateMul(Emitter::iota(type->getScalarType(), scope.lanes), Emitter::integer(type, stride));
    }
  }
  for (const IndirectTerm& term : access.indirect) {
    if ((m_dims[term.index] & lane_bit()) == 0) continue;
    address.varies = true;
    llvm::Value* index = evaluate_lanes(scope, term.index);
    llvm::Type* type = index->getType();
    address.valid = both(address.valid, e.ir.CreateICmpULT(index, Emitter::integer(type, term.bound)));
    llvm::Value* offset = e.ir.CreateMul(index, Emitter::integer(type, term.stride * size));
    if (address.offsets == nullptr) {
      llvm::Value* own =
          stride == 0 ? Emitter::integer(type, 0)
                      : e.ir.CreateMul(Emitter::iota(e.i64(), scope.lanes), Emitter::integer(type, stride));
      address.offsets = own;
    }
    address.offsets = e.ir.CreateAdd(e.ir.CreateSExt(address.offsets, type), offset);
  }
  return address;
}

// Loads.

llvm::Value* BodyEmitter::load(Scope& scope, const ScalarNode& node) {
  const Address address = address_of(scope, node.slot);
  llvm::Value* predicate = node.operands[0] == k_no_expr ? nullptr : evaluate(scope, node.operands[0]);
  llvm::Value* wanted = predicate;
  const bool vector = address.varies || (predicate != nullptr && Emitter::lanes_of(predicate) > 1) ||
                      (address.valid != nullptr && Emitter::lanes_of(address.valid) > 1);
  if (vector) wanted = both(wanted, scope.mask);
  report(address.valid, wanted);
  llvm::Value* active = both(wanted, address.valid);

  if (address.varies) return m_scalars.from_memory(node.dtype, load_lanes(scope, node, address, active));
  if (active == nullptr || Emitter::lanes_of(active) == 1) {
    return m_scalars.from_memory(node.dtype, load_scalar(node, address.pointer, active));
  }
  // One address, wanted by some lanes.
  llvm::Value* one = load_scalar(node, address.pointer, e.ir.CreateOrReduce(active));
  llvm::Value* value = lanes_like(m_scalars.from_memory(node.dtype, one), scope.lanes);
  return e.ir.CreateSelect(active, value, m_scalars.zero(node.dtype, scope.lanes));
}

llvm::Value* BodyEmitter::load_scalar(const ScalarNode& node, llvm::Value* pointer, llvm::Value* active) {
  llvm::Type* type = m_scalars.memory_type(node.dtype);
  if (active == nullptr) return e.load(type, pointer);
  return e.if_else(
      active, [&] { return Values{e.load(type, pointer)}; },
      [&] { return Values{llvm::Constant::getNullValue(type)}; })[0];
}

llvm::Value* BodyEmitter::load_lanes(Scope& scope, const ScalarNode& node, const Address& address,
                                     llvm::Value* active) {
  llvm::Type* type = Emitter::vector(m_scalars.memory_type(node.dtype), scope.lanes);
  if (scope.lanes == 1) {
    llvm::Value* pointer = address.offsets == nullptr
                               ? address.pointer
                               : e.advance(address.pointer, e.ir.CreateSExt(address.offsets, e.i64()));
    return load_scalar(node, pointer, active);
  }
  if (active != nullptr) active = lanes_like(active, scope.lanes);
  if (address.offsets == nullptr) {
    return active == nullptr ? e.load(type, address.pointer) : e.masked_load(type, address.pointer, active);
  }
  if (active == nullptr) active = Emitter::integer(Emitter::vector(e.i1(), scope.lanes), 1);
  llvm::Value* pointers = e.advance(address.pointer, address.offsets);
  const llvm::Align alignment(size_of(node.dtype));
  return e.ir.CreateMaskedGather(type, pointers, alignment, active, llvm::Constant::getNullValue(type));
}

// Stores.

void BodyEmitter::store(Scope& scope, const Store& store) {
  const Address address = address_of(scope, store.access);
  if (address.varies) return store_lanes(scope, store, address);
  assert(scope.lanes == 1 && "several lanes store to one address");
  report(address.valid, nullptr);
  const DType dtype = m_body.exprs[store.value].dtype;
  const auto write = [&] {
    llvm::Value* value = evaluate(scope, store.value);
    if (store.mode == StoreMode::add) {
      llvm::Value* old = m_scalars.from_memory(dtype, e.load(m_scalars.memory_type(dtype), address.pointer));
      value = m_scalars.apply(ScalarOp::add, dtype, old, value, nullptr);
    }
    e.store(m_scalars.to_memory(dtype, value), address.pointer);
  };
  evaluate(scope, store.value);
  address.valid == nullptr ? write() : e.if_then(address.valid, write);
}

void BodyEmitter::store_lanes(Scope& scope, const Store& store, const Address& address) {
  const DType dtype = m_body.exprs[store.value].dtype;
  llvm::Value* value = evaluate_lanes(scope, store.value);
  report(address.valid, scope.mask);
  llvm::Value* active = both(scope.mask, address.valid);
  if (scope.lanes == 1) {
    const auto write = [&] {
      llvm::Value* pointer = address.offsets == nullptr
                                 ? address.pointer
                                 : e.advance(address.pointer, e.ir.CreateSExt(address.offsets, e.i64()));
      llvm::Value* sum = value;
      if (store.mode == StoreMode::add) {
        llvm::Value* old = m_scalars.from_memory(dtype, e.load(m_scalars.memory_type(dtype), pointer));
        sum = m_scalars.apply(ScalarOp::add, dtype, old, value, nullptr);
      }
      e.store(m_scalars.to_memory(dtype, sum), pointer);
    };
    return active == nullptr ? write() : e.if_then(active, write);
  }
  if (active != nullptr) active = lanes_like(active, scope.lanes);
  if (address.offsets != nullptr && store.mode == StoreMode::add) {
    return add_lane_by_lane(scope, store, address, active);
  }
  if (store.mode == StoreMode::add) {
    llvm::Type* type = Emitter::vector(m_scalars.memory_type(dtype), scope.lanes);
    llvm::Value* old =
        active == nullptr ? e.load(type, address.pointer) : e.masked_load(type, address.pointer, active);
    value = m_scalars.apply(ScalarOp::add, dtype, m_scalars.from_memory(dtype, old), value, nullptr);
  }
  value = m_scalars.to_memory(dtype, value);
  if (address.offsets != nullptr) {
    if (active == nullptr) active = Emitter::integer(Emitter::vector(e.i1(), scope.lanes), 1);
    e.ir.CreateMaskedScatter(value, e.advance(address.pointer, address.offsets), llvm::Align(size_of(dtype)),
                             active);
  } else if (active != nullptr) {
    e.masked_store(value, address.pointer, active);
  } else {
    e.store(value, address.pointer);
  }
}

/// Two lanes may add to one element, so each sees what the one before it wrote.
void BodyEmitter::add_lane_by_lane(Scope& scope, const Store& store, const Address& address,
                                   llvm::Value* active) {
  const DType dtype = m_body.exprs[store.value].dtype;
  llvm::Value* values = evaluate_lanes(scope, store.value);
  for (int lane = 0; lane < scope.lanes; ++lane) {
    const auto number = static_cast<uint64_t>(lane);
    const auto write = [&] {
      llvm::Value* offset = e.ir.CreateSExt(e.ir.CreateExtractElement(address.offsets, number), e.i64());
      llvm::Value* pointer = e.advance(address.pointer, offset);
      llvm::Value* old = m_scalars.from_memory(dtype, e.load(m_scalars.memory_type(dtype), pointer));
      llvm::Value* sum =
          m_scalars.apply(ScalarOp::add, dtype, old, e.ir.CreateExtractElement(values, number), nullptr);
      e.store(m_scalars.to_memory(dtype, sum), pointer);
    };
    active == nullptr ? write() : e.if_then(e.ir.CreateExtractElement(active, number), write);
  }
}

}  // namespace kiln::cpu
