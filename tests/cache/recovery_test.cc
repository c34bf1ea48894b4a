#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/cache/cache_testing.h"

namespace kiln::testing {
namespace {

Digest plan_digest(uint64_t seed) { return artifact_digest(plan_batch(seed, plan_size(seed)).artifacts[0]); }

void expect_all_kept(const std::string& directory, const std::vector<uint64_t>& acknowledged) {
  const auto store = open_store(directory);
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->report(), "");
  for (uint64_t seed : acknowledged) {
    const auto artifact = store->find(plan_digest(seed));
    ASSERT_TRUE(artifact.ok() && artifact->has_value()) << "seed " << seed;
    EXPECT_EQ((*artifact)->payload, pattern(seed, plan_size(seed)));
    EXPECT_TRUE(store->head(key_of(seed))->has_value()) << "seed " << seed;
  }
  const Reader reader = open_reader(directory);
  for (uint64_t seed : acknowledged) {
    ASSERT_EQ(find_plan(reader.get(), seed, plan_size(seed)), KILN_HIT) << "seed " << seed;
  }
}

TEST(recovery, what_was_acknowledged_survives_kill_9) {
  TemporaryDirectory directory;
  std::mt19937 random(7);
  std::vector<uint64_t> acknowledged;
  uint64_t next_seed = 1;
  for (int round = 0; round < 32; ++round) {
    PublisherProcess publisher(directory.path(), next_seed, 1'000'000);
    // Also while it opens, which repairs what the last kill left.
    if (round % 4 != 0) publisher.await_first();
    const Reader reader = open_reader(directory.path());
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(5 + random() % 100);
    while (std::chrono::steady_clock::now() < end) {
      const uint64_t seed = 1 + random() % (next_seed + 50);
      find_plan(reader.get(), seed, plan_size(seed));  // aborts on wrong bytes
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    const std::vector<uint64_t> fresh = publisher.kill();
    acknowledged.insert(acknowledged.end(), fresh.begin(), fresh.end());
    if (!fresh.empty()) next_seed = fresh.back() + 2;
    if (round % 8 == 7) expect_all_kept(directory.path(), acknowledged);
  }
  EXPECT_GT(acknowledged.size(), 100u) << "the publisher must get somewhere for this to mean anything";
}

#ifdef KILN_FAULT_POINTS
/// Every step between a publication and its place in the mapped index: the process dies there, or the step fails, the
/// first time and later ones.
TEST(recovery, a_death_or_a_failure_at_any_step_loses_nothing_that_was_acknowledged) {
  for (const char* point : {"cache.publish.written", "cache.flush.written", "cache.adopt.linked", "cache.adopt.sidecar",
                            "cache.index.filled", "cache.index.shown", "cache.replace.written"}) {
    for (const char* action : {"kill", "kill@2", "error@2"}) {
      SCOPED_TRACE(fmt::format("{}={}", point, action));
      TemporaryDirectory directory;
      std::vector<uint64_t> acknowledged =
          PublisherProcess(directory.path(), 1, 40, PublisherProcess::Manner::exit).wait();
      ASSERT_EQ(acknowledged.size(), 40u);
      setenv("KILN_FAULTS", fmt::format("{}={}", point, action).c_str(), 1);
      PublisherProcess faulty(directory.path(), 41, 80);
      const auto more = faulty.wait();
      unsetenv("KILN_FAULTS");
      acknowledged.insert(acknowledged.end(), more.begin(), more.end());
      // An index is begun once, when the store opens.
      const bool passed_once =
          std::string_view(point) == "cache.index.filled" && std::string_view(action).ends_with("2");
      EXPECT_EQ(more.size() == 80, passed_once) << "the fault did not happen";
      expect_all_kept(directory.path(), acknowledged);
    }
  }
}
#endif

#ifdef KILN_FAULT_POINTS
TEST(recovery, a_file_system_without_links_publishes_copies) {
  TemporaryDirectory directory;
  setenv("KILN_FAULTS", "cache.link=error", 1);
  const auto seeds = PublisherProcess(directory.path(), 1, 3, PublisherProcess::Manner::exit).wait();
  unsetenv("KILN_FAULTS");
  ASSERT_EQ(seeds.size(), 3U);
  expect_all_kept(directory.path(), seeds);
}
#endif

/// A file system of its own, so that it can be full.
class SmallDisk {
 public:
  explicit SmallDisk(const std::string& path) : m_path(path) {
    std::filesystem::create_directories(path);
    m_mounted = mount("kiln-test", path.c_str(), "tmpfs", 0, "size=1m,mode=0700") == 0;
  }
  ~SmallDisk() {
    if (m_mounted) umount(m_path.c_str());
  }
  bool mounted() const { return m_mounted; }
  void grow() const { ASSERT_EQ(mount("kiln-test", m_path.c_str(), "tmpfs", MS_REMOUNT, "size=64m,mode=0700"), 0); }

 private:
  std::string m_path;
  bool m_mounted = false;
};

TEST(recovery, what_was_acknowledged_before_and_after_the_disk_was_full_survives_a_kill) {
  TemporaryDirectory directory;
  const SmallDisk disk(directory.path("disk"));
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount: " << std::strerror(errno);
  const std::string cache = directory.path("disk") + "/cache";
  PublisherProcess publisher(cache, 1, 300, PublisherProcess::Manner::insist);
  publisher.await_refusal();
  disk.grow();
  const std::vector<uint64_t> acknowledged = publisher.wait();
  EXPECT_EQ(acknowledged.size(), 300u);
  expect_all_kept(cache, acknowledged);
}

TEST(recovery, what_is_only_in_the_log_is_mapped_after_the_next_open) {
  TemporaryDirectory directory;
  const auto acknowledged = PublisherProcess(directory.path(), 1, 20, PublisherProcess::Manner::exit).wait();
  ASSERT_EQ(acknowledged.size(), 20u);
  expect_all_kept(directory.path(), acknowledged);
}

TEST(recovery, index_links_and_sidecars_are_rebuilt_from_the_database) {
  const std::vector<std::vector<std::string>> deletions = {
      {""}, {"CURRENT"}, {"index."}, {".sst"}, {".kidx"}, {".sst", ".kidx"}, {"CURRENT", "index.", ".kidx"}};
  for (const auto& names : deletions) {
    TemporaryDirectory directory;
    std::vector<uint64_t> seeds;
    {
      const auto store = open_store(directory.path());
      for (uint64_t seed = 1; seed <= 30; ++seed) {
        ASSERT_TRUE(store->publish(plan_batch(seed, plan_size(seed))).ok());
        if (seed % 10 == 0) {
          ASSERT_TRUE(store->flush().ok());
        }
        seeds.push_back(seed);
      }
    }
    const Reader old_reader = open_reader(directory.path());
    size_t deleted = 0;
    for (const std::string& path : files_below(directory.path("cache/pub"))) {
      for (const std::string& name : names) {
        if (path.find(name) != std::string::npos) deleted += std::filesystem::remove(path);
      }
    }
    ASSERT_GT(deleted, 0u);
    expect_all_kept(directory.path(), seeds);
    // A reader from before the deletion finds the new index.
    EXPECT_EQ(find_plan(old_reader.get(), 7, plan_size(7)), KILN_HIT) << names[0];
  }
}

TEST(recovery, a_restart_reads_sidecars_instead_of_scanning) {
  TemporaryDirectory directory;
  {
    const auto store = open_store(directory.path());
    ASSERT_TRUE(store->publish(plan_batch(1, 100)).ok());
    ASSERT_TRUE(store->flush().ok());
    EXPECT_EQ(store->stats().files_scanned, 1u);
  }
  EXPECT_EQ(open_store(directory.path())->stats().files_scanned, 0u);
}

TEST(recovery, restarts_and_foreign_files_leave_nothing_behind_in_the_published_folder) {
  TemporaryDirectory directory;
  for (int round = 0; round < 5; ++round) {
    const auto store = open_store(directory.path());
    ASSERT_TRUE(store->publish(plan_batch(1, 100)).ok());
    ASSERT_TRUE(store->flush().ok());
    std::filesystem::copy(directory.path("cache/pub/CURRENT"),
                          directory.path("cache/pub/") + std::to_string(900 + round) + ".sst");
  }
  const auto store = open_store(directory.path());
  EXPECT_EQ(files_below(directory.path("cache/pub")).size(), 5u) << "CURRENT, index, touch map, one link, one sidecar";
}

}  // namespace
}  // namespace kiln::testing
