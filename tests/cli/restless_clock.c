// Preloaded into processes: a wall clock that is set again and again, to some time within ten days of the true one, while
// clocks that nobody sets go on.

#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static int64_t offset_s(void) {
  static atomic_uint calls;
  const uint32_t mixed = (atomic_fetch_add(&calls, 1) + 1) * 2654435761u;
  return (int64_t)(mixed >> 8) % (20 * 86400) - 10 * 86400;
}

EXPORT int clock_gettime(clockid_t clock, struct timespec* now) {
  const int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += offset_s();
  return result;
}

EXPORT int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  const int result = (int)syscall(SYS_gettimeofday, now, zone);
  if (result == 0 && now) now->tv_sec += offset_s();
  return result;
}

EXPORT time_t time(time_t* now) {
  struct timespec both;
  clock_gettime(CLOCK_REALTIME, &both);
  if (now) *now = both.tv_sec;
  return both.tv_sec;
}
