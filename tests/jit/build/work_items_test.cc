#include "jit/build/kernels/work_items.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <numeric>
#include <set>

namespace kiln {
namespace {

constexpr auto k_patience = std::chrono::seconds(30);

/// Work that notes which thread did what, and how many did something at once.
class Watched {
 public:
  /// `before_item` is called for each item, with the mutex held.
  void run(size_t count, const std::function<size_t()>& threads,
           const std::function<void(size_t item, std::unique_lock<std::mutex>& lock)>& before_item) {
    WorkItems(count, threads).run([&](size_t item, WorkItems& items) {
      for (std::optional<size_t> i = item; i; i = items.next()) {
        std::unique_lock lock(m_mutex);
        m_most_at_once = std::max(m_most_at_once, ++m_at_once);
        m_changed.notify_all();
        before_item(*i, lock);
        m_done.push_back(*i);
        m_threads.push_back(std::this_thread::get_id());
        --m_at_once;
      }
    });
  }

  /// For before_item: waits until so many do something at once. False when they never do, from then on at once.
  bool await(size_t at_once, std::unique_lock<std::mutex>& lock) {
    const auto is_so = [&] { return m_is_in_vain || m_most_at_once >= at_once; };
    if (!m_changed.wait_for(lock, k_patience, is_so)) m_is_in_vain = true;
    return !m_is_in_vain;
  }

  void expect_each_once(size_t count) {
    std::ranges::sort(m_done);
    std::vector<size_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(m_done, all);
  }

  std::mutex m_mutex;
  std::condition_variable m_changed;
  size_t m_at_once = 0, m_most_at_once = 0;
  bool m_is_in_vain = false;
  std::vector<size_t> m_done;
  std::vector<std::thread::id> m_threads;  // by item, in the order in which they were done
};

TEST(WorkItems, as_many_threads_work_as_there_may_be_and_no_more) {
  Watched watched;
  watched.run(50, [] { return 3; }, [&](size_t, auto& lock) { EXPECT_TRUE(watched.await(3, lock)); });
  EXPECT_EQ(watched.m_most_at_once, 3U);
  watched.expect_each_once(50);
}

TEST(WorkItems, fewer_items_than_threads_begin_no_more_threads_than_items) {
  Watched watched;
  watched.run(2, [] { return 8; }, [&](size_t, auto& lock) { EXPECT_TRUE(watched.await(2, lock)); });
  watched.expect_each_once(2);
  watched.run(0, [] { return 8; }, [](size_t, auto&) { FAIL() << "there is no item"; });
}

TEST(WorkItems, where_the_share_grows_in_the_middle_of_an_item_others_are_begun_beside_it) {
  Watched watched;
  std::atomic<size_t> share = 1;
  watched.run(
      2, [&] { return share.load(); },
      [&](size_t, auto& lock) {
        share = 2;
        EXPECT_TRUE(watched.await(2, lock));
      });
  watched.expect_each_once(2);
}

TEST(WorkItems, where_the_share_shrinks_threads_end_at_their_next_item_and_the_caller_does_the_rest) {
  Watched watched;
  std::atomic<size_t> share = 3;
  watched.run(
      50, [&] { return share.load(); },
      [&](size_t, auto& lock) {
        EXPECT_TRUE(watched.await(3, lock));
        share = 1;
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // time for others to go on, if they did
        lock.lock();
      });
  watched.expect_each_once(50);
  const auto caller = std::this_thread::get_id();
  const auto others = std::ranges::count_if(watched.m_threads, [&](const auto& id) { return id != caller; });
  EXPECT_EQ(others, 2);
}

TEST(WorkItems, where_the_share_grows_threads_begin) {
  Watched watched;
  std::atomic<size_t> share = 1;
  watched.run(
      50, [&] { return share.load(); },
      [&](size_t item, auto& lock) {
        if (item < 10) {
          EXPECT_EQ(watched.m_most_at_once, 1U);
        } else if (item > 10) {
          EXPECT_TRUE(watched.await(2, lock));
        }
        if (item == 9) share = 2;
      });
  EXPECT_EQ(watched.m_most_at_once, 2U);
  watched.expect_each_once(50);
}

TEST(WorkItems, after_stop_no_item_begins) {
  std::atomic<size_t> done = 0;
  WorkItems(50, [] { return size_t{1}; }).run([&](size_t item, WorkItems& items) {
    for (std::optional<size_t> i = item; i; i = items.next()) {
      if (++done == 5) items.stop();
    }
  });
  EXPECT_EQ(done, 5U);
}

}  // namespace
}  // namespace kiln
