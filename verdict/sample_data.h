#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/expected.h"
#include "frontend/kernel/kernel_spec.h"
#include "verdict/sample_pool.h"

namespace kiln {

/// What a kernel is run on.
enum class Situation : uint8_t {
  plain,           // ordinary numbers, every buffer aligned to 64 bytes
  harsh,           // zeros, tiny and large numbers, infinities and NaNs where they have a meaning; no buffer aligned
  harsh_aligned,   // such numbers, every buffer aligned
  negative_index,  // the first element that addresses memory is -1
  index_at_end,    // the last one is the first that is too large
  far_index,       // every seventh is about as large as its dtype allows
};

inline bool is_harsh(Situation situation) {
  return situation == Situation::harsh || situation == Situation::harsh_aligned;
}

/// Which of the values that an index may have are drawn for numbers that indices are computed from, as shares of how many
/// there are. All are right for what is an index itself; a sum of two stays inside the bound where each has half of them. Of
/// floats the last ones have those of [0, 1), which are scaled by the bound more often than not, and those near zero, where
/// zero is the middle of an image.
struct IndexWindow {
  double begin = 0, end = 1;
  double part = 1;              // of floats: how much of the window they fill, from its begin on
  bool is_of_compared = false;  // numbers that are only compared to find an index are drawn from it, too
  /// Least and greatest of the values for a dimension of `bound`.
  std::pair<int64_t, int64_t> range(int64_t bound) const;
  /// The half-open interval of floats for a dimension of `bound`. None lies just below the next integer.
  std::pair<double, double> positions(int64_t bound) const;
};
/// To be tried in turn until all indices that are computed are valid.
inline constexpr IndexWindow k_index_windows[] = {{0, 1},          {0, 0.5},    {0.5, 1},        {0.25, 0.5},
                                                  {0, 0.125},      {0, 0},      {0, 1, 1, true}, {0, 0.125, 1, true},
                                                  {0, 0, 1, true}, {0, 0, 0.5}, {0, 0, 0.125}};

/// Random contents for the inputs of a kernel under test. Floats come from the sample pools, booleans are fair, integers
/// in [-100, 100] unless they address memory: those, and floats that indices are made of, stay inside the window of every bound
/// that they are checked against, but for the situations that are about them. The ends of a product's groups ascend, but in
/// harsh situations; some are larger than what they are of.
/// Equal (spec, seed, situation, window) give equal bytes.
class SampleData {
 public:
  SampleData(const KernelSpec& spec, uint64_t seed, Situation situation = Situation::plain, IndexWindow window = {});

  /// Whether the buffer's contents are those of a source.
  bool has_source(uint32_t buffer) const;
  /// Where they begin then.
  Expected<SampleSource> source(uint32_t buffer) const;
  /// By how many bytes buffer `buffer` misses an alignment of 64: an element in the harsh situation.
  uint64_t misalignment(uint32_t buffer) const;
  /// Whether some element addresses memory wrongly.
  bool has_bad_index() const;
  /// How many values a buffer may choose from where they address memory; 0 where they address nothing.
  int64_t index_bound(uint32_t buffer) const { return m_index_bound[buffer]; }
  /// Whether the window decides any of the contents.
  bool has_window() const;
  /// Whether some index is not an element as it was loaded, but computed of elements.
  bool computes_indices() const;
  /// Fills `bytes`, the contents of buffer `buffer`: those of its source where it has one.
  Status fill(uint32_t buffer, std::span<uint8_t> bytes) const;

 private:
  uint64_t seed_of(uint32_t buffer) const { return m_seed * 7919 + buffer * 104'729; }

  std::optional<int64_t> bad_index(uint32_t buffer) const;
  std::pair<int64_t, int64_t> integers_of(uint32_t buffer) const;
  void spoil(uint32_t buffer, std::span<uint8_t> bytes) const;

  const KernelSpec* m_spec;
  uint64_t m_seed;
  Situation m_situation;
  IndexWindow m_window;
  std::vector<SamplePool::Kind> m_kinds;  // per buffer
  std::vector<int64_t> m_index_bound;     // per buffer; 0 where it addresses nothing
  std::vector<int64_t> m_ends_of;         // per buffer; how many elements its groups are of, 0 where it holds no ends
};

/// Fills with random floats of the half-open interval.
void fill_with_positions(DType dtype, std::span<uint8_t> bytes, uint64_t seed, std::pair<double, double> interval);

/// Bytes that a kernel seldom writes: a NaN that no operation produces for floats, a rare pattern for integers. A right
/// element may equal one of the two poisons, never both.
enum class Poison : uint8_t { first, second };
void poison(DType dtype, std::span<uint8_t> bytes, Poison which = Poison::first);
/// The first poisoned element, or -1. Reads at memory speed.
int64_t find_poison(DType dtype, std::span<const uint8_t> bytes, Poison which = Poison::first);

}  // namespace kiln
