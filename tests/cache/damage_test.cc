#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "tests/cache/cache_testing.h"

namespace kiln::testing {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t k_seeds = 12;

/// Some plans in two files, and some in the log alone, as a killed store leaves them.
void make_cache(const std::string& directory) {
  {
    const auto store = open_store(directory);
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      ASSERT_TRUE(store->publish(plan_batch(seed, plan_size(seed))).ok());
      if (seed == 4) {
        ASSERT_TRUE(store->flush().ok());
      }
    }
  }
  ASSERT_EQ(PublisherProcess(directory, 9, k_seeds - 8, PublisherProcess::Manner::exit).wait().size(), k_seeds - 8);
}

/// "000012.sst" → "sst", "MANIFEST-000004" → "MANIFEST", "index.3" → "index".
std::string kind_of(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename();
  if (std::isdigit(name[0])) return name.substr(name.find('.') + 1);
  return name.substr(0, name.find_first_of(".-"));
}

std::vector<std::string> files_of_kind(const std::string& directory, const std::string& kind) {
  std::vector<std::string> paths;
  for (const std::string& path : files_below(directory)) {
    if (kind_of(path) == kind) paths.push_back(path);
  }
  return paths;
}

size_t count_hits(const std::string& directory) {
  const Reader reader = open_reader(directory);
  size_t hits = 0;
  for (uint64_t seed = 1; seed <= k_seeds; ++seed) {
    hits += find_plan(reader.get(), seed, plan_size(seed)) == KILN_HIT;  // aborts on wrong bytes
  }
  return hits;
}

/// Whatever was damaged: readers never see wrong bytes, the store opens, what is damaged can be retired, and
/// what is published again is found.
void expect_recovers(const std::string& directory) {
  count_hits(directory);
  const auto store = open_store(directory);
  ASSERT_NE(store, nullptr);
  const auto damaged = store->verify();
  ASSERT_TRUE(damaged.ok());
  for (const Damage& damage : *damaged) ASSERT_TRUE(store->erase(damage.digest).ok());
  for (uint64_t seed = 1; seed <= k_seeds; ++seed) {
    const PublishBatch batch = plan_batch(seed, plan_size(seed));
    const auto found = store->find(batch.heads[0].artifact);
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    if (*found) {
      EXPECT_EQ(**found, batch.artifacts[0]);
    }
    const Status published = store->publish(batch);
    ASSERT_TRUE(published.ok()) << published.to_string();
  }
  const Status flushed = store->flush();
  ASSERT_TRUE(flushed.ok()) << flushed.to_string();
  EXPECT_EQ(count_hits(directory), k_seeds);
}

const char* const k_kinds[] = {"sst",      "kidx", "index",   "CURRENT", "touch",
                               "MANIFEST", "log",  "OPTIONS", "LOCK",    "IDENTITY"};

TEST(damage, every_kind_of_file_is_among_those_damaged) {
  TemporaryDirectory directory;
  make_cache(directory.path());
  const std::set<std::string> covered(std::begin(k_kinds), std::end(k_kinds));
  for (const std::string& path : files_below(directory.path())) {
    if (kind_of(path) != "LOG") {  // RocksDB's own diary
      EXPECT_TRUE(covered.contains(kind_of(path))) << path;
    }
  }
}

class DamagedFile : public ::testing::TestWithParam<const char*> {};

TEST_P(DamagedFile, cut_short_is_a_miss_or_rebuilt) {
  for (double part : {0.0, 0.01, 0.2, 0.5, 0.9, 0.999}) {
    TemporaryDirectory directory;
    make_cache(directory.path());
    for (const std::string& path : files_of_kind(directory.path(), GetParam())) {
      const auto size = static_cast<double>(std::filesystem::file_size(path));
      // Links share their content: each file is cut to a part of what it still has, but never grown.
      std::filesystem::resize_file(path, static_cast<uintmax_t>(size * part));
    }
    SCOPED_TRACE(fmt::format("{} cut to {} of its size", GetParam(), part));
    expect_recovers(directory.path());
  }
}

