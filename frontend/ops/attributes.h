#pragma once

#include <cassert>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/ir/graph.h"
#include "frontend/ops/op.h"

namespace kiln {

/// Reading attributes of a node that GraphBuilder accepted: present, and of the declared type. Asserts otherwise.
template <typename T>
const T& attribute(const Attributes& attributes, std::string_view name) {
  const Attribute* found = find_attribute(attributes, name);
  assert(found != nullptr && std::holds_alternative<T>(*found) && "attribute was checked by GraphBuilder");
  return std::get<T>(*found);
}

inline bool has_attribute(const Attributes& attributes, std::string_view name) {
  return find_attribute(attributes, name) != nullptr;
}
inline int64_t integer_of(const Attributes& a, std::string_view name) { return attribute<int64_t>(a, name); }
inline double number_of(const Attributes& a, std::string_view name) { return attribute<double>(a, name); }
inline bool boolean_of(const Attributes& a, std::string_view name) { return attribute<bool>(a, name); }
inline DType dtype_of(const Attributes& a, std::string_view name) { return attribute<DType>(a, name); }
inline const std::string& string_of(const Attributes& a, std::string_view name) {
  return attribute<std::string>(a, name);
}
inline const std::vector<int64_t>& integers_of(const Attributes& a, std::string_view name) {
  return attribute<std::vector<int64_t>>(a, name);
}
inline const Shape& shape_of(const Attributes& a, std::string_view name) { return attribute<Shape>(a, name); }

/// The Dim of an attribute of type extent.
inline Dim extent_of(const Attributes& attributes, std::string_view name) {
  const Attribute* found = find_attribute(attributes, name);
  assert(found != nullptr && "attribute was checked by GraphBuilder");
  if (const auto* constant = std::get_if<int64_t>(found)) return *constant;
  return std::get<Shape>(*found).front();
}

/// The stored form of an extent.
inline Attribute extent_attribute(const Dim& dim) {
  if (dim.is_constant()) return dim.constant();
  return Shape{dim};
}

/// Declarations for rows.
inline AttributeDef required(std::string_view name, AttributeType type) { return {name, type, true, std::nullopt}; }
inline AttributeDef optional(std::string_view name, AttributeType type) { return {name, type, false, std::nullopt}; }
inline AttributeDef fallback(std::string_view name, AttributeType type, Attribute value) {
  return {name, type, false, std::move(value)};
}

}  // namespace kiln
