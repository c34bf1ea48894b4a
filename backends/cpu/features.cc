#include "backends/cpu/features.h"

#ifdef __clang__    // which knows C's name of bool in C alone; clang-tidy reads this file with it
#define _Bool bool  // NOLINT(bugprone-reserved-identifier)
#endif
#include <sys/platform/x86.h>

#include <array>
#include <cstdlib>

#include "backends/host_process.h"

namespace kiln::cpu {
namespace {

constexpr uint64_t k_v2 = bit(Feature::sse4_2);
constexpr uint64_t k_v3 = k_v2 | bit(Feature::avx2) | bit(Feature::fma) | bit(Feature::f16c);
constexpr uint64_t k_v4 = k_v3 | bit(Feature::avx512);
constexpr uint64_t k_v4_vnni = k_v4 | bit(Feature::avx512_vnni);
constexpr uint64_t k_v4_bf16 = k_v4_vnni | bit(Feature::avx512_bf16);
constexpr uint64_t k_v4_amx = k_v4_bf16 | bit(Feature::amx_tile) | bit(Feature::amx_bf16) | bit(Feature::amx_int8);

// A step is added here and nowhere else, with the host test of its features below.
constexpr std::array<CpuTarget, 6> k_ladder{{
    {"x86-64-v4-amx", k_v4_amx, 64, "x86-64-v4", 2 << 20},    // since Sapphire Rapids
    {"x86-64-v4-bf16", k_v4_bf16, 64, "x86-64-v4", 2 << 20},  // since Zen 4
    {"x86-64-v4-vnni", k_v4_vnni, 64, "x86-64-v4", 1 << 20},  // since Cascade Lake
    {"x86-64-v4", k_v4, 64, "x86-64-v4", 2 << 20},
    {"x86-64-v3", k_v3, 32, "x86-64-v3", 512 << 10},
    {"x86-64-v2", k_v2, 16, "x86-64-v2", 512 << 10},
}};

/// What CPUID and XCR0 say.
uint64_t active_features() {
  uint64_t features = 0;
  const auto add = [&](Feature feature, bool active) { features |= active ? bit(feature) : 0; };
  add(Feature::sse4_2, CPU_FEATURE_ACTIVE(SSE4_2) && CPU_FEATURE_ACTIVE(SSE4_1) && CPU_FEATURE_ACTIVE(SSSE3) &&
                           CPU_FEATURE_ACTIVE(POPCNT) && CPU_FEATURE_ACTIVE(CMPXCHG16B));
  add(Feature::avx2, CPU_FEATURE_ACTIVE(AVX2) && CPU_FEATURE_ACTIVE(AVX) && CPU_FEATURE_ACTIVE(BMI1) &&
                         CPU_FEATURE_ACTIVE(BMI2) && CPU_FEATURE_ACTIVE(LZCNT) && CPU_FEATURE_ACTIVE(MOVBE));
  add(Feature::fma, CPU_FEATURE_ACTIVE(FMA));
  add(Feature::f16c, CPU_FEATURE_ACTIVE(F16C));
  add(Feature::avx512, CPU_FEATURE_ACTIVE(AVX512F) && CPU_FEATURE_ACTIVE(AVX512CD) && CPU_FEATURE_ACTIVE(AVX512BW) &&
                           CPU_FEATURE_ACTIVE(AVX512DQ) && CPU_FEATURE_ACTIVE(AVX512VL));
  add(Feature::avx512_bf16, CPU_FEATURE_ACTIVE(AVX512_BF16));
  add(Feature::avx512_fp16, CPU_FEATURE_ACTIVE(AVX512_FP16));
  add(Feature::avx512_vnni, CPU_FEATURE_ACTIVE(AVX512_VNNI));
  add(Feature::amx_tile, CPU_FEATURE_ACTIVE(AMX_TILE));
  add(Feature::amx_bf16, CPU_FEATURE_ACTIVE(AMX_BF16));
  add(Feature::amx_int8, CPU_FEATURE_ACTIVE(AMX_INT8));
  return features;
}

uint64_t masked(uint64_t features) {
  const char* name = std::getenv("KILN_CPU_FEATURES");
  if (name == nullptr || *name == '\0') return features;
  const CpuTarget* target = find_target(name);
  return target == nullptr ? 0 : features & target->features;
}

constexpr std::array<std::string_view, 11> k_names{"sse4.2",   "avx2",        "fma",         "f16c",
                                                   "avx512",   "avx512_bf16", "avx512_fp16", "amx_tile",
                                                   "amx_bf16", "amx_int8",    "avx512_vnni"};

}  // namespace

std::span<const CpuTarget> ladder() { return k_ladder; }

const CpuTarget* find_target(std::string_view name) {
  for (const CpuTarget& target : k_ladder) {
    if (target.name == name) return &target;
  }
  return nullptr;
}

Machine default_machine(const CpuTarget& target) {
  return {.model = "a processor of " + std::string(target.name), .second_level_bytes = target.second_level_bytes};
}

uint64_t host_features() {
  static const uint64_t features = permitted(masked(active_features()), kiln_ask_for_kernel_state);
  return features;
}

uint64_t permitted(uint64_t active, const std::function<bool()>& ask) {
  constexpr uint64_t k_of_tiles = bit(Feature::amx_tile) | bit(Feature::amx_bf16) | bit(Feature::amx_int8);
  const bool has_tiles = (active & bit(Feature::amx_tile)) != 0;
  return has_tiles && ask() ? active : active & ~k_of_tiles;
}

std::string describe(uint64_t features) {
  std::string text;
  for (size_t i = 0; i < k_names.size(); ++i) {
    if ((features >> i & 1) == 0) continue;
    if (!text.empty()) text += ' ';
    text += k_names[i];
  }
  return text;
}

}  // namespace kiln::cpu
