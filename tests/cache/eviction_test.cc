#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <thread>

#include "cache/format/touch.h"
#include "tests/cache/cache_testing.h"

namespace kiln::testing {
namespace {

constexpr size_t k_size = 100'000;

/// Ten files of one plan each, the oldest with seed 1.
std::unique_ptr<CacheStore> ten_files(const std::string& directory) {
  auto store = open_store(directory);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_TRUE(store->publish(plan_batch(seed, k_size)).ok());
    EXPECT_TRUE(store->flush().ok());
  }
  EXPECT_EQ(store->stats().files, 10u);
  return store;
}

TEST(eviction, the_oldest_files_go_first_until_the_rest_fits) {
  TemporaryDirectory directory;
  const auto store = ten_files(directory.path());
  const uint64_t capacity = store->stats().file_bytes * 45 / 100;
  ASSERT_TRUE(store->evict(capacity).ok());
  EXPECT_LE(store->stats().file_bytes, capacity);
  EXPECT_EQ(store->stats().evicted, 6u);
  const Reader reader = open_reader(directory.path());
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_EQ(find_plan(reader.get(), seed, k_size), seed <= 6 ? KILN_MISS_ABSENT : KILN_HIT) << seed;
    EXPECT_EQ(store->head(key_of(seed))->has_value(), seed > 6);
  }
  ASSERT_TRUE(store->publish(plan_batch(1, k_size)).ok()) << "an evicted key can be published again";
  ASSERT_TRUE(store->flush().ok());
  EXPECT_EQ(find_plan(reader.get(), 1, k_size), KILN_HIT);
}

TEST(eviction, what_is_pinned_stays) {
  TemporaryDirectory directory;
  auto store = ten_files(directory.path());
  ASSERT_TRUE(store->pin(plan_batch(2, k_size).heads[0].artifact).ok());
  EXPECT_EQ(store->pin(key_of(99)).code(), StatusCode::not_found);
  store = nullptr;
  store = open_store(directory.path());  // the pin survives
  ASSERT_TRUE(store->evict(store->stats().file_bytes * 35 / 100).ok());
  const Reader reader = open_reader(directory.path());
  EXPECT_EQ(find_plan(reader.get(), 2, k_size), KILN_HIT);
  EXPECT_EQ(find_plan(reader.get(), 1, k_size), KILN_MISS_ABSENT);
  EXPECT_EQ(store->evict(1000).code(), StatusCode::resource_exhausted);
  EXPECT_EQ(find_plan(reader.get(), 2, k_size), KILN_HIT);
  ASSERT_TRUE(store->unpin(plan_batch(2, k_size).heads[0].artifact).ok());
  ASSERT_TRUE(store->evict(1000).ok());
  EXPECT_EQ(store->stats().artifacts, 0u);
}

