#include "backends/host_loops.h"

#include <cstring>

#include "backends/cpu/features.h"

// Twelve sums hide the latency of a multiply-add on every processor with two units for it, and leave two operands of the
// sixteen registers of AVX2. The operands are ones, so that sums stay finite numbers.
#define KILN_TWELVE(line)                                                                                        \
  line("0") line("1") line("2") line("3") line("4") line("5") line("6") line("7") line("8") line("9") line("10") \
      line("11")
#define KILN_CLEAR(number) "vxorps %%xmm" number ", %%xmm" number ", %%xmm" number "\n\t"
#define KILN_MULTIPLY_LOOP(name, line, registers, ones)                                                           \
  void name(uint64_t rounds) {                                                                                    \
    asm volatile("vmovd %1, %%xmm12\n\tvpbroadcastd %%xmm12, %%" registers                                        \
                 "12\n\t" KILN_TWELVE(KILN_CLEAR) "1:\n\t" KILN_TWELVE(line) "dec %0\n\tjnz 1b\n\tvzeroupper"     \
                 : "+r"(rounds)                                                                                   \
                 : "r"(ones)                                                                                      \
                 : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                   "xmm11", "xmm12");                                                                             \
  }

namespace kiln {
namespace {

#define KILN_LINE(number) "vfmadd231ps %%ymm12, %%ymm12, %%ymm" number "\n\t"
KILN_MULTIPLY_LOOP(f32_by_256_bits, KILN_LINE, "ymm", 0x3f800000u)
#undef KILN_LINE
#define KILN_LINE(number) "vfmadd231ps %%zmm12, %%zmm12, %%zmm" number "\n\t"
KILN_MULTIPLY_LOOP(f32_by_512_bits, KILN_LINE, "zmm", 0x3f800000u)
#undef KILN_LINE
#define KILN_LINE(number) "vdpbf16ps %%zmm12, %%zmm12, %%zmm" number "\n\t"
KILN_MULTIPLY_LOOP(bf16_by_512_bits, KILN_LINE, "zmm", 0x3f803f80u)
#undef KILN_LINE

constexpr double k_sums = 12;

bool host_has(cpu::Feature feature) { return (cpu::host_features() & bit(feature)) != 0; }

/// `blocks` > 0 times 256 bytes.
#define KILN_READ_LOOP(name, loads)                                              \
  void name(const std::byte* from, uint64_t blocks) {                            \
    asm volatile("1:\n\t" loads "add $256, %0\n\tdec %1\n\tjnz 1b\n\tvzeroupper" \
                 : "+r"(from), "+r"(blocks)                                      \
                 :                                                               \
                 : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3");              \
  }
#define KILN_LOAD(offset, target) "vmovups " offset "(%0), %%" target "\n\t"
KILN_READ_LOOP(read_by_512_bits,
               KILN_LOAD("", "zmm0") KILN_LOAD("64", "zmm1") KILN_LOAD("128", "zmm2") KILN_LOAD("192", "zmm3"))
KILN_READ_LOOP(read_by_256_bits,
               KILN_LOAD("", "ymm0") KILN_LOAD("32", "ymm1") KILN_LOAD("64", "ymm2") KILN_LOAD("96", "ymm3")
                   KILN_LOAD("128", "ymm0") KILN_LOAD("160", "ymm1") KILN_LOAD("192", "ymm2") KILN_LOAD("224", "ymm3"))

}  // namespace

std::vector<HostLoop> host_loops() {
  std::vector<HostLoop> loops;
  if (host_has(cpu::Feature::avx512)) {
    loops.push_back({"f32", 2 * 16 * k_sums, f32_by_512_bits});
  } else if (host_has(cpu::Feature::avx2) && host_has(cpu::Feature::fma)) {
    loops.push_back({"f32", 2 * 8 * k_sums, f32_by_256_bits});
  }
  if (host_has(cpu::Feature::avx512_bf16)) loops.push_back({"bf16", 2 * 32 * k_sums, bf16_by_512_bits});
  return loops;
}

void read_memory(std::span<const std::byte> memory) {
  const uint64_t blocks = memory.size() / 256;
  if (blocks == 0) return;
  if (host_has(cpu::Feature::avx512)) {
    read_by_512_bits(memory.data(), blocks);
  } else if (host_has(cpu::Feature::avx2)) {
    read_by_256_bits(memory.data(), blocks);
  } else {
    volatile uint64_t read = 0;
    for (size_t i = 0; i < blocks * 256; i += sizeof read)
      std::memcpy(const_cast<uint64_t*>(&read), &memory[i], sizeof read);
  }
}

}  // namespace kiln
