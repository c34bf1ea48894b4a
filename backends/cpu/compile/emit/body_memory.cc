#include <cassert>
#include <cstdlib>

#include "backends/backend.h"
#include "backends/cpu/compile/emit/body_emitter.h"

// How memory is reached.
//
// The address of an access is the sum of a part that all lanes share and a part of each lane. The shared part
// (base, strides of the other dims, indirect indices that do not vary over the lanes) is a pointer, kept in
// the scope that knows its dims. The lanes' part is nothing (a broadcast), a stride of one element (a vector
// load), of a few elements (several loads, shuffled; several stores), or a vector of offsets (a gather, a scatter). A lane
// touches memory only if it is active: it exists, its predicate holds, and its indirect indices are in range.
namespace kiln::cpu {

struct BodyEmitter::Address {
  llvm::Value* pointer = nullptr;  // of lane 0 unless there are offsets
  llvm::Value* valid = nullptr;    // scalar or lanes; null for always
  llvm::Value* offsets = nullptr;  // in bytes, per lane; null when broadcast or contiguous
  int64_t stride = 0;              // elements from lane to lane, where these are all that parts them
  bool varies = false;             // over the lanes at all
};

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
  e.if_then(bad, [&] { e.store(e.ir.getInt32(static_cast<uint32_t>(LaunchStatus::index_out_of_range)), m_status); });
}

uint64_t BodyEmitter::common_dims(const Access& access) const {
  uint64_t dims = dims_of_strides(access);
  for (const IndirectTerm& term : access.indirect) {
    if ((dims_of(term.index) & lane_bit()) == 0) dims |= dims_of(term.index);
  }
  return dims & ~lane_bit();
}

// Numbers that the spec says, or the launch.

llvm::Value* BodyEmitter::number(LaunchNumbers::Place place, int64_t constant) {
  return place == 0 ? e.index(constant) : m_numbers->launch->value(e, place, constant);
}

llvm::Value* BodyEmitter::offset_of(uint32_t access) {
  return number(m_numbers == nullptr ? 0 : m_numbers->accesses[access].offset, m_body.accesses[access].offset);
}

bool BodyEmitter::is_launched(uint32_t access, size_t dim) const {
  return m_numbers != nullptr && m_numbers->accesses[access].strides[dim] != 0;
}

