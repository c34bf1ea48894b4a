#pragma once

#include <vector>

#include "jit/build/program_verdict/value_layout.h"
#include "verdict/candidate_runner.h"
#include "verdict/sample_data.h"

namespace kiln {

/// Sample data for one input of a whole program. Floats repeat a pool, those of rank two and more small numbers of it:
/// products of products stay finite. Numbers that address memory stay in the window of `index_bound`; integers that
/// become floats are 0 or 1, as masks are; others are in [-100, 100].
class ProgramSample {
 public:
  /// `seed` tells inputs apart. Errors: resource_exhausted.
  static Expected<ProgramSample> of(const ValueLayout& layout, int64_t index_bound, IndexWindow window, bool is_mask,
                                    uint64_t seed);

  const CandidateBuffer& buffer() const { return m_buffer; }
  /// Writes the sample into memory that has no source.
  void fill(std::span<uint8_t> bytes) const;

 private:
  CandidateBuffer m_buffer;
  DType m_dtype = DType::f32;
  int64_t m_low = 0, m_high = 0;          // of integers
  std::pair<double, double> m_positions;  // of floats that address memory
  uint64_t m_seed = 0;
};

}  // namespace kiln
