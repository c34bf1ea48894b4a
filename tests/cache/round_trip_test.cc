#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "tests/cache/cache_testing.h"

namespace kiln::testing {
namespace {

constexpr size_t k_sizes[] = {0, 1, 63, 64, 4000, 4096, 16300, 16384, 70'001, 300'000};

uint32_t run_code(kiln_reader* reader, uint32_t answer) {
  kiln_view view;
  const uint8_t* code = nullptr;
  if (kiln_reader_find_key(reader, key_of(answer).bytes.data(), KILN_ARTIFACT_CODE, &view) != KILN_HIT) return 0;
  if (kiln_reader_map_code(reader, &view, &code) != KILN_HIT) return 0;
  return reinterpret_cast<uint32_t (*)()>(const_cast<uint8_t*>(code))();
}

TEST(round_trip, a_reader_without_a_cache_misses) {
  TemporaryDirectory directory;
  const Reader reader = open_reader(directory.path());
  ASSERT_NE(reader, nullptr);
  EXPECT_EQ(find_plan(reader.get(), 1, 10), KILN_MISS_NO_CACHE);
}

TEST(round_trip, what_is_published_is_found_in_another_process_while_open_and_after_closing) {
  TemporaryDirectory directory;
  auto store = open_store(directory.path());
  ASSERT_NE(store, nullptr);
  for (size_t size : k_sizes) ASSERT_TRUE(store->publish(plan_batch(size, size)).ok());
  ASSERT_TRUE(store->flush().ok());
  const auto all_found = [&] {
    const Reader reader = open_reader(directory.path());
    for (size_t size : k_sizes) {
      if (find_plan(reader.get(), size, size) != KILN_HIT) return false;
    }
    return find_plan(reader.get(), 77, 77) == KILN_MISS_ABSENT;
  };
  EXPECT_TRUE(in_other_process(all_found));
  store = nullptr;
  EXPECT_TRUE(in_other_process(all_found));
}

TEST(round_trip, a_reader_opened_before_the_store_sees_what_comes_later) {
  TemporaryDirectory directory;
  const Reader reader = open_reader(directory.path());
  auto store = open_store(directory.path());
  EXPECT_EQ(find_plan(reader.get(), 1, 100), KILN_MISS_ABSENT);
  ASSERT_TRUE(store->publish(plan_batch(1, 100)).ok());
  ASSERT_TRUE(store->flush().ok());
  EXPECT_EQ(find_plan(reader.get(), 1, 100), KILN_HIT);
  store = nullptr;
  store = open_store(directory.path());
  ASSERT_TRUE(store->publish(plan_batch(2, 100)).ok());
  ASSERT_TRUE(store->flush().ok());
  EXPECT_EQ(find_plan(reader.get(), 2, 100), KILN_HIT) << "after a restart of the store";
}

TEST(round_trip, the_view_carries_launch_data_and_generation) {
  TemporaryDirectory directory;
  auto store = open_store(directory.path());
  const PublishBatch batch = code_batch(41, 5000);
  ASSERT_TRUE(store->publish(batch).ok());
  ASSERT_TRUE(store->flush().ok());
  const Reader reader = open_reader(directory.path());
  kiln_view view;
  const Digest digest = artifact_digest(batch.artifacts[0]);
  ASSERT_EQ(kiln_reader_find_digest(reader.get(), digest.bytes.data(), KILN_ARTIFACT_CODE, &view), KILN_HIT);
  EXPECT_EQ(view.header.tasks, 7u);
  EXPECT_EQ(view.header.workspace_bytes, 4096u);
  EXPECT_EQ(view.header.features, 3u);
  EXPECT_STREQ(reinterpret_cast<const char*>(view.header.backend), "cpu");
  EXPECT_EQ(std::memcmp(view.header.digest, digest.bytes.data(), 32), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.payload) % 64, 0u);
  EXPECT_EQ(kiln_reader_find_digest(reader.get(), digest.bytes.data(), KILN_ARTIFACT_PLAN, &view), KILN_MISS_ABSENT);
}

TEST(round_trip, code_of_every_size_runs) {
  TemporaryDirectory directory;
  auto store = open_store(directory.path());
  constexpr uint32_t k_count = 200;
  const auto size_of = [](uint32_t answer) { return 64 + size_t{answer} * 1531 % 60'000; };
  for (uint32_t i = 1; i <= k_count; ++i) ASSERT_TRUE(store->publish(code_batch(i, size_of(i))).ok());
  ASSERT_TRUE(store->flush().ok());
  const Reader reader = open_reader(directory.path());
  for (uint32_t i = 1; i <= k_count; ++i) EXPECT_EQ(run_code(reader.get(), i), i);
}

TEST(round_trip, a_head_follows_its_highest_generation) {
  TemporaryDirectory directory;
  auto store = open_store(directory.path());
  PublishBatch tuned = plan_batch(5, 100, 1);
  tuned.artifacts[0].payload = pattern(6, 200);
  tuned.heads[0].artifact = artifact_digest(tuned.artifacts[0]);
  ASSERT_TRUE(store->publish(tuned).ok());
  ASSERT_TRUE(store->publish(plan_batch(5, 100, 0)).ok());
  ASSERT_TRUE(store->flush().ok());
  const Reader reader = open_reader(directory.path());
  kiln_view view;
  ASSERT_EQ(kiln_reader_find_key(reader.get(), key_of(5).bytes.data(), KILN_ARTIFACT_PLAN, &view), KILN_HIT);
  EXPECT_EQ(view.generation, 1u);
  EXPECT_EQ(view.header.payload_size, 200u);
  EXPECT_EQ(store->history(key_of(5))->size(), 2u);
  EXPECT_EQ((*store->head(key_of(5)))->generation, 1u);
}

TEST(round_trip, the_first_publication_of_a_generation_wins) {
  TemporaryDirectory directory;
  auto store = open_store(directory.path());
  ASSERT_TRUE(store->publish(plan_batch(5, 100)).ok());
  EXPECT_TRUE(store->publish(plan_batch(5, 100)).ok()) << "the same again is success";
  EXPECT_EQ(store->publish(plan_batch(5, 101)).code(), StatusCode::already_exists);
  PublishBatch collision = plan_batch(5, 100, 1);
  collision.heads[0].canonical_key.push_back(0);
  EXPECT_EQ(store->publish(collision).code(), StatusCode::already_exists);
  EXPECT_EQ(store->stats().conflicts, 2u);
  EXPECT_EQ(store->stats().duplicates, 1u);
  EXPECT_EQ(store->stats().artifacts, 1u) << "a refused batch leaves nothing";
  PublishBatch dangling = plan_batch(9, 10);
  dangling.artifacts.clear();
  EXPECT_EQ(store->publish(dangling).code(), StatusCode::not_found);
}

TEST(round_trip, find_and_list_tell_what_was_published) {
  TemporaryDirectory directory;
  auto store = open_store(directory.path());
  const PublishBatch code = code_batch(3, 9000);
  ASSERT_TRUE(store->publish(code).ok());
  ASSERT_TRUE(store->publish(plan_batch(4, 50)).ok());
  const auto found = store->find(artifact_digest(code.artifacts[0]));
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ(**found, code.artifacts[0]);
  EXPECT_FALSE(store->find(key_of(1))->has_value());
  const auto entries = store->list({.kind = ArtifactKind::code});
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_FALSE(entries[0].mapped);
  ASSERT_EQ(entries[0].heads.size(), 1u);
  EXPECT_EQ(entries[0].heads[0].provenance, R"({"seed":3})");
  ASSERT_TRUE(store->flush().ok());
  EXPECT_TRUE(store->list({.kind = ArtifactKind::code})[0].mapped);
}

TEST(round_trip, a_second_store_on_the_directory_is_refused) {
  TemporaryDirectory directory;
  const auto store = open_store(directory.path());
  const auto second = CacheStore::open({.directory = directory.path()});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::failed_precondition);
  EXPECT_NE(second.status().message().find(std::to_string(getpid())), std::string::npos);
}

}  // namespace
}  // namespace kiln::testing
