#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kiln::cuda_emulator {

enum class Swizzle : uint32_t { none = 0, bytes_32 = 1, bytes_64 = 2, bytes_128 = 3 };

/// Moves 16-byte chunks within a row of `swizzle` bytes by the row's number, both read off the address.
inline uint32_t swizzled(uint32_t address, Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none:
      return address;
    case Swizzle::bytes_32:
      return address ^ (address >> 3 & 0x10);
    case Swizzle::bytes_64:
      return address ^ (address >> 3 & 0x30);
    case Swizzle::bytes_128:
      return address ^ (address >> 3 & 0x70);
  }
  return address;
}

/// What a CUtensorMap says, in the open: a tensor in global memory, the box that one copy moves, and how the box lies
/// in shared memory. Dim 0 is adjacent.
struct EmulatedTensorMap {
  static constexpr uint64_t k_magic = 0x70616d2d6c6e696b;
  static constexpr size_t k_rank = 4;

  uint64_t magic = k_magic;
  uint8_t* data = nullptr;
  std::array<uint64_t, k_rank> extents{};
  std::array<uint64_t, k_rank> strides_bytes{};  // strides_bytes[0] is the size of an element
  std::array<uint32_t, k_rank> box{};
  Swizzle swizzle = Swizzle::none;

  uint32_t box_bytes() const { return box[0] * box[1] * box[2] * box[3] * static_cast<uint32_t>(strides_bytes[0]); }
};
/// What cuTensorMapEncodeTiled and the copies themselves ask of a map; empty when all is well.
std::string why_refused(const EmulatedTensorMap& map);

static_assert(sizeof(EmulatedTensorMap) <= 128, "a kernel has 128 bytes for it");

}  // namespace kiln::cuda_emulator
