#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <span>
#include <thread>

#include "cache/format/touch.h"
#include "tests/cache/cache_testing.h"

/// How far this program's clock is ahead of the host's.
static time_t g_seconds_ahead = 0;

extern "C" time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const time_t seconds = now.tv_sec + g_seconds_ahead;
  if (out != nullptr) *out = seconds;
  return seconds;
}

namespace kiln::testing {
namespace {

constexpr size_t k_size = 100'000;

uint32_t minutes_now() { return static_cast<uint32_t>(time(nullptr) / 60); }

uint32_t cell_of(const std::string& directory, const Digest& artifact) {
  uint32_t minutes = 0;
  std::ifstream touched(directory + "/pub/touch", std::ios::binary);
  touched.seekg(static_cast<std::streamoff>(kiln_touch_offset(artifact.bytes.data())));
  touched.read(reinterpret_cast<char*>(&minutes), sizeof minutes);
  return minutes;
}

void set_cell(const std::string& directory, const Digest& artifact, uint32_t minutes) {
  std::fstream touched(directory + "/pub/touch", std::ios::in | std::ios::out | std::ios::binary);
  touched.seekp(static_cast<std::streamoff>(kiln_touch_offset(artifact.bytes.data())));
  touched.write(reinterpret_cast<const char*>(&minutes), sizeof minutes);
}

/// As a client an hour from now leaves it: what is touched in this minute is no younger than what is written in it.
void touch_in_an_hour(const std::string& directory, const Digest& artifact) {
  set_cell(directory, artifact, minutes_now() + 60);
}

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
  touch_in_an_hour(directory.path(), plan_batch(2, k_size).heads[0].artifact);
  ASSERT_TRUE(store->evict(store->stats().file_bytes * 45 / 100).ok());
  const Reader reader = open_reader(directory.path());
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_EQ(find_plan(reader.get(), seed, k_size), seed == 2 || seed > 7 ? KILN_HIT : KILN_MISS_ABSENT) << seed;
  }
}

TEST(eviction, a_reader_notes_what_it_uses_and_again_after_an_hour) {
  TemporaryDirectory directory;
  const auto store = ten_files(directory.path());
  const Reader reader = open_reader(directory.path());
  const Digest used = plan_batch(3, k_size).heads[0].artifact;
  ASSERT_EQ(find_plan(reader.get(), 3, k_size), KILN_HIT);
  EXPECT_NEAR(cell_of(directory.path(), used), minutes_now(), 1);
  EXPECT_EQ(cell_of(directory.path(), plan_batch(4, k_size).heads[0].artifact), 0U);

  kiln_view view;
  const auto look_up_by_digest = [&] {
    return kiln_reader_find_digest(reader.get(), used.bytes.data(), KILN_ARTIFACT_PLAN, &view);
  };
  set_cell(directory.path(), used, 0);
  g_seconds_ahead = 3'000;
  ASSERT_EQ(find_plan(reader.get(), 3, k_size), KILN_HIT);
  ASSERT_EQ(look_up_by_digest(), KILN_HIT);
  EXPECT_EQ(cell_of(directory.path(), used), 0U) << "what was noted within the hour is not noted again";
  g_seconds_ahead = 4'000;
  ASSERT_EQ(find_plan(reader.get(), 3, k_size), KILN_HIT);
  EXPECT_NEAR(cell_of(directory.path(), used), minutes_now(), 1);
  set_cell(directory.path(), used, 0);
  g_seconds_ahead = 8'000;
  ASSERT_EQ(look_up_by_digest(), KILN_HIT);
  EXPECT_NEAR(cell_of(directory.path(), used), minutes_now(), 1);
  g_seconds_ahead = 0;
}

/// A program, its one plan, and code; each of `bytes` bytes beside what it needs.
struct Linked {
  Artifact program, plan;
  std::vector<Artifact> codes;
};

Artifact artifact_of(ArtifactKind kind, const std::vector<Digest>& needed, uint64_t seed, size_t bytes) {
  Artifact artifact{kind, kind == ArtifactKind::code ? LaunchData{0, 7, 4096, 3, "cpu"} : LaunchData{}, {}};
  artifact.payload.push_back(static_cast<uint8_t>(needed.size()));
  for (const Digest& each : needed)
    artifact.payload.insert(artifact.payload.end(), each.bytes.begin(), each.bytes.end());
  const std::vector<uint8_t> rest = pattern(seed, bytes);
  artifact.payload.insert(artifact.payload.end(), rest.begin(), rest.end());
  return artifact;
}

std::vector<Digest> needs_of(ArtifactKind, std::span<const uint8_t> payload) {
  std::vector<Digest> needed(payload[0]);
  for (size_t i = 0; i < needed.size(); ++i) {
    std::memcpy(needed[i].bytes.data(), payload.data() + 1 + i * sizeof needed[i].bytes, sizeof needed[i].bytes);
  }
  return needed;
}

