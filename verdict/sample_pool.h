#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "base/expected.h"
#include "base/fd.h"
#include "frontend/ir/dtype.h"
#include "verdict/repeated_mapping.h"

namespace kiln {

/// Random floats for kernels under test, in a sealed memfd. A large input is this pool mapped again and again, page
/// after page: it costs address space, stays in a private cache, and nobody can write it.
///
/// The number of pages is a prime: a shift by anything less than the pool, a row or a tile, shows.
class SamplePool {
 public:
  static constexpr uint64_t k_bytes = 1'021 * 4'096;

  enum class Kind : uint8_t {
    /// Nearly normal around 0 with variance 1 (so sums cancel and signs matter), in ±3.5.
    even,
    /// A sixteenth of that, 1/√K for K = 256: for one factor of products, so that sums come out where an epilogue's functions
    /// bend, and products of products neither fade nor explode.
    small,
    /// Besides those zeros, numbers near the least normal one, and numbers up to 2^12 times as large.
    uneven,
    /// Besides those infinities and NaNs: one in 2^7, 2^11, 2^15, 2^19 elements, so that most sums of so many stay finite.
    special_7,
    special_11,
    special_15,
    special_19
  };
  static constexpr size_t k_kinds = 7;

  /// The pool of a floating dtype: made when first asked for, kept for the life of the process and of its forks.
  /// Thread-safe. Errors: resource_exhausted.
  static Expected<const SamplePool*> of(DType dtype, Kind kind = Kind::even);

  int fd() const { return m_fd.get(); }
  std::span<const uint8_t> bytes() const { return m_bytes; }

 private:
  static Expected<SamplePool> make(DType dtype, Kind kind, std::span<const uint8_t> even);

  UniqueFd m_fd;
  std::span<const uint8_t> m_bytes;
};

/// Bytes of a pool from `start_bytes` on, beginning again at its end.
struct SampleSource {
  const SamplePool* pool = nullptr;
  uint64_t start_bytes = 0;  // below SamplePool::k_bytes
};

/// `size_bytes` bytes of a source, read-only: address space, no memory. Owns the mapping.
class SampleMapping {
 public:
  /// Errors: resource_exhausted.
  static Expected<SampleMapping> create(const SampleSource& source, uint64_t size_bytes);
  SampleMapping() = default;
  SampleMapping(SampleMapping&& other) noexcept
      : m_mapping(std::exchange(other.m_mapping, {})), m_size_bytes(other.m_size_bytes) {}
  SampleMapping& operator=(SampleMapping&& other) noexcept {
    std::swap(m_mapping, other.m_mapping);
    std::swap(m_size_bytes, other.m_size_bytes);
    return *this;
  }
  ~SampleMapping() { kiln_unmap_repeated(&m_mapping); }

  std::span<uint8_t> bytes() const { return {m_mapping.first, m_size_bytes}; }

 private:
  kiln_repeated_mapping m_mapping{};
  uint64_t m_size_bytes = 0;
};

}  // namespace kiln
