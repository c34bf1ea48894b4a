#include <cstring>

#include <fmt/format.h>

#include "tests/stand_ins/cuda/device.h"
#include "tests/stand_ins/cuda/machine.h"
#include "tests/stand_ins/cuda/tensor_map.h"

/// Asynchronous copies: 16 bytes by a thread, boxes of a tensor by the tensor memory accelerator.
using namespace kiln::cuda_emulator;

namespace {

Machine& machine() { return Machine::current(); }

void wait_for(Groups& groups, uint32_t pending) {
  while (groups.closed.size() > pending) {
    for (const OperationRef& operation : groups.closed.front()) {
      machine().retire(*operation, machine().self().toucher());
    }
    groups.closed.pop_front();
  }
}

const EmulatedTensorMap& checked_map(const void* map) {
  const auto& tensor = *static_cast<const EmulatedTensorMap*>(map);
  if (tensor.magic != EmulatedTensorMap::k_magic) machine().fail("uses a tensor map that is none");
  return tensor;
}

/// Calls `each(offset in shared memory, address in global memory or null where that is outside, size)` for each element.
template <class EachElement>
void for_box(const EmulatedTensorMap& map, const std::array<int32_t, EmulatedTensorMap::k_rank>& at,
             const EachElement& each) {
  const auto size = static_cast<uint32_t>(map.strides_bytes[0]);
  for (uint32_t offset = 0; offset < map.box_bytes(); offset += size) {
    uint32_t place = offset / size;
    uint8_t* element = map.data;
    for (size_t dim = 0; dim < EmulatedTensorMap::k_rank; place /= map.box[dim++]) {
      const int64_t coordinate = int64_t{at[dim]} + place % map.box[dim];
      const bool is_inside = coordinate >= 0 && coordinate < static_cast<int64_t>(map.extents[dim]);
      if (!is_inside) element = nullptr;
      if (element != nullptr) element += coordinate * static_cast<int64_t>(map.strides_bytes[dim]);
    }
    each(offset, element, size);
  }
}

void check_box(const EmulatedTensorMap& map, uint32_t shared) {
  const uint32_t alignment = map.swizzle == Swizzle::none ? 128 : 1024;
  if (shared % alignment != 0) {
    machine().fail(fmt::format("copies a box at {} in shared memory, which is no multiple of {}", shared, alignment));
  }
}

}  // namespace

void kiln_emulated_copy16_async(uint32_t shared, const void* from, uint32_t bytes) {
  machine().perhaps_yield();
  if (shared % 16 != 0 || bytes > 16) machine().fail("copies 16 bytes to a misaligned address");
  if (bytes > 0 && reinterpret_cast<uintptr_t>(from) % 16 != 0)
    machine().fail("copies 16 bytes from a misaligned address");
  if (bytes > 0) machine().touch_global(from, bytes, /*write=*/false);
  Thread& thread = machine().self();
  auto operation = std::make_shared<Operation>();
  machine().begin(*operation, *thread.block, shared, 16, /*write=*/true, thread.toucher());
  uint8_t* to = machine().shared(shared, 16);
  operation->act = [=] {
    std::memset(to, 0, 16);
    std::memcpy(to, from, bytes);
  };
  thread.copies.open.push_back(operation);
  machine().issue(operation);
}

void kiln_emulated_commit_copies() { machine().self().copies.commit(); }
void kiln_emulated_wait_copies(uint32_t pending) { wait_for(machine().self().copies, pending); }

void kiln_emulated_tma_load(uint32_t to, const void* map, uint32_t barrier, const int32_t* at, uint32_t blocks) {
  machine().perhaps_yield();
  const EmulatedTensorMap tensor = checked_map(map);
  const std::array<int32_t, EmulatedTensorMap::k_rank> corner{at[0], at[1], at[2], at[3]};
  check_box(tensor, to);
  for_box(tensor, corner, [](uint32_t, const uint8_t* element, uint32_t size) {
    if (element != nullptr) machine().touch_global(element, size, /*write=*/false, Proxy::async);
  });
  for (uint32_t rank = 0; rank < machine().shape().cluster; ++rank) {
    if ((blocks >> rank & 1) == 0) continue;
    Block& block = machine().block_of_rank(rank);
    TransactionBarrier& arrival = machine().transaction_barrier(barrier, block, Proxy::async);
    auto operation = std::make_shared<Operation>();
    const Toucher issuer = machine().self().toucher(Proxy::async);
    machine().begin(*operation, block, to, tensor.box_bytes(), /*write=*/true, issuer);
    operation->act = [=, &block, &arrival] {
      for_box(tensor, corner, [&](uint32_t offset, const uint8_t* element, uint32_t size) {
        uint8_t* place = block.shared + swizzled(to + offset, tensor.swizzle);
        element != nullptr ? std::memcpy(place, element, size) : std::memset(place, 0, size);
      });
      ++arrival.moment;
      block.shadow->end_write(to, tensor.box_bytes(),
                              {arrival.agent, arrival.moment, issuer.era, nullptr, Proxy::async});
      arrival.gathered.happened.set(arrival.agent, arrival.moment);
      arrival.bytes -= tensor.box_bytes();
      machine().advance(arrival);
    };
    machine().issue(operation);
  }
}

void kiln_emulated_tma_store(const void* map, uint32_t from, const int32_t* at) {
  machine().perhaps_yield();
  const EmulatedTensorMap tensor = checked_map(map);
  const std::array<int32_t, EmulatedTensorMap::k_rank> corner{at[0], at[1], at[2], at[3]};
  check_box(tensor, from);
  Thread& thread = machine().self();
  auto operation = std::make_shared<Operation>();
  machine().begin(*operation, *thread.block, from, tensor.box_bytes(), /*write=*/false, thread.toucher(Proxy::async));
  for_box(tensor, corner, [](uint32_t, const uint8_t* element, uint32_t size) {
    if (element != nullptr) machine().touch_global(element, size, /*write=*/true, Proxy::async);
  });
  operation->act = [=, &block = *thread.block] {
    for_box(tensor, corner, [&](uint32_t offset, uint8_t* element, uint32_t size) {
      if (element != nullptr) std::memcpy(element, block.shared + swizzled(from + offset, tensor.swizzle), size);
    });
  };
  thread.stores.open.push_back(operation);
  machine().issue(operation);
}

void kiln_emulated_commit_stores() { machine().self().stores.commit(); }
void kiln_emulated_wait_stores(uint32_t pending) { wait_for(machine().self().stores, pending); }
