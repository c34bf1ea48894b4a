#include "autotune/machine_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <chrono>
#include <thread>

#include "base/limits.h"

namespace kiln {

namespace {

constexpr const char* k_path = "/dev/shm/kiln-measuring.lock";

}  // namespace

void MachineLock::make() { UniqueFd(open(k_path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0444)); }
MachineLock MachineLock::exclusive() { return take(LOCK_EX); }
MachineLock MachineLock::shared() { return take(LOCK_SH); }

MachineLock MachineLock::take(int operation) {
  UniqueFd file(open(k_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) {
    make();
    file.reset(open(k_path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  }
  const Deadline end = deadline_in(limits::k_machine_lock_ms);
  while (file && flock(file.get(), operation | LOCK_NB) != 0 && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return MachineLock(std::move(file));
}

}  // namespace kiln
