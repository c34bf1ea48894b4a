#include "frontend/ir/validate.h"

#include "base/limits.h"

namespace kiln {
namespace {

template <typename... Args>
Status exhausted(fmt::format_string<Args...> format, Args&&... args) {
  return error(StatusCode::resource_exhausted, format, std::forward<Args>(args)...);
}

/// Adds the size of the constant extents; zero extents and symbols (at least 0, bound at the call) end the
/// question.
Status validate_elements(const Shape& shape) {
  int64_t elements = 1;
  for (const Dim& dim : shape) {
    if (!dim.is_constant() || dim.constant() == 0) return {};
  }
  for (const Dim& dim : shape) {
    const bool overflow = __builtin_mul_overflow(elements, dim.constant(), &elements);
    if (overflow || elements > limits::k_tensor_elements) {
      return exhausted("tensor has more than {} elements", limits::k_tensor_elements);
    }
  }
  return {};
}

Status validate_extent(const Dim& dim, size_t symbol_count, std::string_view what) {
  KILN_RETURN_IF_ERROR(validate(dim, symbol_count));
  if (!dim.is_constant()) return {};
  if (dim.constant() < 0) return invalid_argument("{} is {}, expected at least 0", what, dim.constant());
  if (dim.constant() > limits::k_tensor_elements) {
    return exhausted("{} is {}, the limit is {}", what, dim.constant(), limits::k_tensor_elements);
  }
  return {};
}

}  // namespace

Status validate(const Dim& dim, size_t symbol_count) {
  if (dim.overflowed()) return exhausted("dim overflows: beyond 64 bits or {} terms", Dim::k_dim_terms);
  for (const Dim::Term& term : dim.terms()) {
    for (SymbolId id : term.symbols) {
      if (id >= symbol_count) return invalid_argument("dim names symbol {} of {}", id, symbol_count);
    }
  }
  return {};
}

Status validate_strides(const std::vector<Dim>& strides, const TensorType& type, size_t symbol_count) {
  if (strides.empty()) return {};
  if (strides.size() != type.rank()) {
    return invalid_argument("{} strides for rank {}", strides.size(), type.rank());
  }
  int64_t last_element = 0;
  for (size_t i = 0; i < strides.size(); ++i) {
    KILN_RETURN_IF_ERROR(validate_extent(strides[i], symbol_count, "stride"));
    if (!strides[i].is_constant() || !type.shape[i].is_constant() || type.shape[i].constant() == 0) continue;
    int64_t reach = 0;
    const bool overflow = __builtin_mul_overflow(strides[i].constant(), type.shape[i].constant() - 1, &reach) ||
                          __builtin_add_overflow(last_element, reach, &last_element);
    if (overflow || last_element >= limits::k_tensor_elements) {
      return exhausted("strides reach beyond {} elements", limits::k_tensor_elements);
    }
  }
  return {};
}

Status validate(const TensorType& type, size_t symbol_count) {
  if (type.rank() > limits::k_tensor_rank) {
    return exhausted("rank is {}, the limit is {}", type.rank(), limits::k_tensor_rank);
  }
  for (const Dim& dim : type.shape) KILN_RETURN_IF_ERROR(validate_extent(dim, symbol_count, "extent"));
  KILN_RETURN_IF_ERROR(validate_elements(type.shape));
  return validate_strides(type.strides, type, symbol_count);
}

}  // namespace kiln