TEST(eviction, what_fits_but_for_the_file_around_it_goes_too) {
  TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  ASSERT_TRUE(store->publish(plan_batch(1, 5'000)).ok());
  ASSERT_TRUE(store->publish(plan_batch(2, 400)).ok());
  ASSERT_TRUE(store->flush().ok());
  const Status evicted = store->evict(1'000);
  EXPECT_TRUE(evicted.ok()) << evicted.to_string();
  EXPECT_LE(store->stats().file_bytes, 1'000u);
}

TEST(eviction, what_was_in_use_last_stays_however_old_it_is) {
  TemporaryDirectory directory;
  const auto store = ten_files(directory.path());
  {
    // As a client an hour from now leaves it: what is touched in this minute is no younger than what is written in it.
    const Digest used = plan_batch(2, k_size).heads[0].artifact;
    const auto minutes = static_cast<uint32_t>(time(nullptr) / 60 + 60);
    std::fstream touched(directory.path() + "/pub/touch", std::ios::in | std::ios::out | std::ios::binary);
    touched.seekp(static_cast<std::streamoff>(kiln_touch_offset(used.bytes.data())));
    touched.write(reinterpret_cast<const char*>(&minutes), sizeof minutes);
  }
  ASSERT_TRUE(store->evict(store->stats().file_bytes * 45 / 100).ok());
  const Reader reader = open_reader(directory.path());
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_EQ(find_plan(reader.get(), seed, k_size), seed == 2 || seed > 7 ? KILN_HIT : KILN_MISS_ABSENT) << seed;
  }
}

TEST(eviction, a_reader_notes_what_it_uses) {
  TemporaryDirectory directory;
  const auto store = ten_files(directory.path());
  const Reader reader = open_reader(directory.path());
  const auto cell_of = [&](uint64_t seed) {
    uint32_t minutes = 0;
    std::ifstream touched(directory.path() + "/pub/touch", std::ios::binary);
    const Digest artifact = plan_batch(seed, k_size).heads[0].artifact;
    touched.seekg(static_cast<std::streamoff>(kiln_touch_offset(artifact.bytes.data())));
    touched.read(reinterpret_cast<char*>(&minutes), sizeof minutes);
    return minutes;
  };
  ASSERT_EQ(find_plan(reader.get(), 3, k_size), KILN_HIT);
  EXPECT_NEAR(cell_of(3), static_cast<double>(time(nullptr)) / 60, 2);
  EXPECT_EQ(cell_of(4), 0U);
}

TEST(eviction, a_mapped_view_outlives_it) {
  TemporaryDirectory directory;
  const auto store = ten_files(directory.path());
  const PublishBatch code = code_batch(77, 9000);
  ASSERT_TRUE(store->publish(code).ok());
  ASSERT_TRUE(store->flush().ok());
  const Reader reader = open_reader(directory.path());
  kiln_view plan, kernel;
  ASSERT_EQ(kiln_reader_find_key(reader.get(), key_of(1).bytes.data(), KILN_ARTIFACT_PLAN, &plan), KILN_HIT);
  ASSERT_EQ(kiln_reader_find_key(reader.get(), key_of(77).bytes.data(), KILN_ARTIFACT_CODE, &kernel), KILN_HIT);
  const Status evicted = store->evict(0);
  ASSERT_TRUE(evicted.ok()) << evicted.to_string();
  EXPECT_EQ(store->stats().files, 0u);
  EXPECT_EQ(std::memcmp(plan.payload, pattern(1, k_size).data(), k_size), 0);
  const uint8_t* bytes = nullptr;
  ASSERT_EQ(kiln_reader_map_code(reader.get(), &kernel, &bytes), KILN_HIT);
  EXPECT_EQ(reinterpret_cast<uint32_t (*)()>(const_cast<uint8_t*>(bytes))(), 77u);
}

TEST(eviction, erase_forgets_an_artifact_and_falls_back_to_an_older_generation) {
  TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  ASSERT_TRUE(store->publish(plan_batch(5, 100, 0)).ok());
  PublishBatch tuned = plan_batch(5, 100, 1);
  tuned.artifacts[0].payload = pattern(6, 200);
  tuned.heads[0].artifact = artifact_digest(tuned.artifacts[0]);
  ASSERT_TRUE(store->publish(tuned).ok());
  ASSERT_TRUE(store->flush().ok());
  ASSERT_TRUE(store->erase(tuned.heads[0].artifact).ok());
  const Reader reader = open_reader(directory.path());
  EXPECT_EQ(find_plan(reader.get(), 5, 100), KILN_HIT);
  ASSERT_TRUE(store->erase(plan_batch(5, 100).heads[0].artifact).ok());
  EXPECT_EQ(find_plan(reader.get(), 5, 100), KILN_MISS_ABSENT);
  EXPECT_TRUE(store->erase(key_of(3)).ok());
}

TEST(eviction, what_was_erased_does_not_come_back_when_the_index_is_rebuilt) {
  TemporaryDirectory directory;
  auto store = open_store(directory.path());
  for (uint64_t seed : {1, 2}) ASSERT_TRUE(store->publish(plan_batch(seed, 100)).ok());
  ASSERT_TRUE(store->flush().ok());
  ASSERT_TRUE(store->erase(plan_batch(1, 100).heads[0].artifact).ok());
  store = nullptr;
  store = open_store(directory.path());
  const Reader reader = open_reader(directory.path());
  EXPECT_EQ(find_plan(reader.get(), 1, 100), KILN_MISS_ABSENT);
  EXPECT_EQ(find_plan(reader.get(), 2, 100), KILN_HIT);
}

TEST(eviction, clear_forgets_everything_and_the_store_goes_on) {
  TemporaryDirectory directory;
  const auto store = ten_files(directory.path());
  const Reader reader = open_reader(directory.path());
  ASSERT_TRUE(store->clear().ok());
  EXPECT_EQ(store->stats().artifacts, 0u);
  EXPECT_EQ(find_plan(reader.get(), 3, k_size), KILN_MISS_ABSENT);
  ASSERT_TRUE(store->publish(plan_batch(3, k_size)).ok());
  ASSERT_TRUE(store->flush().ok());
  EXPECT_EQ(find_plan(reader.get(), 3, k_size), KILN_HIT);
}

TEST(eviction, many_small_files_are_merged_and_stay_found) {
  TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  const Reader reader = open_reader(directory.path());
  // Merging goes on in the background, and RocksDB picks what it merges when a file comes.
  uint64_t published = 0;
  while (published < 100 || (published < 400 && store->stats().files >= published * 6 / 10)) {
    const uint64_t seed = ++published;
    ASSERT_TRUE(store->publish(plan_batch(seed, plan_size(seed))).ok());
    ASSERT_TRUE(store->flush().ok());
    ASSERT_EQ(find_plan(reader.get(), seed, plan_size(seed)), KILN_HIT);
  }
  EXPECT_LT(store->stats().files, published * 6 / 10);
  const Reader fresh = open_reader(directory.path());
  for (uint64_t seed = 1; seed <= published; ++seed) {
    EXPECT_EQ(find_plan(fresh.get(), seed, plan_size(seed)), KILN_HIT);
  }
}

}  // namespace
}  // namespace kiln::testing
