#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

namespace kiln {

/// Items 0 … count - 1, each done once, on as many threads at once as the build may have: that is asked again and again, as
/// other builds end while an item takes long. Where it is more by then, threads begin; where it is less, a thread ends when its
/// item is done.
///
///   WorkItems(count, threads).run([&](size_t item, WorkItems& items) {
///     for (std::optional<size_t> i = item; i; i = items.next()) …
///   });
class WorkItems {
 public:
  /// Is given its first item, and does those that next() gives it, until there are none.
  using Work = std::function<void(size_t item, WorkItems& items)>;

  WorkItems(size_t count, std::function<size_t()> threads) : m_count(count), m_threads(std::move(threads)) {}

  /// The caller is one of the threads. Returns when all have ended.
  void run(const Work& work);
  /// For the work: its thread's next item. Nothing when there is no more, or the thread is one too many.
  std::optional<size_t> next();
  /// For the work: from here on there are no more items.
  void stop();

 private:
  void begin_threads();
  void look_again(const std::stop_token& stop);

  const size_t m_count;
  const std::function<size_t()> m_threads;
  const Work* m_work = nullptr;
  std::thread::id m_caller;  // never one too many
  std::mutex m_mutex;
  size_t m_next = 0;
  size_t m_running = 0;
  std::condition_variable_any m_stopped;
  std::vector<std::jthread> m_begun;  // first to be destroyed: they use all the rest
};

}  // namespace kiln
