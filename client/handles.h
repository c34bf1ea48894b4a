#pragma once

#include <exception>
#include <new>
#include <string>

#include "base/status.h"
#include "client/include/kiln.h"

/// What the sources of the C ABI share.
struct kiln_error {
  kiln::Status status;
};
struct kiln_bytes {
  std::string data;
};

namespace kiln {

inline kiln_error* to_error(Status status) { return status.ok() ? nullptr : new kiln_error{std::move(status)}; }

/// Runs `body` (returning Status); whatever it throws becomes an error.
template <typename Body>
kiln_error* guarded(Body body) noexcept {
  try {
    return to_error(body());
  } catch (const std::bad_alloc&) {
    return to_error({StatusCode::resource_exhausted, "out of memory"});
  } catch (const std::exception& exception) {
    return to_error({StatusCode::internal, exception.what()});
  }
}

}  // namespace kiln
