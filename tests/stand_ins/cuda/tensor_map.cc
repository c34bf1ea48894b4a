#include "tests/stand_ins/cuda/tensor_map.h"

namespace kiln::cuda_emulator {

std::string why_refused(const EmulatedTensorMap& map) {
  if (reinterpret_cast<uintptr_t>(map.data) % 16 != 0) return "a tensor map's address is no multiple of 16";
  for (size_t dim = 0; dim < EmulatedTensorMap::k_rank; ++dim) {
    if (dim > 0 && map.strides_bytes[dim] % 16 != 0) return "a tensor map's strides are no multiples of 16 bytes";
    if (map.extents[dim] == 0 || map.box[dim] == 0 || map.box[dim] > 256) return "a tensor map has an impossible box";
  }
  const uint64_t row_bytes = map.box[0] * map.strides_bytes[0];
  if (row_bytes % 16 != 0) return "a tensor map's box has rows that are no multiple of 16 bytes";
  if (map.swizzle == Swizzle::bytes_128 && row_bytes > 128) return "a swizzled box has rows of more than 128 bytes";
  return {};
}

}  // namespace kiln::cuda_emulator
