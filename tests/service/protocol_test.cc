#include <gtest/gtest.h>

#include <random>

#include "base/limits.h"
#include "service/protocol/message.h"
#include "service/protocol/server_connection.h"

namespace kiln::protocol {
namespace {

/// The message in `bytes`, which must be exactly one frame.
Message read_back(std::span<const uint8_t> bytes) {
  FrameReader reader(limits::k_frame_bytes);
  bool whole = false;
  Frame frame;
  EXPECT_TRUE(reader.feed(bytes, whole, frame).ok());
  EXPECT_TRUE(whole);
  EXPECT_TRUE(bytes.empty());
  auto message = decode(frame);
  EXPECT_TRUE(message.ok()) << message.status().to_string();
  return std::move(message).value();
}

template <typename T>
std::vector<T> only(const std::vector<Action>& actions) {
  std::vector<T> found;
  for (const Action& action : actions) {
    if (const auto* each = std::get_if<T>(&action)) found.push_back(*each);
  }
  return found;
}

ServerConnection greeted() {
  ServerConnection connection(7);
  connection.start();
  EXPECT_TRUE(connection.receive(encode(Hello{k_protocol_version, "test", 1})).empty());
  return connection;
}

Build some_build(uint32_t id) { return {id, {1, 2, 3}, {{"cpu", "x86-64-v3", "7", true, 3}}, Priority::warming}; }

TEST(Message, every_kind_survives_its_bytes) {
  const Digest key = digest_of("key");
  const auto build = std::get<Build>(read_back(encode(some_build(5))));
  EXPECT_EQ(build.graph, (std::vector<uint8_t>{1, 2, 3}));
  EXPECT_EQ(build.targets, (std::vector<TargetName>{{"cpu", "x86-64-v3", "7", true, 3}}));
  EXPECT_EQ(build.priority, Priority::warming);

  const auto command = std::get<Command>(read_back(encode(Command{9, Verb::capture_put, key, "text", {4, 5}, "name"})));
  EXPECT_EQ(command.key, key);
  EXPECT_EQ(command.verb, Verb::capture_put);
  EXPECT_EQ(command.name, "name");
  EXPECT_EQ(command.data, (std::vector<uint8_t>{4, 5}));

  const Built built = std::get<Built>(read_back(encode(Built{3, {{key, digest_of("a"), 2}}, 11, true, "{}"})));
  EXPECT_EQ(built.heads, (std::vector<PublishedHead>{{key, digest_of("a"), 2}}));
  EXPECT_EQ(built.compilations, 11U);
  EXPECT_TRUE(built.joined);

  const auto failure =
      std::get<Failure>(read_back(encode(Failure{4, error(StatusCode::data_loss, "lost {}", 1).with_op("exp"), 11})));
  EXPECT_EQ(failure.status.code(), StatusCode::data_loss);
  EXPECT_EQ(failure.status.message(), "lost 1");
  EXPECT_EQ(failure.status.op(), "exp");
  EXPECT_EQ(failure.signal, 11U);

  const auto progress = std::get<Progress>(read_back(encode(Progress{1, "compile", "k3", 4, 8})));
  EXPECT_EQ(progress.stage, "compile");
  EXPECT_EQ(progress.total, 8U);
  EXPECT_EQ(std::get<Answer>(read_back(encode(Answer{1, "[]"}))).json, "[]");
}

TEST(Message, random_damage_is_an_error_or_another_message_never_a_crash) {
  std::mt19937 random(1);
  const std::vector<Message> seeds = {some_build(1), Command{2, Verb::show, digest_of("k"), "t", {1}},
                                      Built{3, {{digest_of("k"), digest_of("a"), 1}}, 1, false, "{}"}};
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    const auto bytes = encode(seeds[static_cast<size_t>(round) % seeds.size()]);
    Frame frame{static_cast<uint16_t>(1 + round % 3), {bytes.begin() + k_frame_header_bytes, bytes.end()}};
    for (int flips = 0; flips < 3; ++flips)
      frame.payload[random() % frame.payload.size()] = static_cast<uint8_t>(random());
    if (round % 5 == 0) frame.payload.resize(random() % frame.payload.size());
    refused += !decode(frame).ok();
  }
  EXPECT_GT(refused, 1000);
}

TEST(ServerConnection, greets_first_and_opens_on_the_peers_greeting) {
  ServerConnection connection(7);
  const auto sent = only<SendBytes>(connection.start());
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(std::get<Hello>(read_back(sent[0].bytes)).pid, 7U);
  EXPECT_TRUE(connection.timeout_ms().has_value());
  EXPECT_TRUE(connection.receive(encode(Hello{})).empty());
  EXPECT_FALSE(connection.closed());
  EXPECT_FALSE(connection.timeout_ms().has_value());
}

TEST(ServerConnection, another_version_is_told_and_closed) {
  ServerConnection connection(7);
  connection.start();
  const auto actions = connection.receive(encode(Hello{k_protocol_version + 1, "new", 1}));
  const auto sent = only<SendBytes>(actions);
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(std::get<Failure>(read_back(sent[0].bytes)).status.code(), StatusCode::failed_precondition);
  EXPECT_EQ(only<Close>(actions).size(), 1U);
  EXPECT_TRUE(connection.receive(encode(some_build(1))).empty());
}

TEST(ServerConnection, a_request_before_the_greeting_closes) {
  ServerConnection connection(7);
  connection.start();
  EXPECT_EQ(only<Close>(connection.receive(encode(some_build(1)))).size(), 1U);
}

TEST(ServerConnection, nobody_may_send_much_before_the_greeting) {
  ServerConnection connection(7);
  connection.start();
  const auto actions = connection.receive(encode_frame(0, std::vector<uint8_t>(limits::k_greeting_bytes + 1)));
  ASSERT_EQ(only<Close>(actions).size(), 1U);
  EXPECT_EQ(only<Close>(actions)[0].reason.code(), StatusCode::resource_exhausted);
}

TEST(ServerConnection, several_requests_in_one_read_are_all_started_and_answered_by_number) {
  ServerConnection connection = greeted();
  auto bytes = encode(some_build(1));
  const auto more = encode(Command{2, Verb::status, {}, "", {}});
  bytes.insert(bytes.end(), more.begin(), more.end());

  const auto actions = connection.receive(bytes);

  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(std::get<StartBuild>(actions[0]).build.id, 1U);
  EXPECT_EQ(std::get<RunCommand>(actions[1]).command.id, 2U);
  EXPECT_EQ(connection.answer(Progress{1, "compile", "", 1, 2}).size(), 1U);
  EXPECT_EQ(connection.requests_in_flight(), 2U);
  EXPECT_EQ(connection.answer(Built{1}).size(), 1U);
  EXPECT_TRUE(connection.answer(Built{1}).empty());
  EXPECT_EQ(connection.requests_in_flight(), 1U);
}

TEST(ServerConnection, too_many_requests_in_flight_are_refused_one_by_one) {
  ServerConnection connection = greeted();
  for (uint32_t id = 1; id <= limits::k_connection_requests; ++id) connection.receive(encode(some_build(id)));
  const auto actions = connection.receive(encode(some_build(1000)));
  ASSERT_EQ(actions.size(), 1U);
  const auto failure = std::get<Failure>(read_back(std::get<SendBytes>(actions[0]).bytes));
  EXPECT_EQ(failure.id, 1000U);
  EXPECT_EQ(failure.status.code(), StatusCode::resource_exhausted);
  EXPECT_FALSE(connection.closed());
}

TEST(ServerConnection, a_number_in_flight_twice_or_zero_closes) {
  ServerConnection twice = greeted();
  twice.receive(encode(some_build(1)));
  EXPECT_EQ(only<Close>(twice.receive(encode(some_build(1)))).size(), 1U);
  ServerConnection zero = greeted();
  EXPECT_EQ(only<Close>(zero.receive(encode(some_build(0)))).size(), 1U);
}

TEST(ServerConnection, a_half_closed_peer_still_gets_its_answer) {
  ServerConnection connection = greeted();
  connection.receive(encode(some_build(1)));
  EXPECT_TRUE(connection.receive_end().empty());
  const auto actions = connection.answer(Built{1});
  EXPECT_EQ(only<SendBytes>(actions).size(), 1U);
  EXPECT_EQ(only<Close>(actions).size(), 1U);
}

TEST(ServerConnection, a_frame_begun_must_be_ended_in_time) {
  ServerConnection connection = greeted();
  const auto bytes = encode(some_build(1));
  connection.receive(std::span(bytes).first(10));
  ASSERT_TRUE(connection.timeout_ms().has_value());
  const auto actions = connection.timeout();
  ASSERT_EQ(only<Close>(actions).size(), 1U);
  EXPECT_EQ(only<Close>(actions)[0].reason.code(), StatusCode::deadline_exceeded);
}

TEST(ServerConnection, random_bytes_close_it_and_never_more) {
  std::mt19937 random(2);
  for (int round = 0; round < 2'000; ++round) {
    ServerConnection connection = greeted();
    std::vector<uint8_t> noise(1 + random() % 200);
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random());
    EXPECT_LE(only<Close>(connection.receive(noise)).size(), 1U);
  }
}

}  // namespace
}  // namespace kiln::protocol
