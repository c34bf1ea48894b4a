#include "base/status.h"

#include <array>

namespace kiln {

std::string_view to_string(StatusCode code) {
  static constexpr std::array<std::string_view, 16> k_names = {
      "ok",        "cancelled",      "unknown",           "invalid_argument",   "deadline_exceeded",
      "not_found", "already_exists", "permission_denied", "resource_exhausted", "failed_precondition",
      "aborted",   "out_of_range",   "unimplemented",     "internal",           "unavailable",
      "data_loss"};
  const auto index = static_cast<size_t>(code);
  return index < k_names.size() ? k_names[index] : "unknown";
}

std::string Status::to_string() const {
  return ok() ? "ok" : fmt::format("{}: {}", kiln::to_string(m_code), m_message);
}

Status Status::with_context(std::string_view context) const {
  return ok() ? *this : Status(m_code, fmt::format("{}: {}", context, m_message)).with_op(m_op);
}

Status Status::with_op(std::string op) const {
  Status status = *this;
  if (!ok()) status.m_op = std::move(op);
  return status;
}

}  // namespace kiln