Linked linked(uint64_t seed, std::vector<Artifact> codes) {
  std::vector<Digest> names;
  for (const Artifact& code : codes) names.push_back(artifact_digest(code));
  Artifact plan = artifact_of(ArtifactKind::plan, names, seed, 1'000);
  Artifact program = artifact_of(ArtifactKind::program, {artifact_digest(plan)}, seed, 1'000);
  return {std::move(program), std::move(plan), std::move(codes)};
}

/// Each artifact in a file of its own, code first, as the program's key leads to it at last.
void publish_in_files(CacheStore& store, const Linked& linked, uint64_t seed) {
  std::vector<Artifact> all = linked.codes;
  all.push_back(linked.plan);
  for (const Artifact& each : all) {
    ASSERT_TRUE(store.publish({{each}, {}}).ok());
    ASSERT_TRUE(store.flush().ok());
  }
  PublishBatch batch = plan_batch(seed, 0);
  batch.artifacts = {linked.program};
  batch.heads[0].artifact = artifact_digest(linked.program);
  ASSERT_TRUE(store.publish(batch).ok());
  ASSERT_TRUE(store.flush().ok());
}

/// Whether a client that has the program's key finds all that it needs.
bool loads_whole(kiln_reader* reader, const Linked& linked, uint64_t seed) {
  kiln_view view;
  const auto finds = [&](const Artifact& artifact, kiln_artifact_kind kind) {
    return kiln_reader_find_digest(reader, artifact_digest(artifact).bytes.data(), kind, &view) == KILN_HIT;
  };
  const auto is_code_found = [&](const Artifact& code) { return finds(code, KILN_ARTIFACT_CODE); };
  return kiln_reader_find_key(reader, key_of(seed).bytes.data(), KILN_ARTIFACT_PROGRAM, &view) == KILN_HIT &&
         finds(linked.plan, KILN_ARTIFACT_PLAN) && std::ranges::all_of(linked.codes, is_code_found);
}

kiln_miss find_program(kiln_reader* reader, uint64_t seed) {
  kiln_view view;
  return kiln_reader_find_key(reader, key_of(seed).bytes.data(), KILN_ARTIFACT_PROGRAM, &view);
}

std::unique_ptr<CacheStore> open_linked_store(const std::string& directory) {
  auto store = CacheStore::open({.directory = directory, .needs = needs_of});
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  return store.ok() ? std::move(*store) : nullptr;
}

TEST(eviction, of_two_programs_that_share_a_kernel_the_one_in_use_stays_whole) {
  TemporaryDirectory directory;
  const auto store = open_linked_store(directory.path());
  const Artifact shared = artifact_of(ArtifactKind::code, {}, 3, 20'000);
  const Linked older = linked(1, {artifact_of(ArtifactKind::code, {}, 4, k_size), shared});
  const Linked newer = linked(2, {shared, artifact_of(ArtifactKind::code, {}, 5, k_size)});
  publish_in_files(*store, older, 1);
  publish_in_files(*store, newer, 2);
  for (const Artifact& used : {older.program, older.plan, older.codes[0], shared}) {
    touch_in_an_hour(directory.path(), artifact_digest(used));
  }
  const uint64_t one_and_a_half = (20'000 + k_size) * 3 / 2;
  ASSERT_TRUE(store->evict(one_and_a_half).ok());
  EXPECT_LE(store->stats().file_bytes, one_and_a_half);
  const Reader reader = open_reader(directory.path());
  EXPECT_TRUE(loads_whole(reader.get(), older, 1));
  EXPECT_EQ(find_program(reader.get(), 2), KILN_MISS_ABSENT);
}

TEST(eviction, a_shared_kernel_takes_its_room_once) {
  TemporaryDirectory directory;
  const auto store = open_linked_store(directory.path());
  const Artifact shared = artifact_of(ArtifactKind::code, {}, 3, k_size);
  const Linked programs[] = {linked(1, {shared}), linked(2, {shared})};
  ASSERT_TRUE(store->publish(code_batch(9, k_size)).ok());
  ASSERT_TRUE(store->flush().ok());
  for (const uint64_t seed : {1, 2}) publish_in_files(*store, programs[seed - 1], seed);
  ASSERT_TRUE(store->evict(k_size * 3 / 2).ok());
  const Reader reader = open_reader(directory.path());
  for (const uint64_t seed : {1, 2}) EXPECT_TRUE(loads_whole(reader.get(), programs[seed - 1], seed)) << seed;
  kiln_view view;
  EXPECT_EQ(kiln_reader_find_key(reader.get(), key_of(9).bytes.data(), KILN_ARTIFACT_CODE, &view), KILN_MISS_ABSENT);
}

TEST(eviction, a_program_that_does_not_fit_goes_whole_and_an_older_one_that_fits_stays) {
  TemporaryDirectory directory;
  const auto store = open_linked_store(directory.path());
  const Artifact large = artifact_of(ArtifactKind::code, {}, 3, k_size);
  const Linked small = linked(1, {artifact_of(ArtifactKind::code, {}, 4, 20'000)}), huge = linked(2, {large});
  publish_in_files(*store, small, 1);
  publish_in_files(*store, huge, 2);
  ASSERT_TRUE(store->evict(50'000).ok());
  const Reader reader = open_reader(directory.path());
  EXPECT_TRUE(loads_whole(reader.get(), small, 1));
  EXPECT_EQ(find_program(reader.get(), 2), KILN_MISS_ABSENT) << "its kernel is gone";
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
