#include "base/process_mutex.h"

#include <pthread.h>

#include <atomic>

namespace kiln {
namespace {

std::atomic<uint32_t> g_fork_depth{0};

struct ForkAware {
  std::mutex mutex;
  ForkAware() { pthread_atfork(lock, unlock, unlock_in_child); }
  static void lock() { process_mutex().lock(); }
  static void unlock() { process_mutex().unlock(); }
  static void unlock_in_child() {
    ++g_fork_depth;
    process_mutex().unlock();  // this thread locked it, in the parent
  }
};

}  // namespace

std::mutex& process_mutex() {
  static auto* shared = new ForkAware;  // outlives every thread that may still want it
  return shared->mutex;
}

uint32_t fork_depth() {
  process_mutex();  // the handlers are there from the first question on
  return g_fork_depth.load(std::memory_order_relaxed);
}

}  // namespace kiln
