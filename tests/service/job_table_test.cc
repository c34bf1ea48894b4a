#include "service/job_table.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/limits.h"

namespace kiln {
namespace {

using protocol::Priority;

protocol::Build graph(const std::string& text, Priority priority = Priority::waiting) {
  return {1, {text.begin(), text.end()}, {{"cpu", "x86-64-v3"}}, priority};
}

const Deadline k_now = Clock::now();

std::string text_of(const JobTable::Job* job) {
  return job == nullptr ? "nothing" : std::string(job->build.graph.begin(), job->build.graph.end());
}

TEST(JobTable, many_askers_of_one_key_are_one_job) {
  JobTable table;
  for (uint64_t session = 1; session <= 128; ++session) {
    ASSERT_TRUE(table.ask(graph("a"), {session, 1}, session, k_now).ok());
  }
  EXPECT_EQ(table.queued(), 1U);
  const JobTable::Job* job = table.next();
  ASSERT_NE(job, nullptr);
  EXPECT_EQ(table.next(), nullptr);
  ASSERT_TRUE(table.ask(graph("a"), {200, 1}, 200, k_now).ok());
  const auto askers = table.finish(job->key);
  ASSERT_EQ(askers.size(), 129U);
  EXPECT_FALSE(askers[0].joined);
  EXPECT_TRUE(askers[1].joined);
  EXPECT_TRUE(askers[128].joined);
  EXPECT_EQ(table.running() + table.queued(), 0U);
}

TEST(JobTable, another_target_is_another_key) {
  auto other = graph("a");
  other.targets[0].name = "x86-64-v4";
  EXPECT_NE(job_key(graph("a")), job_key(other));
  auto bound = graph("a");
  bound.targets[0].driver = "7";
  EXPECT_NE(job_key(graph("a")), job_key(bound));
  auto deterministic = graph("a");
  deterministic.targets[0].is_deterministic = true;
  EXPECT_NE(job_key(graph("a")), job_key(deterministic));
  EXPECT_EQ(job_key(graph("a")), job_key(graph("a", Priority::background)));
}

TEST(JobTable, who_floods_the_queue_does_not_starve_others) {
  JobTable table;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(table.ask(graph("flood" + std::to_string(i)), {1, 1}, 1, k_now).ok());
  EXPECT_EQ(text_of(table.next()), "flood0");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(table.ask(graph("fair" + std::to_string(i)), {2, 1}, 2, k_now).ok());
  EXPECT_EQ(text_of(table.next()), "fair0");
  EXPECT_EQ(text_of(table.next()), "flood1");
  EXPECT_EQ(text_of(table.next()), "fair1");
  EXPECT_EQ(text_of(table.next()), "flood2");
  EXPECT_EQ(text_of(table.next()), "fair2");
  EXPECT_EQ(text_of(table.next()), "flood3");
}

TEST(JobTable, who_waits_comes_before_who_warms) {
  JobTable table;
  ASSERT_TRUE(table.ask(graph("warm", Priority::warming), {1, 1}, 1, k_now).ok());
  ASSERT_TRUE(table.ask(graph("warm too", Priority::warming), {1, 2}, 1, k_now).ok());
  ASSERT_TRUE(table.ask(graph("wait"), {2, 1}, 2, k_now).ok());
  ASSERT_TRUE(table.ask(graph("warm too"), {3, 1}, 3, k_now).ok());  // now somebody waits for it
  const JobTable::Job* joined = table.next();
  EXPECT_EQ(text_of(joined), "warm too");
  const JobTable::Job* waited_for = table.next();
  EXPECT_EQ(text_of(waited_for), "wait");
  EXPECT_EQ(text_of(table.next()), "nothing");
  table.finish(joined->key);
  EXPECT_EQ(text_of(table.next()), "nothing");
  table.leave(2);
  EXPECT_EQ(text_of(table.next()), "nothing") << "it was begun for somebody who waited";
  table.finish(waited_for->key);
  EXPECT_EQ(text_of(table.next()), "warm");
}

TEST(JobTable, what_nobody_waits_for_makes_way_and_has_its_turn_again) {
  JobTable table;
  const auto start = [&table](uint64_t number) {
    const JobTable::Job* job = table.next();
    if (job != nullptr) table.note_build(job->key, number);
    return job;
  };
  ASSERT_TRUE(table.ask(graph("warm", Priority::warming), {1, 1}, 1, k_now).ok());
  ASSERT_TRUE(table.ask(graph("joined", Priority::warming), {1, 2}, 1, k_now).ok());
  const JobTable::Job *warm = start(7), *joined = start(8);
  ASSERT_EQ(text_of(warm) + text_of(joined), "warmjoined");
  EXPECT_TRUE(table.in_the_way().empty());
  ASSERT_TRUE(table.ask(graph("joined"), {2, 1}, 2, k_now).ok());
  auto numbers = table.in_the_way();
  std::ranges::sort(numbers);
  EXPECT_EQ(numbers, (std::vector<uint64_t>{7, 8})) << "also the one that is waited for: it began as a lesser one";
  table.put_back(warm->key);
  table.put_back(joined->key);
  EXPECT_EQ(table.running(), 0U);
  EXPECT_EQ(table.queued(), 2U);
  ASSERT_EQ(text_of(start(9)), "joined");
  EXPECT_EQ(start(10), nullptr);
  EXPECT_TRUE(table.in_the_way().empty());
  EXPECT_EQ(table.finish(job_key(graph("joined"))).size(), 2U);
  EXPECT_EQ(text_of(start(11)), "warm");
}

TEST(JobTable, a_job_outlives_those_who_asked) {
  JobTable table;
  ASSERT_TRUE(table.ask(graph("left"), {1, 1}, 1, k_now).ok());
  ASSERT_TRUE(table.ask(graph("kept"), {2, 1}, 2, k_now).ok());
  table.leave(1);
  const JobTable::Job* kept = table.next();
  EXPECT_EQ(text_of(kept), "kept");
  table.finish(kept->key);
  const JobTable::Job* left = table.next();
  EXPECT_EQ(text_of(left), "left");
  EXPECT_TRUE(table.finish(left->key).empty());
}

TEST(JobTable, a_full_queue_refuses_new_keys_and_still_joins) {
  JobTable table;
  for (size_t i = 0; i < limits::k_queued_jobs; ++i)
    ASSERT_TRUE(table.ask(graph(std::to_string(i)), {1, 1}, 1, k_now).ok());
  EXPECT_EQ(table.ask(graph("one more"), {1, 2}, 1, k_now).code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(table.ask(graph("7"), {2, 1}, 2, k_now).ok());
}

TEST(JobTable, graphs_that_wait_are_bounded_in_bytes) {
  JobTable table;
  const auto large = [](char tag) { return graph(std::string(limits::k_held_request_bytes / 4, tag)); };
  for (const char tag : {'a', 'b', 'c', 'd'}) ASSERT_TRUE(table.ask(large(tag), {1, 1}, 1, k_now).ok());
  EXPECT_EQ(table.ask(large('e'), {1, 2}, 1, k_now).code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(table.ask(large('a'), {1, 3}, 1, k_now).ok()) << "who joins adds nothing";
  const Digest first = table.next()->key;
  table.finish(first);
  EXPECT_TRUE(table.ask(large('e'), {1, 4}, 1, k_now).ok());
}

TEST(JobTable, quarantine_refuses_with_the_cause_until_its_end) {
  JobTable table;
  table.quarantine(graph("bad"), error(StatusCode::aborted, "died of signal 11"), k_now + std::chrono::seconds(10));
  const Status status = table.ask(graph("bad"), {1, 1}, 1, k_now);
  EXPECT_EQ(status.code(), StatusCode::aborted);
  EXPECT_NE(status.message().find("signal 11"), std::string::npos);
  EXPECT_TRUE(table.ask(graph("good"), {1, 1}, 1, k_now).ok());
  EXPECT_TRUE(table.ask(graph("bad"), {1, 1}, 1, k_now + std::chrono::seconds(11)).ok());
}

TEST(JobTable, quarantine_is_bounded) {
  JobTable table;
  for (size_t i = 0; i < limits::k_quarantined_keys + 10; ++i) {
    table.quarantine(graph(std::to_string(i)), error(StatusCode::aborted, "x"), k_now + std::chrono::seconds(i));
  }
  EXPECT_EQ(table.quarantined().size(), limits::k_quarantined_keys);
}

}  // namespace
}  // namespace kiln
