#pragma once

#include "base/status.h"

namespace kiln::cli {

/// What the program leaves with. Scripts rely on the numbers: docs/cli.md.
enum class ExitCode : int {
  ok = 0,
  failure = 1,
  usage = 2,               // arguments or configuration
  daemon_unreachable = 3,  // not running, turned off, or not to be started
  corrupt_found = 4,
  partial = 5,        // some of several things were done
  short_of_hits = 6,  // a pack lacks something that was expected of it
};

/// What a command that ends with this error leaves with.
inline ExitCode exit_code_of(const Status& status) {
  switch (status.code()) {
    case StatusCode::ok:
      return ExitCode::ok;
    case StatusCode::unavailable:
      return ExitCode::daemon_unreachable;
    case StatusCode::data_loss:
      return ExitCode::corrupt_found;
    default:
      return ExitCode::failure;
  }
}

}  // namespace kiln::cli
