#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/cache/cache_testing.h"

namespace kiln::testing {
namespace {

class Access : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto store = open_store(m_directory.path());
    ASSERT_TRUE(store->publish(plan_batch(1, 100)).ok());
  }
  kiln_miss look() const { return find_plan(open_reader(m_directory.path()).get(), 1, 100); }
  std::string published(const std::string& ending) const {
    for (const std::string& path : files_below(m_directory.path("cache/pub"))) {
      if (path.find(ending) != std::string::npos) return path;
    }
    return "";
  }

  TemporaryDirectory m_directory;
};

TEST_F(Access, a_directory_others_can_write_is_refused) {
  ASSERT_EQ(chmod(m_directory.path().c_str(), 0777), 0);
  EXPECT_EQ(look(), KILN_MISS_OWNER);
  EXPECT_EQ(CacheStore::open({.directory = m_directory.path()}).status().code(), StatusCode::permission_denied);
}

TEST_F(Access, a_published_folder_others_can_write_is_refused) {
  ASSERT_EQ(chmod(m_directory.path("cache/pub").c_str(), 0770), 0);
  EXPECT_EQ(look(), KILN_MISS_OWNER);
}

TEST_F(Access, files_others_can_write_are_refused) {
  for (const char* ending : {"CURRENT", "index.", ".sst"}) {
    const std::string path = published(ending);
    ASSERT_EQ(chmod(path.c_str(), 0620), 0);
    EXPECT_EQ(look(), KILN_MISS_OWNER) << ending;
    ASSERT_EQ(chmod(path.c_str(), 0600), 0);
    EXPECT_EQ(look(), KILN_HIT);
  }
}

TEST_F(Access, another_users_cache_is_refused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  constexpr uid_t k_other = 12345;
  for (const std::string& path : {m_directory.path(), m_directory.path("cache/pub"), published("CURRENT"),
                                  published("index."), published(".sst")}) {
    ASSERT_EQ(chown(path.c_str(), k_other, 0), 0);
    EXPECT_EQ(look(), KILN_MISS_OWNER) << path;
    ASSERT_EQ(chown(path.c_str(), 0, 0), 0);
  }
  ASSERT_EQ(chown(m_directory.path().c_str(), k_other, 0), 0);
  EXPECT_EQ(CacheStore::open({.directory = m_directory.path()}).status().code(), StatusCode::permission_denied);
}

TEST_F(Access, a_read_only_cache_of_root_serves_other_users) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  for (const std::string& path : {m_directory.path(""), m_directory.path(), m_directory.path("cache/pub")}) {
    ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  }
  for (const std::string& path : files_below(m_directory.path("cache/pub"))) {
    ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  }
  EXPECT_TRUE(in_other_process([&] { return setuid(12345) == 0 && look() == KILN_HIT; }));
}

TEST_F(Access, a_link_in_place_of_a_file_is_not_followed) {
  for (const char* ending : {"CURRENT", "index.", ".sst"}) {
    const std::string path = published(ending);
    const std::string elsewhere = m_directory.path("elsewhere");
    std::filesystem::rename(path, elsewhere);
    std::filesystem::create_symlink(elsewhere, path);
    EXPECT_EQ(look(), KILN_MISS_OWNER) << ending;
    std::filesystem::rename(elsewhere, path);
  }
}

TEST_F(Access, a_fifo_in_place_of_a_file_does_not_hang_the_reader) {
  const std::string path = published(".sst");
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(look(), KILN_MISS_OWNER);
}

TEST_F(Access, a_missing_file_is_an_evicted_miss) {
  std::filesystem::remove(published(".sst"));
  EXPECT_EQ(look(), KILN_MISS_EVICTED);
}

TEST_F(Access, a_child_made_by_fork_uses_its_parents_reader) {
  const Reader reader = open_reader(m_directory.path());
  ASSERT_EQ(find_plan(reader.get(), 1, 100), KILN_HIT);
  EXPECT_TRUE(in_other_process([&] { return find_plan(reader.get(), 1, 100) == KILN_HIT; }));
}

}  // namespace
}  // namespace kiln::testing
