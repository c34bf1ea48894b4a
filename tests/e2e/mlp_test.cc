// The main job in small: a cold process compiles through the daemon; with the daemon gone, another process runs the same
// graph from the mapped cache.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>

#include "cache/fleet/sealed_entry.h"
#include "tests/cache/servers.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

class Mlp : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "kiln-e2e-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    m_directory = pattern;
    setenv("KILN_CACHE_DIR", (m_directory / "cache").c_str(), 1);
    setenv("XDG_STATE_HOME", (m_directory / "state").c_str(), 1);
    setenv("KILN_DAEMON_PATH", KILND, 1);
    setenv("KILN_DAEMON_IDLE_EXIT_MS", "20000", 1);
    for (const char* other :
         {"KILN_NO_DAEMON", "KILN_PACKS_PATH", "KILN_PACKS_TRUST", "KILN_REQUIRE_HIT", "KILN_READONLY", "KILN_RECACHE",
          "KILN_CACHE_REMOTE", "KILN_REMOTE_SIGNING_KEY", "KILN_REMOTE_UNTRUSTED"}) {
      unsetenv(other);
    }
  }
  void TearDown() override {
    stop_daemon();
    fs::remove_all(m_directory);
  }

  static nlohmann::json run_process(const char* program = MLP_PROCESS) {
    FILE* process = popen(program, "r");
    std::string text;
    std::array<char, 4096> line{};
    while (std::fgets(line.data(), line.size(), process) != nullptr) text += line.data();
    const int status = pclose(process);
    EXPECT_FALSE(text.empty());
    nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
    json["status"] = status;
    return json;
  }

  static int kiln(const std::string& arguments) { return std::system((KILN_CLI " -q " + arguments).c_str()); }

  /// A product, then `rest`: the path of the graph's file.
  std::string write_graph(const char* name, const std::string& rest) const {
    const std::string path = (m_directory / name).string();
    std::ofstream(path) << "graph(%x: f32[32, 96], %w: f32[96, 48], %v: f32[48, 80]) {\n  %h = matmul(%x, %w)\n"
                        << rest << "}\n";
    return path;
  }

  /// Signs a pack of the cache, stops the daemon, and goes on with a fresh cache beside the pack.
  void leave_cache_for_its_pack() const {
    ASSERT_EQ(kiln("key create " + (m_directory / "key").string()), 0);
    fs::create_directory(m_directory / "packs");
    ASSERT_EQ(kiln("pack create " + (m_directory / "packs/layer.kpack").string() + " --sign " +
                   (m_directory / "key/kiln.key").string()),
              0);
    ASSERT_EQ(kiln("daemon stop"), 0);

    setenv("KILN_CACHE_DIR", (m_directory / "fresh").c_str(), 1);
    setenv("KILN_PACKS_PATH", (m_directory / "packs").c_str(), 1);
    setenv("KILN_PACKS_TRUST", (m_directory / "key").c_str(), 1);
  }

  static std::string bytes_of(const std::string& path) {
    std::ostringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    return bytes.str();
  }

  static void stop_daemon() {
    // The daemon names its process in its lock's file only to people; asking it by name is enough here.
    [[maybe_unused]] const int ignored =
        std::system(("pkill -TERM -f '" KILND ".*" + std::string(getenv("KILN_CACHE_DIR")) + "'").c_str());
    usleep(300'000);
  }

  fs::path m_directory;
};

TEST_F(Mlp, ACompiledGraphRunsInALaterProcessWithoutTheDaemon) {
  const auto cold = run_process();
  ASSERT_EQ(cold["status"], 0);
  EXPECT_GT(cold["compilations"], 0);
  EXPECT_EQ(cold["misses"], 1);
  EXPECT_EQ(cold["hits_mapped"], 0);

  stop_daemon();
  setenv("KILN_NO_DAEMON", "1", 1);
  const auto warm = run_process();
  ASSERT_EQ(warm["status"], 0);
  EXPECT_EQ(warm["compilations"], 0);
  EXPECT_EQ(warm["misses"], 0);
  EXPECT_EQ(warm["hits_mapped"], 1);
}

