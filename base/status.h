#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace kiln {

/// The canonical error codes (Abseil's), since they cross the socket, the C ABI and Python unchanged.
enum class StatusCode : uint8_t {
  ok = 0,
  cancelled = 1,
  unknown = 2,
  invalid_argument = 3,
  deadline_exceeded = 4,
  not_found = 5,
  already_exists = 6,
  permission_denied = 7,
  resource_exhausted = 8,
  failed_precondition = 9,
  aborted = 10,
  out_of_range = 11,
  unimplemented = 12,
  internal = 13,
  unavailable = 14,
  data_loss = 15,
};

/// "invalid_argument" and so on; "unknown" for a value outside the enum.
std::string_view to_string(StatusCode code);

/// What the world did: a code, and a sentence that starts lower case, has no full stop and carries the
/// numbers. A broken invariant is not a Status: it asserts.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : m_code(code), m_message(std::move(message)) {}

  bool ok() const { return m_code == StatusCode::ok; }
  StatusCode code() const { return m_code; }
  const std::string& message() const { return m_message; }
  /// The op of the caller's graph that could not be had, by its name in the op table; empty when the failure is not one
  /// op's. For whoever goes on without it; people read the message.
  const std::string& op() const { return m_op; }

  /// "invalid_argument: add: operand 1 is i64[3], expected f32"
  std::string to_string() const;

  /// The same, with "context: " before the message.
  Status with_context(std::string_view context) const;
  /// The same, of that op.
  Status with_op(std::string op) const;

 private:
  StatusCode m_code = StatusCode::ok;
  std::string m_message;
  std::string m_op;
};

/// error(StatusCode::invalid_argument, "{}: operand {} is {}", op, index, type)
template <typename... Args>
Status error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return {code, fmt::format(format, std::forward<Args>(args)...)};
}

template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return error(StatusCode::invalid_argument, format, std::forward<Args>(args)...);
}

}  // namespace kiln

/// Returns from the enclosing function when `expression` (a Status) is not ok.
#define KILN_RETURN_IF_ERROR(expression)                                \
  do {                                                                  \
    if (::kiln::Status kiln_status = (expression); !kiln_status.ok()) { \
      return kiln_status;                                               \
    }                                                                   \
  } while (false)
