#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "backends/machine.h"

namespace kiln::cpu {

/// What an x86-64 processor can do, as far as kernels care. The numbers are bits of Image::features and on
/// disk: append, never renumber.
enum class Feature : uint8_t {
  sse4_2 = 0,  // with SSSE3, SSE4.1, POPCNT, CMPXCHG16B: the baseline
  avx2 = 1,    // with AVX, BMI1, BMI2, LZCNT, MOVBE
  fma = 2,
  f16c = 3,
  avx512 = 4,  // F, CD, BW, DQ, VL
  avx512_bf16 = 5,
  avx512_fp16 = 6,
  amx_tile = 7,
  amx_bf16 = 8,
  amx_int8 = 9,
  avx512_vnni = 10,
};

inline constexpr uint64_t bit(Feature feature) { return uint64_t{1} << static_cast<uint8_t>(feature); }

/// Elements up to so many apart come faster out of contiguous loads than by a gather.
inline constexpr int64_t k_most_interleaved = 4;

/// A named, explicit set of features that code is compiled for. The name is Target::name.
struct CpuTarget {
  std::string_view name;
  uint64_t features = 0;            // Feature bits
  int vector_bytes = 16;            // of the widest vectors code for it uses
  std::string_view llvm_cpu;        // whose scheduling model is used; its features are listed explicitly as well
  uint64_t second_level_bytes = 0;  // a core's second-level cache, on usual processors of the target

  bool has(Feature feature) const { return (features & bit(feature)) != 0; }
  /// Whether elements that are `stride` apart, some of them masked, are shuffled out of contiguous loads.
  bool interleaves(int64_t stride, int64_t element_bytes) const {
    const bool has_masks = has(Feature::avx512) || (has(Feature::avx2) && element_bytes >= 4);
    return has_masks && stride > 1 && stride <= k_most_interleaved;
  }
};

/// The ladder: every target there is, best first. A host runs the first whose features it has, and all below.
std::span<const CpuTarget> ladder();
/// Null for a name that is not on the ladder.
const CpuTarget* find_target(std::string_view name);

/// What schedules for the target assume where no processor has been asked.
Machine default_machine(const CpuTarget& target);

/// The features of this host that the operating system has enabled, taken from the C library's table (CPUID
/// traps in guests: 8 µs each). The first call asks the system for the use of AMX's tiles, where there are any: without its
/// permission they count as missing. KILN_CPU_FEATURES=<target name>, read once, masks them to that target's: how
/// code for lesser hosts is tested on a better one. A name that is not on the ladder masks everything.
uint64_t host_features();

/// Those of `active` features that may be used: `ask`, which says whether the system permits AMX's tiles, is called once
/// where they are among them, and never where not.
uint64_t permitted(uint64_t active, const std::function<bool()>& ask);

/// "sse4.2 avx2 fma"
std::string describe(uint64_t features);

}  // namespace kiln::cpu