TEST_F(Mlp, AFreshCacheBesideATrustedPackCompilesNothing) {
  ASSERT_EQ(run_process()["status"], 0);
  ASSERT_EQ(kiln("key create " + (m_directory / "key").string()), 0);
  fs::create_directory(m_directory / "packs");
  const std::string pack = (m_directory / "packs/mlp.kpack").string();
  ASSERT_EQ(kiln("pack create " + pack + " --sign " + (m_directory / "key/kiln.key").string()), 0);
  const std::string again = (m_directory / "again.kpack").string();
  ASSERT_EQ(kiln("pack create " + again + " --sign " + (m_directory / "key/kiln.key").string()), 0);
  EXPECT_TRUE(bytes_of(again) == bytes_of(pack)) << "what is in a pack decides its bytes";
  stop_daemon();

  setenv("KILN_CACHE_DIR", (m_directory / "fresh").c_str(), 1);
  setenv("KILN_NO_DAEMON", "1", 1);
  setenv("KILN_PACKS_PATH", (m_directory / "packs").c_str(), 1);
  EXPECT_EQ(run_process()["error"], 14);  // unavailable: it trusts nobody
  setenv("KILN_PACKS_TRUST", (m_directory / "key").c_str(), 1);
  const auto mounted = run_process();
  EXPECT_EQ(mounted["status"], 0);
  EXPECT_EQ(mounted["misses"], 0);
  EXPECT_EQ(mounted["hits_mapped"], 1);
  EXPECT_FALSE(fs::exists(m_directory / "fresh"));

  unsetenv("KILN_PACKS_PATH");
  unsetenv("KILN_NO_DAEMON");
  EXPECT_EQ(kiln("pack install " + pack), 0);
  stop_daemon();
  setenv("KILN_NO_DAEMON", "1", 1);
  fs::remove(pack);
  const auto installed = run_process();
  EXPECT_EQ(installed["status"], 0);
  EXPECT_EQ(installed["misses"], 0);
}

TEST_F(Mlp, ABuildTakesTheCodeOfALayerThatAPackHasFromAnotherGraph) {
  const std::string gelu = "  %g = gelu(%h) {approximate = \"tanh\"}\n";
  const std::string layer = write_graph("layer.kiln", gelu + "  return %g\n");
  const std::string model = write_graph("model.kiln", gelu + "  %o = matmul(%g, %v)\n  return %o, %g\n");
  ASSERT_EQ(kiln("warm " + layer), 0);
  ASSERT_NO_FATAL_FAILURE(leave_cache_for_its_pack());

  ASSERT_EQ(kiln("warm " + model), 0);
  const auto counters = run_process(KILN_CLI " status --json")["counters"];
  EXPECT_GE(counters["kernels_supplied"], 1) << counters;
  EXPECT_EQ(counters["compilations"], 1) << counters;  // the other product
}

TEST_F(Mlp, ABuildThatIsToRaceTakesTheRecordThatAPackHasFromAnotherGraph) {
  const auto records = [] {
    const auto listed = run_process(KILN_CLI " ls --kind record --json");
    std::set<std::string> digests;
    for (const auto& entry : listed["entries"]) digests.insert(entry["digest"]);
    return digests;
  };
  const std::string layer = write_graph("layer.kiln", "  return %h\n");
  const std::string model = write_graph("model.kiln", "  %o = matmul(%h, %v)\n  return %o, %h\n");
  ASSERT_EQ(kiln("warm --tune " + layer), 0);
  const std::set<std::string> of_layer = records();
  ASSERT_EQ(of_layer.size(), 1U);
  ASSERT_NO_FATAL_FAILURE(leave_cache_for_its_pack());

  ASSERT_EQ(kiln("warm --tune " + model), 0);
  const std::set<std::string> of_model = records();
  EXPECT_EQ(of_model.size(), 2U) << "that of the other product, which has raced";
  EXPECT_TRUE(of_model.contains(*of_layer.begin())) << "a race has samples of its own";
}

TEST_F(Mlp, AFreshCacheBesideAFilledStoreCompilesNothing) {
  if (!testing::has_program("redis-server")) GTEST_SKIP() << "there is no redis-server";
  const testing::RedisServer redis;
  ASSERT_EQ(kiln("key create " + (m_directory / "key").string()), 0);
  setenv("KILN_CACHE_REMOTE", redis.url().c_str(), 1);
  setenv("KILN_REMOTE_BUDGET_MS", "60000", 1);
  setenv("KILN_REMOTE_SIGNING_KEY", (m_directory / "key/kiln.key").c_str(), 1);
  setenv("KILN_PACKS_TRUST", (m_directory / "key").c_str(), 1);
  EXPECT_GT(run_process()["compilations"], 0);
  EXPECT_EQ(kiln("daemon stop"), 0);

  setenv("KILN_CACHE_DIR", (m_directory / "fresh").c_str(), 1);
  const auto fresh = run_process();
  EXPECT_EQ(fresh["status"], 0);
  EXPECT_EQ(fresh["misses"], 1);
  EXPECT_EQ(fresh["compilations"], 0);
}

