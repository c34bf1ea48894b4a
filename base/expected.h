#pragma once

#include <cassert>
#include <optional>
#include <utility>

#include "base/status.h"

namespace kiln {

/// A value, or the Status that says why there is none. Reading the value of an error asserts.
template <typename T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : m_value(std::move(value)) {}                                   // NOLINT: implicit by intent
  Expected(Status status) : m_status(std::move(status)) { assert(!m_status.ok()); }  // NOLINT

  bool ok() const { return m_value.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return m_status; }

  T& value() & {
    assert(ok());
    return *m_value;
  }
  const T& value() const& {
    assert(ok());
    return *m_value;
  }
  T&& value() && {
    assert(ok());
    return std::move(*m_value);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status m_status;
  std::optional<T> m_value;
};

}  // namespace kiln

#define KILN_CONCAT_INNER(a, b) a##b
#define KILN_CONCAT(a, b) KILN_CONCAT_INNER(a, b)

/// KILN_ASSIGN_OR_RETURN(auto graph, parse_text(text)); returns the Status from the enclosing function on
/// error.
#define KILN_ASSIGN_OR_RETURN(target, expression) \
  KILN_ASSIGN_OR_RETURN_INNER(KILN_CONCAT(kiln_expected_, __LINE__), target, expression)
#define KILN_ASSIGN_OR_RETURN_INNER(temporary, target, expression) \
  auto temporary = (expression);                                   \
  if (!temporary.ok()) return temporary.status();                  \
  target = std::move(temporary).value()
