#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace kiln {

/// a / b rounded up, for a ≥ 0 and b > 0.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The least multiple of `unit` > 0 that holds `value` ≥ 0.
template <std::integral T>
constexpr T round_up(T value, std::type_identity_t<T> unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace kiln