llvm::Value* BodyEmitter::stride_of(uint32_t access, size_t dim) {
  return number(m_numbers == nullptr ? 0 : m_numbers->accesses[access].strides[dim],
                m_body.accesses[access].strides[dim]);
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
  const auto bytes = [&](llvm::Value* elements) { return e.ir.CreateMul(elements, e.index(size)); };
  Scope::Place place{.pointer = m_buffers[access.buffer]};
  const auto advance = [&](llvm::Value* by) {
    const auto* known = llvm::dyn_cast<llvm::ConstantInt>(by);
    if (known == nullptr) place.pointer = e.advance(place.pointer, by);
    place.offset += known == nullptr ? 0 : known->getSExtValue();
  };
  if (access.offset != 0) advance(bytes(offset_of(number)));
  for (size_t d = 0; d < access.strides.size(); ++d) {
    if ((dims >> d & 1) == 0 || access.strides[d] == 0) continue;
    const Scope& binder = binder_of(scope, static_cast<int>(d));
    llvm::Value* stride = bytes(stride_of(number, d));
    advance(e.ir.CreateMul(binder.index, stride));
    if (binder.offset != 0) advance(e.ir.CreateMul(e.index(binder.offset), stride));
  }
  for (const IndirectTerm& term : access.indirect) {
    if ((dims_of(term.index) & lane_bit()) != 0) continue;
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
  Address address{.pointer = common.pointer, .valid = common.valid};
  if (scope.lane_dim < 0) {
    address.pointer = e.advance(address.pointer, common.offset);
    return address;
  }

  const int64_t size = static_cast<int64_t>(size_of(m_spec.buffers[access.buffer].dtype));
  const int64_t stride = access.strides[static_cast<size_t>(scope.lane_dim)] * size;
  int64_t constant = common.offset;
  if (const auto lane = static_cast<size_t>(scope.lane_dim); is_launched(number, lane)) {
    address.varies = true;
    llvm::Value* step = e.ir.CreateMul(stride_of(number, lane), e.index(size));
    llvm::Value* first = e.ir.CreateAdd(scope.lane_index, e.index(scope.lane_offset));
    address.pointer = e.advance(address.pointer, e.ir.CreateMul(first, step));
    address.offsets = e.ir.CreateMul(Emitter::iota(e.i64(), scope.lanes), e.splat(step, scope.lanes));
  } else if (stride != 0) {
    address.varies = true;
    address.pointer = e.advance(address.pointer, e.ir.CreateMul(scope.lane_index, e.index(stride)));
    constant += scope.lane_offset * stride;
    address.stride = stride / size;
    if (stride != size) {
      // 32-bit offsets gather twice as many lanes at once.
      const bool narrow = std::abs(stride) < INT32_MAX / scope.lanes;
      llvm::Type* type = Emitter::vector(narrow ? e.i32() : e.i64(), scope.lanes);
      address.offsets =
          e.ir.CreateMul(Emitter::iota(type->getScalarType(), scope.lanes), Emitter::integer(type, stride));
    }
  }
  address.pointer = e.advance(address.pointer, constant);
  for (const IndirectTerm& term : access.indirect) {
    if ((dims_of(term.index) & lane_bit()) == 0) continue;
    address.varies = true;
    address.stride = 0;
    llvm::Value* index = evaluate_lanes(scope, term.index);
    llvm::Type* type = index->getType();
    address.valid = both(address.valid, e.ir.CreateICmpULT(index, Emitter::integer(type, term.bound)));
    llvm::Value* offset = e.ir.CreateMul(index, Emitter::integer(type, term.stride * size));
    if (address.offsets == nullptr) {
      llvm::Value* own = stride == 0
                             ? Emitter::integer(type, 0)
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
  if (e.target().interleaves(address.stride, static_cast<int64_t>(size_of(node.dtype)))) {
    return e.interleaved_load(type, address.pointer, address.stride, active);
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
    e.store(stored_pattern(store, value), address.pointer);
  };
  evaluate(scope, store.value);
  address.valid == nullptr ? write() : e.if_then(address.valid, write);
}

llvm::Value* BodyEmitter::stored_pattern(const Store& store, llvm::Value* value) {
  const ScalarNode& node = m_body.exprs[store.value];
  const bool is_cast = node.op == ScalarOp::cast && m_body.exprs[node.operands[0]].dtype != node.dtype;
  const bool is_rounded = node.op == ScalarOp::load || is_cast;
  if (is_rounded && store.mode == StoreMode::assign) return m_scalars.rounded_to_memory(node.dtype, value);
  return m_scalars.to_memory(node.dtype, value);
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
      e.store(stored_pattern(store, sum), pointer);
    };
    return active == nullptr ? write() : e.if_then(active, write);
  }
  if (active != nullptr) active = lanes_like(active, scope.lanes);
  if (address.offsets != nullptr && store.mode == StoreMode::add) {
    return add_lane_by_lane(scope, store, address, active);
  }
  if (store.mode == StoreMode::add) {
    llvm::Type* type = Emitter::vector(m_scalars.memory_type(dtype), scope.lanes);
    llvm::Value* old = active == nullptr ? e.load(type, address.pointer) : e.masked_load(type, address.pointer, active);
    value = m_scalars.apply(ScalarOp::add, dtype, m_scalars.from_memory(dtype, old), value, nullptr);
  }
  value = stored_pattern(store, value);
  if (e.target().interleaves(address.stride, static_cast<int64_t>(size_of(dtype)))) {
    e.interleaved_store(value, address.pointer, address.stride, active);
  } else if (address.offsets != nullptr) {
    if (active == nullptr) active = Emitter::integer(Emitter::vector(e.i1(), scope.lanes), 1);
    e.ir.CreateMaskedScatter(value, e.advance(address.pointer, address.offsets), llvm::Align(size_of(dtype)), active);
  } else if (active != nullptr) {
    e.masked_store(value, address.pointer, active);
  } else {
    e.store(value, address.pointer);
  }
}

/// Two lanes may add to one element, so each sees what the one before it wrote.
void BodyEmitter::add_lane_by_lane(Scope& scope, const Store& store, const Address& address, llvm::Value* active) {
  const DType dtype = m_body.exprs[store.value].dtype;
  llvm::Value* values = evaluate_lanes(scope, store.value);
  for (int lane = 0; lane < scope.lanes; ++lane) {
    const auto number = static_cast<uint64_t>(lane);
    const auto write = [&] {
      llvm::Value* offset = e.ir.CreateSExt(e.ir.CreateExtractElement(address.offsets, number), e.i64());
      llvm::Value* pointer = e.advance(address.pointer, offset);
      llvm::Value* old = m_scalars.from_memory(dtype, e.load(m_scalars.memory_type(dtype), pointer));
      llvm::Value* sum = m_scalars.apply(ScalarOp::add, dtype, old, e.ir.CreateExtractElement(values, number), nullptr);
      e.store(stored_pattern(store, sum), pointer);
    };
    active == nullptr ? write() : e.if_then(e.ir.CreateExtractElement(active, number), write);
  }
}

}  // namespace kiln::cpu
