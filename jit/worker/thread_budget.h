#pragma once

#include <atomic>
#include <cstddef>

namespace kiln {

/// The threads that all builds of one zygote have together, in equal shares: who builds alone has them all. Made by the
/// zygote, which counts the builds; inherited by its compile workers, which look at their share.
/// Threading: any thread, of any of these processes.
class ThreadBudget {
 public:
  /// Where the system has no memory to share, every build has one thread.
  explicit ThreadBudget(size_t threads);
  ~ThreadBudget();
  ThreadBudget(const ThreadBudget&) = delete;
  ThreadBudget& operator=(const ThreadBudget&) = delete;

  void begin_build();
  void end_build();
  /// What each build may have at this moment; at least one.
  size_t share() const;

 private:
  const size_t m_threads;
  std::atomic<size_t>* m_builds = nullptr;  // in memory that a fork shares
};

}  // namespace kiln
