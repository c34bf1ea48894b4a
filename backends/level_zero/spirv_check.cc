#include "backends/level_zero/spirv_check.h"

#include <cstring>
#include <string_view>

#include "backends/level_zero/target.h"

namespace kiln::level_zero {
namespace {

constexpr uint32_t k_magic = 0x07230203;
constexpr uint32_t k_max_version = 0x00010400;
constexpr size_t k_header_words = 5;
constexpr uint32_t k_op_entry_point = 15;
constexpr size_t k_entry_name_word = 3;  // after the instruction's own, the model and the function

}  // namespace

Status check_spirv_form(std::span<const uint8_t> bytes) {
  const auto word_at = [&](size_t index) {
    uint32_t word = 0;
    std::memcpy(&word, bytes.data() + index * 4, 4);
    return word;
  };
  const size_t words = bytes.size() / 4;
  if (bytes.size() % 4 != 0 || words < k_header_words || word_at(0) != k_magic) {
    return error(StatusCode::data_loss, "spir-v: {} bytes are no module", bytes.size());
  }
  if (word_at(1) > k_max_version) return error(StatusCode::data_loss, "spir-v: version word {:#x}", word_at(1));
  bool has_kernel = false;
  for (size_t at = k_header_words; at < words;) {
    const size_t length = word_at(at) >> 16;
    if (length == 0 || length > words - at) {
      return error(StatusCode::data_loss, "spir-v: the instruction at word {} of {} leaves the module", at, words);
    }
    if ((word_at(at) & 0xffff) == k_op_entry_point && length > k_entry_name_word) {
      const auto* name = reinterpret_cast<const char*>(bytes.data() + (at + k_entry_name_word) * 4);
      const std::string_view text(name, strnlen(name, (length - k_entry_name_word) * 4));
      has_kernel = has_kernel || text == k_kernel_name;
    }
    at += length;
  }
  if (!has_kernel) return error(StatusCode::data_loss, "spir-v: no entry point {}", k_kernel_name);
  return {};
}

}  // namespace kiln::level_zero
