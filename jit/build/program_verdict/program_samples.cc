#include "jit/build/program_verdict/program_samples.h"

#include <algorithm>
#include <cstring>

#include "verdict/split_mix.h"

namespace kiln {

namespace {

template <typename T>
void fill_with(std::span<uint8_t> bytes, uint64_t seed, int64_t low, int64_t high) {
  SplitMix random(seed);
  const auto range = static_cast<uint64_t>(high - low) + 1;
  for (size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    const T value = static_cast<T>(low + static_cast<int64_t>(random.next() % range));
    std::memcpy(bytes.data() + i, &value, sizeof value);
  }
}

int64_t greatest(DType dtype) {
  if (dtype == DType::boolean) return 1;
  if (dtype == DType::u8) return 255;
  return dtype == DType::i8 ? 127 : INT32_MAX;
}

}  // namespace

Expected<ProgramSample> ProgramSample::of(const ValueLayout& layout, int64_t index_bound, IndexWindow window,
                                          bool is_mask, uint64_t seed) {
  ProgramSample sample;
  sample.m_buffer.size_bytes = layout.bytes();
  sample.m_dtype = layout.dtype;
  sample.m_seed = seed;
  if (is_floating(layout.dtype) && index_bound == 0) {
    SampleSource& source = sample.m_buffer.source;
    KILN_ASSIGN_OR_RETURN(source.pool, SamplePool::of(layout.dtype, layout.dims.size() > 1 ? SamplePool::Kind::small
                                                                                           : SamplePool::Kind::even));
    // Aligned to the dtype only, as a caller's tensors may be.
    const uint64_t shift = seed % 2 * size_of(layout.dtype);
    source.start_bytes = (seed * 104'729 * 64 + shift) % SamplePool::k_bytes;
    return sample;
  }
  sample.m_positions = window.positions(index_bound);
  const bool is_signed = layout.dtype != DType::boolean && layout.dtype != DType::u8;
  std::pair<int64_t, int64_t> range(is_signed ? -100 : 0, 100);
  if (is_mask) range = {0, 1};
  if (index_bound > 0) range = window.range(index_bound);
  sample.m_low = std::min(range.first, greatest(layout.dtype));
  sample.m_high = std::min(range.second, greatest(layout.dtype));
  return sample;
}

void ProgramSample::fill(std::span<uint8_t> bytes) const {
  if (is_floating(m_dtype)) return fill_with_positions(m_dtype, bytes, m_seed, m_positions);
  switch (size_of(m_dtype)) {
    case 1:
      return fill_with<uint8_t>(bytes, m_seed, m_low, m_high);
    case 4:
      return fill_with<int32_t>(bytes, m_seed, m_low, m_high);
    default:
      return fill_with<int64_t>(bytes, m_seed, m_low, m_high);
  }
}

}  // namespace kiln
