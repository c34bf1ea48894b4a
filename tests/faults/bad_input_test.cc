// Bad graphs and unusual data through the C ABI and the socket, with a real daemon behind both.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "client/connection/connection.h"
#include "client/include/kiln.hpp"
#include "frontend/ops/element_evaluator.h"
#include "frontend/text/text.h"
#include "frontend/wire/wire.h"
#include "tests/faults/host.h"

namespace kiln::faults {
namespace {

/// One daemon and one client for all cases.
class BadInput : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    s_host = std::make_unique<Host>();
    for (const auto& [name, value] : s_host->environment()) setenv(name.c_str(), value.c_str(), 1);
    s_client = std::make_unique<api::Client>();
  }
  static void TearDownTestSuite() {
    s_client.reset();
    s_host.reset();
  }

  static api::Program compile(const std::string& text) { return s_client->compile(api::Graph(text)); }

  /// Runs over `inputs` at `shift` bytes from a 64-byte boundary, and compares with the reference: NaN where NaN, equal
  /// infinities, else within 1e-5.
  static void expect_reference(const std::string& text, const std::vector<Tensor>& inputs, size_t shift = 0) {
    const api::Program program = compile(text);
    const auto expected = evaluate_exact(parse_text(text).value(), inputs);
    ASSERT_TRUE(expected.ok()) << expected.status().to_string();
    std::vector<std::vector<std::byte>> memory;
    const auto place = [&](size_t bytes) {
      memory.emplace_back(bytes + 64 + shift, std::byte{0xff});
      const auto address = reinterpret_cast<uintptr_t>(memory.back().data());
      return memory.back().data() + (-address & 63) + shift;
    };
    std::vector<const void*> sources;
    for (const Tensor& input : inputs) {
      std::byte* copy = place(input.bytes.size());
      std::ranges::copy(input.bytes, copy);
      sources.push_back(copy);
    }
    std::vector<void*> targets;
    for (const auto& values : *expected) targets.push_back(place(values.size() * sizeof(float)));
    program.run(sources, targets, 2);
    for (size_t o = 0; o < expected->size(); ++o) {
      for (size_t i = 0; i < (*expected)[o].size(); ++i) {
        const double want = (*expected)[o][i];
        const double got = load_element(DType::f32, static_cast<const std::byte*>(targets[o]), static_cast<int64_t>(i));
        const bool same =
            got == want || (std::isnan(got) && std::isnan(want)) || std::abs(got - want) < 1e-5 * (1 + std::abs(want));
        ASSERT_TRUE(same) << text << "\noutput " << o << " element " << i << ": " << got << ", expected " << want;
      }
    }
  }

  static std::unique_ptr<Host> s_host;
  static std::unique_ptr<api::Client> s_client;
};
std::unique_ptr<Host> BadInput::s_host;
std::unique_ptr<api::Client> BadInput::s_client;

Tensor normal(std::vector<int64_t> dims, bool with_specials = false) {
  static std::mt19937 random(3);
  std::normal_distribution<double> distribution;
  const double specials[] = {std::nan(""), INFINITY, -INFINITY, 0.0, -0.0, 1e30, -1e-38};
  Tensor tensor = Tensor::zeros(DType::f32, std::move(dims));
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    tensor.set(i, with_specials && random() % 9 == 0 ? specials[random() % std::size(specials)] : distribution(random));
  }
  return tensor;
}

