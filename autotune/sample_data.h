#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autotune/sample_pool.h"
#include "base/expected.h"
#include "frontend/fuse/kernel_spec.h"

namespace kiln {

/// Random contents for the inputs of a kernel under test. Floats come from the sample pools, booleans are fair, integers
/// in [-100, 100] unless they address memory: those stay inside every bound that they are checked against.
/// Equal (spec, seed) give equal bytes.
class SampleData {
 public:
  SampleData(const KernelSpec& spec, uint64_t seed);

  /// Where a floating buffer's contents begin.
  Expected<SampleSource> source(uint32_t buffer) const;
  /// Fills `bytes`, the contents of buffer `buffer`: those of its source where it is floating.
  Status fill(uint32_t buffer, std::span<uint8_t> bytes) const;

 private:
  uint64_t seed_of(uint32_t buffer) const { return m_seed * 7919 + buffer * 104'729; }

  const KernelSpec& m_spec;
  uint64_t m_seed;
  std::vector<int64_t> m_index_bound;  // per buffer; 0 where it addresses nothing
};

/// Moves every element by one rounding of its dtype, up or down at random; integers and booleans stay.
void perturb_by_rounding(DType dtype, std::span<std::byte> bytes, uint64_t seed);

/// Bytes no kernel writes by accident: a NaN that no operation produces for floats, a rare pattern for
/// integers.
void poison(DType dtype, std::span<uint8_t> bytes);
/// The first poisoned element, or -1. Reads at memory speed.
int64_t find_poison(DType dtype, std::span<const uint8_t> bytes);

}  // namespace kiln
