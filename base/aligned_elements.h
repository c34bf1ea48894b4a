#pragma once

#include <cstdint>
#include <type_traits>

namespace kiln {

/// Whether the scalars or structs of a flatbuffers::Vector from outside may be read in place. flatbuffers::Verifier checks where a
/// vector's length lies, not whether the 8-byte elements behind it are aligned. nullptr (an absent list) is.
template <typename List>
bool has_aligned_elements(const List* list) {
  using Element = std::remove_cv_t<std::remove_pointer_t<std::remove_cvref_t<decltype(list->Get(0))>>>;
  static_assert(std::is_trivially_copyable_v<Element>);
  return list == nullptr || list->size() == 0 || reinterpret_cast<uintptr_t>(list->Data()) % alignof(Element) == 0;
}

}  // namespace kiln
