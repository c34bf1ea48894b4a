#pragma once

#include "base/expected.h"
#include "base/fd.h"

namespace kiln {

/// What a process remembers of a daemon it could not have: the first caller waits for it, those after are told at once,
/// until it is time to look again. Each failure doubles that time.
/// Threading: any thread at once.
class FailureMemory {
 public:
  enum class Kind : uint8_t {
    absent,  // there was none and none could be started: whether somebody else did costs nothing to look
    silent,  // there is one, and it does not answer: looking costs the wait again
  };

  /// Why there is no daemon, while that is not to be tried again; ok otherwise.
  Status in_force() const;
  bool is_silent() const;
  void note(Kind kind, const Status& status);
  void forget();

 private:
  // process_mutex() guards all.
  Status m_status;
  Kind m_kind = Kind::absent;
  Deadline m_until{};
  uint64_t m_next_ms = 0;
};

}  // namespace kiln