TEST_F(BadInput, MalformedTextIsAnErrorThatSaysWhere) {
  for (const char* text :
       {"", "graph", "graph(%x: f32[3]) { return %y }", "graph(%x: f99[3]) { return %x }",
        "graph(%x: f32[3]) { %y = exq(%x) return %y }", "graph(%x: f32[-1]) { return %x }",
        "graph(%x: f32[3], %y: f32[4]) { %z = add(%x, %y) return %z }",
        "graph(%x: f32[99999999999999999999]) { return %x }", "\xff\xfe\x00", "graph(%x: f32[3]) {"}) {
    try {
      (void)api::Graph(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const api::Error& error) {
      EXPECT_TRUE(error.code() == KILN_INVALID_ARGUMENT || error.code() == KILN_NOT_FOUND)
          << error.code() << ": " << error.what();
      EXPECT_NE(std::string(error.what()).find(':'), std::string::npos) << error.what();
    }
  }
}

TEST_F(BadInput, AMalformedWireGraphIsRefusedAndTheDaemonLivesOn) {
  const std::vector<uint8_t> whole = to_wire(parse_text("graph(%x: f32[3]) { %y = exp(%x) return %y }").value());
  Connection connection(s_host->config());
  ASSERT_TRUE(connection.open().ok());
  const pid_t daemon = s_host->daemon_pid();
  std::mt19937 random(1);
  std::vector<std::vector<uint8_t>> graphs{{}, {1, 2, 3}, std::vector<uint8_t>(5'000, 0xff)};
  for (int i = 0; i < 20; ++i) {
    graphs.push_back(whole);
    for (int flip = 0; flip < 3; ++flip)
      graphs.back()[random() % whole.size()] ^= static_cast<uint8_t>(1 << random() % 8);
    if (i % 4 == 0) graphs.back().resize(random() % whole.size());
  }
  for (const auto& graph : graphs) {
    const auto built = connection.build({0, graph, {{"cpu", "x86-64-v3"}}}, deadline_in(30'000));
    // A flipped bit may make another valid graph.
    EXPECT_NE(built.status().code(), StatusCode::unavailable) << built.status().to_string();
  }
  EXPECT_FALSE(connection.build({0, {1, 2, 3}, {{"cpu", "x86-64-v3"}}}, deadline_in(30'000)).ok());
  EXPECT_FALSE(connection.build({0, whole, {{"cpu", "z80"}}}, deadline_in(30'000)).ok());
  EXPECT_FALSE(connection.build({0, whole, {}}, deadline_in(30'000)).ok());
  EXPECT_EQ(s_host->daemon_pid(), daemon);
}

TEST_F(BadInput, AProgramOfTheHostIsPutOnNoQueue) {
  const api::Program program = compile("graph(%x: f32[3]) { %y = exp(%x) return %y }");
  float x[3] = {}, y[3] = {};
  const auto expect_refusal = [](const auto& put) {
    try {
      put();
      ADD_FAILURE() << "the host has no queues";
    } catch (const api::Error& error) {
      EXPECT_EQ(error.code(), KILN_FAILED_PRECONDITION) << error.what();
    }
  };
  expect_refusal([&] { s_client->launch(program, nullptr, {x}, {y}); });
  expect_refusal([&] { s_client->call(program, nullptr, {x}, {y}); });
  expect_refusal([&] { s_client->finish(nullptr); });
}

TEST_F(BadInput, EmptyTensorsAreComputed) {
  expect_reference("graph(%x: f32[0, 5], %y: f32[0, 5]) { %z = add(%x, %y) return %z }",
                   {normal({0, 5}), normal({0, 5})});
  expect_reference("graph(%x: f32[0, 5]) { %z = sum(%x) {dims = [0]} return %z }", {normal({0, 5})});
  expect_reference("graph(%x: f32[3, 0], %y: f32[0, 4]) { %z = matmul(%x, %y) return %z }",
                   {normal({3, 0}), normal({0, 4})});
}

TEST_F(BadInput, TensorsNeedOnlyTheAlignmentOfTheirDtype) {
  const std::string text =
      "graph(%x: f32[33, 17], %w: f32[17, 29]) { %h = matmul(%x, %w) %y = softmax(%h) {dim = 1} %z = exp(%x) return "
      "%y, %z }";
  for (const size_t shift : {4, 12, 20, 60}) expect_reference(text, {normal({33, 17}), normal({17, 29})}, shift);
}

TEST_F(BadInput, NanAndInfinityGoWhereTheReferenceSends) {
  for (const char* body :
       {"%z = exp(%x)", "%z = maximum(%x, %y)", "%z = div(%x, %y)", "%z = tanh(%x)", "%z = sigmoid(%x)",
        "%z = amax(%x) {dims = [1]}", "%z = sum(%x) {dims = [1]}", "%z = softmax(%x) {dim = 1}",
        "%m = gt(%x, %y) %z = select(%m, %x, %y)", "%t = permute(%y) {dims = [1, 0]} %z = matmul(%x, %t)"}) {
    const std::string text = std::string("graph(%x: f32[23, 37], %y: f32[23, 37]) { ") + body + " return %z }";
    expect_reference(text, {normal({23, 37}, true), normal({23, 37}, true)});
  }
}

TEST_F(BadInput, AnIndexOutsideItsTableIsOutOfRange) {
  const api::Program program = compile("graph(%w: f32[10, 7], %i: i64[4]) { %y = embedding(%w, %i) return %y }");
  const Tensor table = normal({10, 7});
  std::vector<float> result(28);
  for (const int64_t bad :
       {int64_t{10}, int64_t{-1}, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    const int64_t indices[] = {0, 9, bad, 3};
    try {
      program.run({table.bytes.data(), indices}, {result.data()}, 1);
      ADD_FAILURE() << "accepted index " << bad;
    } catch (const api::Error& error) {
      EXPECT_EQ(error.code(), KILN_OUT_OF_RANGE) << error.what();
    }
  }
  const int64_t indices[] = {0, 9, 5, 3};
  program.run({table.bytes.data(), indices}, {result.data()}, 1);
  EXPECT_EQ(result[7], static_cast<float>(table.at(63)));
}

}  // namespace
}  // namespace kiln::faults