/// The code entries of a store, by name.
std::map<std::string, SourceEntry> code_in(const testing::RedisServer& redis) {
  std::map<std::string, SourceEntry> entries;
  std::istringstream names(redis.ask({"EVAL", "return table.concat(redis.call('KEYS', 'kiln1:?*'), ' ')", "0"}));
  for (std::string name; names >> name;) {
    const auto key = Digest::from_hex(name.substr(name.rfind(':') + 1));
    const std::string bytes = redis.ask({"GET", name});
    auto entry = open_sealed({bytes.begin(), bytes.end()}, key.value(), ArtifactKind::code, {}, true);
    if (entry.ok()) entries.emplace(name, std::move(*entry));
  }
  return entries;
}

TEST_F(Mlp, HostsWithoutKeysThatJudgeCodeShareWhatTheyCompileAndMakeWhatIsWrongThemselves) {
  if (!testing::has_program("redis-server")) GTEST_SKIP() << "there is no redis-server";
  const testing::RedisServer redis;
  setenv("KILN_CACHE_REMOTE", redis.url().c_str(), 1);
  setenv("KILN_REMOTE_BUDGET_MS", "60000", 1);
  setenv("KILN_REMOTE_UNTRUSTED", "judge", 1);
  const auto run_on_host = [&](const char* name) {
    setenv("KILN_CACHE_DIR", (m_directory / name).c_str(), 1);
    auto result = run_process();
    result["fleet"] = run_process(KILN_CLI " status --json")["fleet"];
    EXPECT_EQ(kiln("daemon stop"), 0);
    return result;
  };
  const auto first = run_on_host("first");
  const auto entries = code_in(redis);
  EXPECT_EQ(first["compilations"], entries.size());
  ASSERT_GE(entries.size(), 3U);
  const auto second = run_on_host("second");
  EXPECT_EQ(second["status"], 0);
  EXPECT_EQ(second["compilations"], 0);
  EXPECT_EQ(second["fleet"]["entries_accepted"], entries.size());

  const auto plant = [&](const std::string& name, SourceEntry entry, const Artifact& code) {
    entry.artifact = code;
    entry.digest = artifact_digest(code);
    const auto bytes = seal(entry, nullptr);
    redis.ask({"SET", name, std::string(bytes->begin(), bytes->end())});
  };
  const auto with_body = [](Artifact code, std::initializer_list<uint8_t> body) {
    std::copy(body.begin(), body.end(), code.payload.begin() + static_cast<ptrdiff_t>(code.launch.entry));
    return code;
  };
  auto at = entries.begin();
  plant(at->first, at->second, std::prev(entries.end())->second.artifact);  // another key's
  ++at;
  plant(at->first, at->second, with_body(at->second.artifact, {0xeb, 0xfe}));  // it goes round in a circle
  ++at;
  plant(at->first, at->second, with_body(at->second.artifact, {0x0f, 0x0b}));  // no instruction
  const auto lied_to = run_on_host("third");
  EXPECT_EQ(lied_to["status"], 0);
  EXPECT_GE(lied_to["compilations"], 3);
  EXPECT_EQ(lied_to["fleet"]["entries_rejected"], lied_to["compilations"]);
  const auto fourth = run_on_host("fourth");
  EXPECT_EQ(fourth["status"], 0);
  EXPECT_EQ(fourth["compilations"], 0) << "what was made took the lies' places";
}

TEST_F(Mlp, WhereHitsAreRequiredAMissIsAnErrorAndNothingIsStarted) {
  setenv("KILN_REQUIRE_HIT", "1", 1);
  const auto result = run_process();
  EXPECT_EQ(result["error"], 5);  // not_found
  EXPECT_FALSE(fs::exists(m_directory / "cache"));
}

TEST_F(Mlp, WhatIsNotToBeKeptIsNotAndWhatIsToBeCompiledAnewIs) {
  setenv("KILN_READONLY", "1", 1);
  EXPECT_GT(run_process()["compilations"], 0);
  EXPECT_GT(run_process()["compilations"], 0);
  unsetenv("KILN_READONLY");
  const auto kept = run_process();
  EXPECT_EQ(run_process()["hits_mapped"], 1);
  setenv("KILN_RECACHE", "1", 1);
  const auto anew = run_process();
  EXPECT_EQ(anew["status"], 0);
  EXPECT_EQ(anew["compilations"], kept["compilations"]);
}

TEST_F(Mlp, WithoutCacheAndDaemonTheErrorIsTyped) {
  setenv("KILN_NO_DAEMON", "1", 1);
  const auto result = run_process();
  EXPECT_NE(result["status"], 0);
  EXPECT_EQ(result["error"], 14);  // unavailable
}

TEST_F(Mlp, DisabledMeansNothingIsStarted) {
  setenv("KILN_DISABLE", "1", 1);
  const auto result = run_process();
  unsetenv("KILN_DISABLE");
  EXPECT_EQ(result["error"], 14);
  EXPECT_FALSE(fs::exists(m_directory / "cache"));
}

}  // namespace
}  // namespace kiln