TEST_P(DamagedFile, with_a_flipped_byte_is_a_miss_or_rebuilt) {
  for (double place : {0.0, 0.003, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999}) {
    TemporaryDirectory directory;
    make_cache(directory.path());
    std::set<std::string> flipped;
    for (const std::string& path : files_of_kind(directory.path(), GetParam())) {
      if (!flipped.insert(std::filesystem::path(path).filename()).second) continue;  // the link of one already flipped
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      const auto size = static_cast<double>(std::filesystem::file_size(path));
      if (size == 0) continue;
      const auto offset = static_cast<std::streamoff>(size * place);
      file.seekg(offset);
      const int byte = file.get();
      file.seekp(offset);
      file.put(static_cast<char>(byte ^ 0x5a));
    }
    SCOPED_TRACE(fmt::format("{} flipped at {}", GetParam(), place));
    expect_recovers(directory.path());
  }
}

INSTANTIATE_TEST_SUITE_P(damage, DamagedFile, ::testing::ValuesIn(k_kinds),
                         [](const auto& info) { return std::string(info.param); });

/// What a process found is its own: it goes on whatever becomes of the files, and what it did not find yet is a miss.
TEST(damage, under_a_reader_reaches_nothing_that_was_found) {
  const auto cut = [](const std::string& path) { fs::resize_file(path, 0); };
  const auto garble = [](const std::string& path) {
    std::ofstream file(path, std::ios::binary | std::ios::in);
    const std::vector<char> bytes(fs::file_size(path), '\x5a');
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  const auto remove = [](const std::string& path) { fs::remove(path); };
  for (const std::function<void(const std::string&)>& damage :
       {std::function<void(const std::string&)>(cut), std::function<void(const std::string&)>(garble),
        std::function<void(const std::string&)>(remove)}) {
    TemporaryDirectory directory;
    const auto store = open_store(directory.path());
    for (const PublishBatch& batch : {code_batch(77, 9000), plan_batch(1, 5000), plan_batch(2, 5000)}) {
      ASSERT_TRUE(store->publish(batch).ok());
    }
    ASSERT_TRUE(store->flush().ok());
    const Reader reader = open_reader(directory.path());
    kiln_view kernel, plan, other;
    const uint8_t* code = nullptr;
    ASSERT_EQ(kiln_reader_find_key(reader.get(), key_of(77).bytes.data(), KILN_ARTIFACT_CODE, &kernel), KILN_HIT);
    ASSERT_EQ(kiln_reader_map_code(reader.get(), &kernel, &code), KILN_HIT);
    ASSERT_EQ(kiln_reader_find_key(reader.get(), key_of(1).bytes.data(), KILN_ARTIFACT_PLAN, &plan), KILN_HIT);
    for (const std::string& path : files_below(directory.path("cache/pub"))) damage(path);

    EXPECT_EQ(reinterpret_cast<uint32_t (*)()>(const_cast<uint8_t*>(code))(), 77U);
    EXPECT_EQ(std::memcmp(plan.payload, pattern(1, 5000).data(), 5000), 0);
    EXPECT_NE(kiln_reader_find_key(reader.get(), key_of(2).bytes.data(), KILN_ARTIFACT_PLAN, &other), KILN_HIT);
    ASSERT_TRUE(store->publish(plan_batch(3, 5000)).ok()) << "its writer lives on, too";
    EXPECT_TRUE(store->flush().ok());
  }
}

TEST(damage, a_flipped_payload_byte_is_a_corrupt_miss_and_verify_names_it) {
  TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  ASSERT_TRUE(store->publish(plan_batch(1, 50'000)).ok());
  ASSERT_TRUE(store->flush().ok());
  ASSERT_TRUE(store->verify()->empty());
  const std::string link = files_of_kind(directory.path("cache/pub"), "sst").at(0);
  {
    std::fstream file(link, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(30'000);
    file.put('x').put('y');
  }
  const Reader reader = open_reader(directory.path());
  EXPECT_EQ(find_plan(reader.get(), 1, 50'000), KILN_MISS_CORRUPT);
  const auto damaged = store->verify();
  ASSERT_TRUE(damaged.ok());
  ASSERT_EQ(damaged->size(), 1u);
  EXPECT_EQ((*damaged)[0].digest, plan_batch(1, 50'000).heads[0].artifact);
  ASSERT_TRUE(store->erase((*damaged)[0].digest).ok());
  EXPECT_EQ(find_plan(reader.get(), 1, 50'000), KILN_MISS_ABSENT);
  ASSERT_TRUE(store->publish(plan_batch(1, 50'000)).ok());
  ASSERT_TRUE(store->flush().ok());
  EXPECT_EQ(find_plan(reader.get(), 1, 50'000), KILN_HIT);
}

TEST(damage, what_is_published_again_replaces_its_damaged_copy) {
  TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  ASSERT_TRUE(store->publish(plan_batch(1, 50'000)).ok());
  ASSERT_TRUE(store->flush().ok());
  {
    std::fstream file(files_of_kind(directory.path("cache/pub"), "sst").at(0),
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(30'000);
    file.put('x').put('y');
  }
  const Reader reader = open_reader(directory.path());
  EXPECT_EQ(find_plan(reader.get(), 1, 50'000), KILN_MISS_CORRUPT);
  ASSERT_TRUE(store->publish(plan_batch(1, 50'000)).ok());
  ASSERT_TRUE(store->flush().ok());
  EXPECT_EQ(find_plan(reader.get(), 1, 50'000), KILN_HIT);
  EXPECT_TRUE(store->verify()->empty());
}

std::streamoff read_varint(std::istream& stream) {
  std::streamoff value = 0;
  for (int shift = 0;; shift += 7) {
    const int byte = stream.get();
    value |= static_cast<std::streamoff>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

/// Makes RocksDB's table say that its blocks have no checksums, and the block that lists the others hold lengths that lead
/// outside.
void make_deadly(const std::string& table) {
  constexpr std::streamoff k_footer_bytes = 53, k_restarts_bytes = 8;
  std::fstream file(table, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-k_footer_bytes + 1, std::ios::end);
  const std::streamoff begin = read_varint(file), bytes = read_varint(file);
  file.seekp(-k_footer_bytes, std::ios::end);
  file.put(0);
  file.seekp(begin);
  file << std::string(static_cast<size_t>(bytes - k_restarts_bytes), '\x7f');
  file.seekp(begin + bytes + 1);
  file << std::string(4, '\0');
}

bool ends_whoever_opens_it(const std::string& directory) {
  const pid_t child = fork();
  if (child == 0) {
    if (freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
    const auto store = CacheStore::open({.directory = directory});
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status);
}

TEST(damage, a_database_that_ends_whoever_opens_it_is_set_aside_by_the_next) {
  TemporaryDirectory directory;
  make_cache(directory.path());
  for (const std::string& table : files_of_kind(directory.path(), "sst")) make_deadly(table);
  if (!ends_whoever_opens_it(directory.path())) GTEST_SKIP() << "this RocksDB was built without assertions";
  EXPECT_TRUE(fs::exists(directory.path() + "/db.opening"));
  expect_recovers(directory.path());
  EXPECT_TRUE(fs::exists(directory.path() + "/db.damaged"));
  EXPECT_FALSE(fs::exists(directory.path() + "/db.opening"));
}

TEST(damage, a_damaged_block_does_not_stop_the_store_when_files_are_merged) {
  TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    ASSERT_TRUE(store->publish(plan_batch(seed, 9000)).ok());
    const Status flushed = store->flush();
    ASSERT_TRUE(flushed.ok()) << flushed.to_string();
    if (seed != 3) continue;
    const std::string link = files_of_kind(directory.path("cache/pub"), "sst").at(0);
    std::fstream file(link, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(6000);
    file.put('x').put('y');
  }
  const Reader reader = open_reader(directory.path());
  EXPECT_EQ(find_plan(reader.get(), 60, 9000), KILN_HIT);
}

}  // namespace
}  // namespace kiln::testing
