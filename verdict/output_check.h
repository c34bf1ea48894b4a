#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "verdict/doubts.h"
#include "verdict/verdict.h"

namespace kiln {

/// Where element `flat` of the output lies in its buffer.
int64_t place_of(const OutputReference& output, int64_t flat);

/// The comparison of one output with its reference. Internal to verdict.
class OutputCheck {
 public:
  OutputCheck(const OutputReference& output, DType dtype, Situation situation);

  uint32_t buffer() const { return m_output.buffer; }
  const DemandedBlocks& demanded() const { return m_demanded; }
  /// Calls `visit` with the place in the buffer of each element that is compared.
  template <typename Visit>
  void for_each_place(const Visit& visit) const {
    for (const DemandedBlock& block : m_demanded.blocks) {
      for (const int64_t row : block.rows) {
        for (const int64_t column : block.columns) visit(place_of(m_output, row * m_columns + column));
      }
    }
  }
  /// The reference's values, of each block.
  std::vector<std::vector<double>> expected_blocks() const;
  /// Both take an element's place in the buffer: what is there, and whether it is not to be compared.
  Status compare(const std::function<double(int64_t)>& got, const std::function<bool(int64_t)>& skip,
                 Verdict& verdict) const;

 private:
  Status look_into(std::vector<Doubt> doubts, Verdict& verdict) const;
  bool is_excused_by_rounding(const Doubt& doubt, Verdict& verdict) const;
  double allowed(double exact, double scale) const;
  bool agrees(double got, double exact, double allowed, Verdict& verdict) const;

  const OutputReference& m_output;
  const DType m_dtype;
  const bool m_harsh;
  int64_t m_columns = 1;
  DemandedBlocks m_demanded;
};

/// Where in the buffer an element still is poisoned; -1 when none is. At memory speed where elements lie side by side.
int64_t first_unwritten(const OutputReference& output, DType dtype, std::span<const uint8_t> bytes, Poison which);
/// Where both runs left their poison; -1 where nowhere. Either run may have written what looks like it.
int64_t first_unwritten_twice(const OutputReference& output, DType dtype, std::span<const uint8_t> first,
                              std::span<const uint8_t> second);

}  // namespace kiln
