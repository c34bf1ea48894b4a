#include "jit/resolve/job_heads.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "tests/cache/cache_testing.h"

namespace kiln {
namespace {

class JobHeadsTest : public ::testing::Test {
 protected:
  JobHeadsTest() { std::filesystem::create_directories(m_directory.path()); }
  JobHeads open(std::string_view id) const { return {m_directory.path(), id}; }
  std::filesystem::path file() const { return *std::filesystem::directory_iterator(m_directory.path() + "/jobs"); }

  testing::TemporaryDirectory m_directory;
  const Digest m_key = digest_of("key"), m_old = digest_of("old"), m_new = digest_of("new");
};

TEST_F(JobHeadsTest, TheFirstRankDecidesForItsJobAlone) {
  const auto first = open("job"), second = open("job"), other = open("another job");
  EXPECT_FALSE(first.find(m_key));
  EXPECT_EQ(first.record(m_key, m_old, {}), m_old);
  EXPECT_EQ(second.find(m_key), m_old);
  EXPECT_EQ(second.record(m_key, m_new, {}), m_old);
  EXPECT_FALSE(other.find(m_key));
  EXPECT_FALSE(second.find(digest_of("another key")));
}

TEST_F(JobHeadsTest, WhatIsLostGivesWayOnce) {
  const auto first = open("job"), second = open("job");
  first.record(m_key, m_old, {});
  EXPECT_EQ(first.record(m_key, m_new, m_old), m_new);
  EXPECT_EQ(second.record(m_key, digest_of("newest"), m_old), m_new) << "another rank was there before";
  EXPECT_EQ(second.find(m_key), m_new);
}

TEST_F(JobHeadsTest, ACacheThatCannotBeWrittenToRecordsNothing) {
  const JobHeads heads("/nonexistent/cache", "job");
  EXPECT_EQ(heads.record(m_key, m_new, {}), m_new);
  EXPECT_FALSE(heads.find(m_key));
}

TEST_F(JobHeadsTest, APartOfARecordCountsAsNone) {
  const auto heads = open("job");
  heads.record(m_key, m_old, {});
  std::ofstream(file(), std::ios::app | std::ios::binary) << "a rank died over this";
  EXPECT_EQ(heads.find(m_key), m_old);
  const Digest other = digest_of("other");
  EXPECT_EQ(heads.record(other, m_new, {}), m_new);
  EXPECT_EQ(open("job").find(other), m_new);
  EXPECT_EQ(open("job").find(m_key), m_old);
}

TEST_F(JobHeadsTest, RanksThatComeAtOnceAgree) {
  constexpr int k_ranks = 8, k_keys = 200;
  std::vector<std::vector<Digest>> decided(k_ranks);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < k_ranks; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto heads = open("job");
        for (int i = 0; i < k_keys; ++i) {
          const Digest key = digest_of("key " + std::to_string(i));
          decided[rank].push_back(heads.record(key, digest_of("rank " + std::to_string(rank)), {}));
        }
      });
    }
  }
  for (const auto& each : decided) EXPECT_EQ(each, decided.front());
  for (int i = 0; i < k_keys; ++i) {
    EXPECT_EQ(open("job").find(digest_of("key " + std::to_string(i))), decided.front()[i]);
  }
}

/// However long that one takes over it.
TEST_F(JobHeadsTest, WhoRecordsWaitsForTheRankThatIsAboutTo) {
  const auto heads = open("job");
  heads.record(digest_of("another key"), m_old, {});
  const UniqueFd other(::open(file().c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
  Digest decided;
  std::thread rank([&] { decided = heads.record(m_key, m_new, {}); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Digest record[] = {m_key, m_old};
  ASSERT_EQ(pwrite(other.get(), record, sizeof record, sizeof record), static_cast<ssize_t>(sizeof record));
  ASSERT_EQ(flock(other.get(), LOCK_UN), 0);
  rank.join();
  EXPECT_EQ(decided, m_old);
  EXPECT_EQ(heads.find(m_key), m_old);
}

TEST_F(JobHeadsTest, OldJobsAreForgotten) {
  open("old job").record(m_key, m_old, {});
  std::filesystem::last_write_time(file(), std::filesystem::file_time_type::clock::now() - std::chrono::days(40));
  open("new job").record(m_key, m_new, {});
  JobHeads::forget_old(m_directory.path());
  EXPECT_FALSE(open("old job").find(m_key));
  EXPECT_EQ(open("new job").find(m_key), m_new);
  JobHeads::forget_old(m_directory.path() + "/nonexistent");
}

}  // namespace
}  // namespace kiln
