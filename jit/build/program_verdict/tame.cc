#include "jit/build/program_verdict/tame.h"

#include <cstddef>

#include "frontend/ops/tensor.h"

namespace kiln {

namespace {

/// Replaces numbers that are not finite, or so large that products of them are not. True when there were any.
template <typename Word>
bool tame(DType dtype, std::span<uint8_t> bytes, Word exponent, Word limit) {
  const std::span words(reinterpret_cast<Word*>(bytes.data()), bytes.size() / sizeof(Word));
  constexpr size_t k_block = 2'048;  // blocks of constant length without an early exit: the compiler makes vector code
  Word found = 0;
  size_t begin = 0;
  for (; words.size() - begin >= k_block; begin += k_block) {
    for (size_t i = 0; i < k_block; ++i) found |= static_cast<Word>((words[begin + i] & exponent) >= limit);
  }
  for (const Word word : words.subspan(begin)) found |= static_cast<Word>((word & exponent) >= limit);
  if (found == 0) return false;
  Word replacement = 0;
  store_element(dtype, reinterpret_cast<std::byte*>(&replacement), 0, k_tame);
  for (Word& word : words) {
    if ((word & exponent) >= limit) word = replacement;
  }
  return true;
}

}  // namespace

bool tame(DType dtype, std::span<uint8_t> bytes) {
  switch (dtype) {
    case DType::f16:
      return tame<uint16_t>(dtype, bytes, 0x7c00, 0x7c00);
    case DType::bf16:
      return tame<uint16_t>(dtype, bytes, 0x7f80, (127 + 40) << 7);
    case DType::f32:
      return tame<uint32_t>(dtype, bytes, 0x7f800000, (127 + 40) << 23);
    case DType::f64:
      return tame<uint64_t>(dtype, bytes, 0x7ff0000000000000, uint64_t{1023 + 40} << 52);
    default:
      return false;
  }
}

}  // namespace kiln
