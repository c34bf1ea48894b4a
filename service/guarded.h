#pragma once

#include <exception>

#include "base/status.h"

namespace kiln {

/// body(), with what a library throws as an error: one entry's trouble must not end the daemon.
template <typename Body>
auto guarded(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& problem) {
    return Status(StatusCode::internal, problem.what());
  }
}

}  // namespace kiln
