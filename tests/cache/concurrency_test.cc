#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

extern "C" {
#include "cache/reader/index_file.h"
}
#include "cache/store/index_writer.h"
#include "tests/cache/cache_testing.h"

namespace kiln::testing {
namespace {

TEST(concurrency, threads_and_processes_read_right_bytes_while_plans_come_and_go) {
  TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  constexpr uint64_t k_plans = 600;

  const auto read_some = [&](uint32_t thread, kiln_reader* reader, const std::function<bool()>& stop) {
    std::mt19937 random(thread);
    size_t hits = 0;
    while (!stop()) {
      const uint64_t seed = 1 + random() % k_plans;
      hits += find_plan(reader, seed, plan_size(seed)) == KILN_HIT;  // aborts on wrong bytes
    }
    return hits;
  };

  pid_t children[2];
  for (pid_t& child : children) {
    child = fork();
    if (child == 0) {
      const Reader reader = open_reader(directory.path());
      read_some(static_cast<uint32_t>(getpid()), reader.get(), [] { return getppid() == 1; });
      _exit(0);
    }
  }
  std::atomic<bool> stop = false;
  std::atomic<size_t> hits = 0;
  const Reader reader = open_reader(directory.path());
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] { hits += read_some(thread, reader.get(), [&] { return stop.load(); }); });
  }
  for (uint64_t seed = 1; seed <= k_plans; ++seed) {
    ASSERT_TRUE(store->publish(plan_batch(seed, plan_size(seed))).ok());
    if (seed % 20 == 0) {
      ASSERT_TRUE(store->flush().ok());
    }
    if (seed % 150 == 0) {
      ASSERT_TRUE(store->evict(store->stats().file_bytes / 2).ok());
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(hits.load(), 0u);
  for (pid_t child : children) {
    EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "a reader died of wrong bytes or a signal";
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

TEST(concurrency, publishers_in_many_threads_keep_one_artifact_for_each_key) {
  TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  std::atomic<int> won = 0, lost = 0;
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t seed = 1; seed <= 50; ++seed) {
        const Status status = store->publish(plan_batch(seed, 100 + thread));  // another artifact in each thread
        won += status.ok();
        lost += status.code() == StatusCode::already_exists;
        if (seed % 10 == 0) {
          EXPECT_TRUE(store->flush().ok());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(won, 50);
  EXPECT_EQ(lost, 150);
  EXPECT_EQ(store->stats().conflicts, 150u);
}

TEST(concurrency, the_index_grows_under_its_readers) {
  TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  const Reader reader = open_reader(directory.path());
  const uint64_t first_index = store->stats().index_generation;
  constexpr uint64_t k_plans = 4000;  // 8000 slots; the first index has 4096
  for (uint64_t seed = 1; seed <= k_plans; ++seed) {
    ASSERT_TRUE(store->publish(plan_batch(seed, 10)).ok());
    if (seed % 500 == 0) {
      ASSERT_TRUE(store->flush().ok());
      ASSERT_EQ(find_plan(reader.get(), seed, 10), KILN_HIT);
    }
  }
  EXPECT_GT(store->stats().index_generation, first_index);
  for (uint64_t seed = 1; seed <= k_plans; ++seed) ASSERT_EQ(find_plan(reader.get(), seed, 10), KILN_HIT) << seed;
}

/// Puts one slot again and again into an index that is in force in `folder`.
[[noreturn]] void rewrite_one_slot(const std::string& folder, const Digest& key) {
  const auto index = IndexWriter::create(folder + "/index.1", 1, 64, 1);
  kiln_index_slot slot{.slot_kind = KILN_SLOT_ARTIFACT, .artifact_kind = KILN_ARTIFACT_CODE};
  std::memcpy(slot.key, key.bytes.data(), sizeof slot.key);
  bool is_well = index.ok() && (*index)->put(slot) && (*index)->begin().ok();
  std::ofstream(folder + "/" KILN_CURRENT_FILE) << "index.1\n";
  for (; is_well; ++slot.offset) is_well = (*index)->put(slot);
  _exit(1);
}

// A host that is short of processors stops a writer wherever it is, for longer than a reader may wait.
TEST(concurrency, a_writer_that_is_stopped_anywhere_leaves_its_slot_readable) {
  TemporaryDirectory directory;
  const std::string folder = directory.path("cache/" KILN_PUBLISHED_FOLDER);
  std::filesystem::create_directories(folder);
  for (const std::string& each : {directory.path(), folder}) {
    std::filesystem::permissions(each, std::filesystem::perms::owner_all);
  }
  const Digest key = key_of(1);
  const pid_t writer = fork();
  if (writer == 0) rewrite_one_slot(folder, key);
  int opened = -1;
  ASSERT_EQ(kiln_folder_open(directory.path().c_str(), &opened), KILN_HIT);
  const UniqueFd top(opened);
  index_file* index = nullptr;
  while (kiln_index_load(top.get(), &index) != KILN_HIT) std::this_thread::yield();
  published_file file;
  ASSERT_EQ(kiln_index_open(top.get(), index, &file), KILN_HIT);
  std::mt19937 random(1);
  size_t missed = 0;
  for (int round = 0; round < 300; ++round) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    ASSERT_EQ(kill(writer, SIGSTOP), 0);
    ASSERT_EQ(waitpid(writer, nullptr, WUNTRACED), writer);
    kiln_index_slot slot;
    missed += kiln_index_probe(index, &file, KILN_SLOT_ARTIFACT, key.bytes.data(), &slot) != KILN_HIT;
    ASSERT_EQ(kill(writer, SIGCONT), 0);
  }
  EXPECT_EQ(missed, 0U);
  kill(writer, SIGKILL);
  waitpid(writer, nullptr, 0);
  close(file.fd);
  free(index);
}

}  // namespace
}  // namespace kiln::testing
