#include "jit/run/sized_numbers.h"

#include <cstring>
#include <optional>

#include "base/aligned_elements.h"
#include "base/flatbuffer_values.h"
#include "jit/run/data_flow.h"
#include "jit/run/program_generated.h"

namespace kiln {

namespace {

using Numbers = flatbuffers::Vector<flatbuffers::Offset<fb::SizedNumber>>;

/// Nothing where it does not fit 64 bits, or names a symbol without a size.
std::optional<int64_t> value_of(const fb::SizedNumber& number, std::span<const int64_t> sizes) {
  int64_t sum = 0;
  for (uint32_t t = 0; t < size_of_list(number.terms()); ++t) {
    const fb::Term& term = *number.terms()->Get(t);
    if (!has_aligned_elements(term.symbols())) return std::nullopt;
    int64_t product = term.coefficient();
    for (uint32_t s = 0; s < size_of_list(term.symbols()); ++s) {
      const uint32_t symbol = term.symbols()->Get(s);
      if (symbol >= sizes.size() || __builtin_mul_overflow(product, sizes[symbol], &product)) return std::nullopt;
    }
    if (__builtin_add_overflow(sum, product, &sum)) return std::nullopt;
  }
  return sum;
}

Expected<std::vector<uint8_t>> resized(std::span<const uint8_t> bytes, const Numbers* numbers,
                                       std::span<const int64_t> sizes) {
  std::vector<uint8_t> copy(bytes.begin(), bytes.end());
  for (uint32_t i = 0; i < size_of_list(numbers); ++i) {
    const fb::SizedNumber& number = *numbers->Get(i);
    const std::optional<int64_t> value = value_of(number, sizes);
    if (!value || number.before_end() < sizeof(int64_t) || number.before_end() > copy.size()) {
      return damaged("a number that sizes do not say");
    }
    std::memcpy(copy.data() + (copy.size() - number.before_end()), &*value, sizeof(int64_t));
  }
  return copy;
}

}  // namespace

Expected<std::vector<uint8_t>> resized_program(std::span<const uint8_t> program, std::span<const int64_t> sizes) {
  const auto* stored = verified<fb::Program>(program);
  if (stored == nullptr || !has_aligned_elements(stored->ranges())) return damaged("not a program");
  if (size_of_list(stored->ranges()) != sizes.size()) {
    return error(StatusCode::failed_precondition, "a program of {} symbols, given {} sizes",
                 size_of_list(stored->ranges()), sizes.size());
  }
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    const fb::SizeRange& range = *stored->ranges()->Get(i);
    if (sizes[i] < range.first() || sizes[i] > range.last()) {
      return error(StatusCode::failed_precondition, "symbol {} is {}, the program serves {} to {}", i, sizes[i],
                   range.first(), range.last());
    }
  }
  return resized(program, stored->numbers(), sizes);
}

Expected<std::vector<uint8_t>> resized_plan(std::span<const uint8_t> plan, std::span<const int64_t> sizes) {
  const auto* stored = verified<fb::Plan>(plan);
  if (stored == nullptr) return damaged("not a plan");
  return resized(plan, stored->numbers(), sizes);
}

}  // namespace kiln
