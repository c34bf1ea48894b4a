#pragma once

#include <cstdint>

#include "base/fd.h"

namespace kiln {

/// Held while something is timed, so that nobody on this machine times or compiles beside it: one file in shared memory,
/// for all users and caches. Where the file cannot be had, or nobody lets go of it within limits::k_machine_lock_ms, the
/// lock is none: work goes on beside each other.
///
/// Threading: any thread; each call is a lock of its own, held as long as what it returns.
class MachineLock {
 public:
  /// Waits for a while until nobody else holds any.
  static MachineLock exclusive();
  /// Waits for a while until nobody holds it alone: for whoever would disturb a measurement.
  static MachineLock shared();
  /// Makes the file where there is none, for processes that may not.
  static void make();

 private:
  explicit MachineLock(UniqueFd file) : m_file(std::move(file)) {}
  static MachineLock take(int operation);

  UniqueFd m_file;
};

}  // namespace kiln
