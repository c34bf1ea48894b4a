#include "tests/stand_ins/level_zero/matrix_functions.h"

namespace kiln::stand_in {

const char* const k_matrix_functions = R"(
float kiln_f16(ushort bits) { return vload_half(0, (const half*)&bits); }
float kiln_bf16(ushort bits) { return as_float((uint)bits << 16); }

// Number k of the 16 that a row of A, or a column of B, has: two to an integer, the first in the low half.
ushort kiln_in_pairs(const int* pairs, uint k) { return (ushort)((uint)pairs[k / 2] >> (16 * (k % 2))); }

#define KILN_FUNCTIONS(name, value)                                                       \
  __attribute__((overloadable)) float8 name(int8 a, int8 b, float8 sum) {                 \
    if (get_sub_group_size() != 8) return (float8)NAN;                                    \
    for (uint row = 0; row < 8; ++row) {                                                  \
      int pairs[8];                                                                       \
      for (uint i = 0; i < 8; ++i) pairs[i] = intel_sub_group_shuffle(((int*)&a)[row], i); \
      for (uint k = 0; k < 16; ++k) {                                                     \
        const float x = value(kiln_in_pairs(pairs, k));                                   \
        const float y = value(kiln_in_pairs((const int*)&b, k));                          \
        ((float*)&sum)[row] = fma(x, y, ((float*)&sum)[row]);                             \
      }                                                                                   \
    }                                                                                     \
    return sum;                                                                           \
  }                                                                                       \
  __attribute__((overloadable)) float8 name(short8 a, int8 b, float8 sum) {               \
    if (get_sub_group_size() != 16) return (float8)NAN;                                   \
    for (uint row = 0; row < 8; ++row) {                                                  \
      for (uint k = 0; k < 16; ++k) {                                                     \
        const int of_row = intel_sub_group_shuffle((int)((short*)&a)[row], k);            \
        const float x = value((ushort)of_row);                                            \
        const float y = value(kiln_in_pairs((const int*)&b, k));                          \
        ((float*)&sum)[row] = fma(x, y, ((float*)&sum)[row]);                             \
      }                                                                                   \
    }                                                                                     \
    return sum;                                                                           \
  }

KILN_FUNCTIONS(intel_sub_group_f16_f16_matrix_mad_k16, kiln_f16)
KILN_FUNCTIONS(intel_sub_group_bf16_bf16_matrix_mad_k16, kiln_bf16)
)";

}  // namespace kiln::stand_in
