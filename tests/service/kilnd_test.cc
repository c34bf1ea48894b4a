// kilnd with its real store: what it acknowledges, a reader that knows nothing of it finds.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <thread>
#include <utility>

#include "base/config/directories.h"
#include "base/limits.h"
#include "cache/fleet/sealed_entry.h"
#include "cache/pack/pack_writer.h"
#include "cache/reader/reader.h"
#include "client/connection/connection.h"
#include "tests/cache/servers.h"

namespace kiln {
namespace {

using protocol::Verb;

constexpr uint64_t k_patience_ms = 60'000;

/// The program's key of a graph (fakes/fake_worker.cc).
Digest key_of(const std::string& graph) { return digest_of(R"({"level":"program","graph":")" + graph + R"("})"); }

class KilndTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/kiln-kilnd-XXXXXX";
    m_directory = mkdtemp(name);
    std::filesystem::create_directories(m_directory + "/run");
    setenv("XDG_RUNTIME_DIR", (m_directory + "/run").c_str(), 1);
    setenv("XDG_STATE_HOME", (m_directory + "/state").c_str(), 1);
    m_config.cache_directory = m_directory + "/cache";
    setenv("FAKE_WORKER_NOTES", m_config.cache_directory.c_str(), 1);
    m_config.daemon_path = KILN_KILND;
    m_config.worker_path = KILN_FAKE_WORKER;
    m_config.worker_count = 2;
    m_config.daemon_start_timeout_ms = 20'000;
  }
  void TearDown() override {
    Connection connection(m_config);
    (void)connection.command({.verb = Verb::shutdown}, deadline_in(5'000), false);
    wait_for_end();
    std::filesystem::remove_all(m_directory);
  }

  void wait_for_end() const {
    for (int i = 0; i < 2'000; ++i) {
      const UniqueFd lock(open((m_config.cache_directory + "/kilnd.lock").c_str(), O_RDWR | O_CLOEXEC));
      if (!lock || flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FAIL() << "the daemon did not end";
  }

  Expected<protocol::Built> build(const std::string& text) const { return build(text, m_config); }
  static Expected<protocol::Built> build(const std::string& text, const Config& config, std::string name = {}) {
    Connection connection(config);
    protocol::Build request{0, {text.begin(), text.end()}, {{"cpu", "x86-64-v3"}}};
    request.keys = {key_of(text)};
    request.name = std::move(name);
    return connection.build(std::move(request), deadline_in(k_patience_ms));
  }

  /// Signs what it gives to the store at `url`, and believes itself.
  void use_store(const std::string& url) {
    const auto key = SigningKey::create();
    std::filesystem::create_directory(m_directory + "/trust");
    ASSERT_TRUE(key->write(m_directory + "/kiln.key", m_directory + "/trust/kiln.pub").ok());
    m_config.cache_remote = url;
    m_config.remote_budget_ms = k_patience_ms;
    m_config.remote_signing_key = m_directory + "/kiln.key";
    m_config.packs_trust = m_directory + "/trust";
  }

  /// The daemon leaves, and the next one has an empty cache.
  void start_afresh() {
    ask({.verb = Verb::shutdown});
    wait_for_end();
    std::filesystem::remove_all(m_config.cache_directory);
  }

  std::array<Expected<protocol::Built>, 2> build_while_made(const std::string& first, const std::string& second) {
    return build_while_made(first, second, m_config);
  }
  /// Builds the second graph, where that configuration says, once the first one's kernel is being made.
  std::array<Expected<protocol::Built>, 2> build_while_made(const std::string& first, const std::string& second,
                                                            const Config& config) {
    std::array<Expected<protocol::Built>, 2> built = {protocol::Built{}, protocol::Built{}};
    std::binary_semaphore is_made{0};
    std::thread maker([&] {
      Connection connection(m_config);
      bool said = false;
      const auto progress = [&](const protocol::Progress& step) {
        if (step.stage == "make" && !std::exchange(said, true)) is_made.release();
      };
      built[0] = connection.build({0, {first.begin(), first.end()}, {{"cpu", "x86-64-v3"}}}, deadline_in(k_patience_ms),
                                  progress);
    });
    EXPECT_TRUE(is_made.try_acquire_for(std::chrono::milliseconds(k_patience_ms)));
    built[1] = build(second, config);
    maker.join();
    return built;
  }

  nlohmann::json ask(protocol::Command command) {
    Connection connection(m_config);
    auto text = connection.command(std::move(command), deadline_in(k_patience_ms));
    EXPECT_TRUE(text.ok()) << text.status().to_string();
    return text.ok() ? nlohmann::json::parse(*text) : nlohmann::json();
  }

  /// The payload's size as a client would find it, or 0.
  uint64_t mapped_bytes(const Digest& key, kiln_artifact_kind kind) const {
    kiln_reader* reader = kiln_reader_open(m_config.cache_directory.c_str());
    kiln_view view{};
    const kiln_miss miss = kiln_reader_find_key(reader, key.bytes.data(), kind, &view);
    const uint64_t bytes = miss == KILN_HIT ? view.header.payload_size : 0;
    kiln_reader_close(reader);
    return bytes;
  }

  std::string m_directory;
  Config m_config;
};

TEST_F(KilndTest, what_is_answered_is_mapped_already) {
  for (int i = 0; i < 10; ++i) {
    const auto built = build("ok " + std::to_string(i));
    ASSERT_TRUE(built.ok()) << built.status().to_string();
    EXPECT_EQ(mapped_bytes(built->heads.at(0).key, KILN_ARTIFACT_PROGRAM), 100U);
  }
}

TEST_F(KilndTest, what_was_answered_outlives_a_kill) {
  const auto built = build("ok");
  ASSERT_TRUE(built.ok());
  kill(static_cast<pid_t>(ask({.verb = Verb::status}).at("pid").get<int>()), SIGKILL);
  wait_for_end();
  EXPECT_EQ(mapped_bytes(built->heads.at(0).key, KILN_ARTIFACT_PROGRAM), 100U);
  EXPECT_EQ(ask({.verb = Verb::list}).at("entries").size(), 1U);
}

TEST_F(KilndTest, the_same_graph_built_again_is_the_same_entry) {
  ASSERT_TRUE(build("ok").ok());
  ASSERT_TRUE(build("ok").ok());
  EXPECT_EQ(ask({.verb = Verb::list}).at("entries").size(), 1U);
}

TEST_F(KilndTest, an_entry_is_shown_by_the_first_digits_of_its_key) {
  const auto built = build("ok");
  ASSERT_TRUE(built.ok());
  const std::string key = built->heads.at(0).key.to_hex();
  const auto shown = ask({.verb = Verb::show, .text = key.substr(0, 12)}).at("entry");
  EXPECT_EQ(shown.at("kind"), "program");
  EXPECT_EQ(shown.at("heads").at(0).at("key"), key);
  Connection connection(m_config);
  EXPECT_EQ(connection.command({.verb = Verb::show, .text = "no such"}, deadline_in(k_patience_ms)).status().code(),
            StatusCode::not_found);
}

TEST_F(KilndTest, a_program_that_was_not_judged_is_counted_and_says_why) {
  ASSERT_TRUE(build("ok").ok());
  EXPECT_EQ(ask({.verb = Verb::stats}).at("counters").at("programs_not_judged"), 0);
  const auto built = build("unjudged");
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  EXPECT_EQ(ask({.verb = Verb::stats}).at("counters").at("programs_not_judged"), 1);
  const auto head_of = [&](const Digest& key) {
    return ask({.verb = Verb::show, .key = key}).at("entry").at("heads").at(0);
  };
  EXPECT_EQ(head_of(built->heads.at(0).key).at("not_judged"), "it needs 9 bytes, at most 1");
  EXPECT_EQ(head_of(built->heads.at(0).key).at("key_parts").size(), 2U);  // its own alone
  EXPECT_FALSE(head_of(key_of("ok")).contains("not_judged"));
}

TEST_F(KilndTest, an_entry_has_the_name_that_its_client_gave_it) {
  ASSERT_TRUE(build("ok", m_config, "Model\n\x1b[2J: matmul").ok());
  ASSERT_TRUE(build("ok without", m_config).ok());
  ASSERT_TRUE(build("ok long", m_config, std::string(4'000, 'x')).ok());
  const auto head_of = [&](const char* graph) {
    return ask({.verb = Verb::show, .key = key_of(graph)}).at("entry").at("heads").at(0);
  };
  EXPECT_EQ(head_of("ok").at("name"), "Model\\n\\x1b[2J: matmul");
  EXPECT_EQ(head_of("ok").at("key_parts").size(), 2U);  // its own alone
  EXPECT_FALSE(head_of("ok without").contains("name"));
  EXPECT_LE(head_of("ok long").at("name").get<std::string>().size(), limits::k_name_bytes);
  const std::string events = ask({.verb = Verb::events}).dump();
  EXPECT_NE(events.find(key_of("ok").to_short() + " (Model"), std::string::npos) << events;
}

/// Names of ops come out of graphs that anybody may have made.
TEST_F(KilndTest, what_is_logged_forges_no_line) {
  EXPECT_FALSE(build("fail x\n2026-01-01T00:00:00.000 1 info all is well\x1b[1A").ok());
  ask({.verb = Verb::shutdown});
  wait_for_end();
  std::ifstream log(log_path(m_directory + "/state/kiln", m_config.cache_directory));
  bool is_told = false;
  for (std::string line; std::getline(log, line);) {
    EXPECT_FALSE(line.starts_with("2026-01-01T00:00:00.000")) << line;
    is_told = is_told || line.find("op x\\n2026-01-01T00:00:00.000 1 info all is well\\x1b[1A") != std::string::npos;
  }
  EXPECT_TRUE(is_told);
}

TEST_F(KilndTest, a_capture_is_kept_and_a_later_one_takes_its_place) {
  const Digest key = digest_of("capture key");
  EXPECT_EQ(ask({.verb = Verb::capture_put, .key = key, .text = "{}", .data = std::vector<uint8_t>(50)}).at("stored"),
            true);
  EXPECT_EQ(mapped_bytes(key, KILN_ARTIFACT_CAPTURE), 50U);
  EXPECT_EQ(ask({.verb = Verb::capture_put, .key = key, .text = "{}", .data = std::vector<uint8_t>(60)}).at("stored"),
            true);
  EXPECT_EQ(mapped_bytes(key, KILN_ARTIFACT_CAPTURE), 60U);
}

TEST_F(KilndTest, a_capture_has_the_name_that_its_client_gave_it) {
  const std::string parts = R"({"level":"capture","key":"1"})";
  ask({.verb = Verb::capture_put, .key = digest_of(parts), .text = parts, .data = {1}, .name = "Block: capture\n"});
  const nlohmann::json head = ask({.verb = Verb::list}).at("entries").at(0).at("heads").at(0);
  EXPECT_EQ(head.value("name", ""), "Block: capture\\n") << "it begins no line";
  EXPECT_EQ(head.at("key_parts"), nlohmann::json::parse(parts));
}

TEST_F(KilndTest, a_capture_that_grows_leaves_no_more_than_its_last_states) {
  const Digest key = digest_of("capture key");
  for (size_t size = 50; size < 60; ++size) {
    ask({.verb = Verb::capture_put, .key = key, .text = "{}", .data = std::vector<uint8_t>(size)});
  }
  EXPECT_EQ(ask({.verb = Verb::list}).at("entries").size(), limits::k_capture_generations);
  EXPECT_EQ(mapped_bytes(key, KILN_ARTIFACT_CAPTURE), 59U);
}

TEST_F(KilndTest, a_head_that_leads_to_nothing_is_an_error_and_the_daemon_lives_on) {
  ASSERT_TRUE(build("ok").ok());
  const auto pid = ask({.verb = Verb::status}).at("pid");
  EXPECT_EQ(build("astray").status().code(), StatusCode::internal);
  EXPECT_TRUE(build("ok too").ok());
  EXPECT_EQ(ask({.verb = Verb::status}).at("pid"), pid);
}

/// Whoever asks for what is kept could not read it. The answer is something that can be read.
TEST_F(KilndTest, what_is_damaged_under_a_living_daemon_is_found_again_after_the_next_build) {
  const auto built = build("varies");
  ASSERT_TRUE(built.ok());
  const Digest key = built->heads.at(0).key;
  const auto flip_all = [](const std::filesystem::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(file)), {});
    for (size_t i = 0; i < bytes.size(); i += 100) bytes[i] = static_cast<char>(bytes[i] ^ 1);
    file.seekp(0);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  const auto damages = {
      std::pair(
          "store file", +[](const std::string& name) { return name.ends_with(".sst"); }),
      std::pair(
          "index", +[](const std::string& name) { return name.starts_with("index."); }),
      std::pair(
          "CURRENT", +[](const std::string& name) { return name == "CURRENT"; }),
  };
  for (const auto& [what, is_meant] : damages) {
    ASSERT_EQ(mapped_bytes(key, KILN_ARTIFACT_PROGRAM), 5'000U) << what;
    for (const auto& entry : std::filesystem::directory_iterator(m_config.cache_directory + "/pub")) {
      if (is_meant(entry.path().filename())) flip_all(entry.path());
    }
    ASSERT_EQ(mapped_bytes(key, KILN_ARTIFACT_PROGRAM), 0U) << what;
    const auto again = build("varies");
    ASSERT_TRUE(again.ok()) << what << ": " << again.status().to_string();
    EXPECT_EQ(mapped_bytes(key, KILN_ARTIFACT_PROGRAM), 5'000U) << what;
  }
  std::filesystem::remove_all(m_config.cache_directory + "/pub");
  const auto again = build("varies");
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(mapped_bytes(key, KILN_ARTIFACT_PROGRAM), 5'000U) << "published folder removed";
  EXPECT_EQ(ask({.verb = Verb::verify}).at("damaged").size(), 0U);
}

TEST_F(KilndTest, WhatIsThereByThenIsAnsweredWithoutAWorkerUnlessItsAskerNamesNoKeys) {
  const auto built = build("ok");
  ASSERT_TRUE(built.ok());
  const auto found = build("ok");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->compilations, 0U);
  ASSERT_EQ(found->heads.size(), 1U);
  EXPECT_EQ(found->heads[0], built->heads[0]);
  EXPECT_EQ(ask({.verb = Verb::stats})["counters"]["builds_found"], 1);
  Connection connection(m_config);
  const auto looked_at = connection.build({0, {'o', 'k'}, {{"cpu", "x86-64-v3"}}}, deadline_in(k_patience_ms));
  ASSERT_TRUE(looked_at.ok());
  EXPECT_EQ(looked_at->compilations, 3U) << "by a worker, which looks closer";
  ask({.verb = Verb::clear});
  EXPECT_EQ(build("ok")->compilations, 3U);
}

TEST_F(KilndTest, a_full_cache_makes_room_for_what_comes) {
  constexpr uint64_t k_mib = uint64_t{1} << 20;
  m_config.cache_size_max_bytes = 30 * k_mib;
  Digest first{}, last{};
  for (int i = 0; i < 8; ++i) {  // of 8 MiB each
    const auto built = build(fmt::format("big {}", i));
    ASSERT_TRUE(built.ok()) << built.status().to_string();
    last = built->heads.at(0).key;
    if (i == 0) first = last;
    EXPECT_EQ(mapped_bytes(last, KILN_ARTIFACT_PROGRAM), 8 * k_mib);
  }
  EXPECT_LE(ask({.verb = Verb::list}).at("store").at("file_bytes").get<uint64_t>(), 39 * k_mib);
  EXPECT_EQ(mapped_bytes(first, KILN_ARTIFACT_PROGRAM), 0U);
  ASSERT_TRUE(build("big 0").ok());
  EXPECT_EQ(mapped_bytes(first, KILN_ARTIFACT_PROGRAM), 8 * k_mib);
}

TEST_F(KilndTest, clear_verify_gc_and_pin_answer_with_numbers) {
  const auto built = build("ok");
  ASSERT_TRUE(built.ok());
  EXPECT_EQ(ask({.verb = Verb::verify}).at("damaged").size(), 0U);
  EXPECT_EQ(ask({.verb = Verb::pin, .key = built->heads.at(0).key, .text = "on"}).at("pinned"), true);
  EXPECT_TRUE(ask({.verb = Verb::gc}).contains("after"));
  EXPECT_EQ(ask({.verb = Verb::clear}).at("after").at("artifacts"), 0);
  EXPECT_EQ(mapped_bytes(built->heads.at(0).key, KILN_ARTIFACT_PROGRAM), 0U);
  EXPECT_TRUE(build("ok").ok());
}

// ---- code that a build need not make (fakes/fake_worker.cc: all "layer…" graphs have one kernel in common)

constexpr std::string_view k_layer_parts = R"({"level":"code"})";
const Digest k_layer = digest_of(k_layer_parts);

TEST_F(KilndTest, GraphsThatShareALayerCompileItOnceEvenAtTheSameTime) {
  const auto [first, second] = build_while_made("layer a", "layer b");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->compilations + second->compilations, 1U);
  EXPECT_EQ(build("layer c")->compilations, 0U);
  EXPECT_EQ(mapped_bytes(k_layer, KILN_ARTIFACT_CODE), 64U);
  EXPECT_EQ(ask({.verb = Verb::stats})["counters"]["kernels_supplied"], 2);
}

/// Whoever waits for a build that dies, or whose program turns out wrong, is not left without the code.
TEST_F(KilndTest, WhoWaitsForALayerGetsItWhateverBecomesOfItsMaker) {
  for (const char* maker : {"layer dead", "layer bad"}) {
    const auto [failed, waited] = build_while_made(maker, "layer of another");
    EXPECT_FALSE(failed.ok());
    ASSERT_TRUE(waited.ok()) << maker << ": " << waited.status().to_string();
    EXPECT_EQ(mapped_bytes(k_layer, KILN_ARTIFACT_CODE), 64U);
    ask({.verb = Verb::clear});
  }
}

TEST_F(KilndTest, CodeOfAMountedPackOrASharedDirectoryIsNotCompiledAgain) {
  const auto key = SigningKey::create();
  ASSERT_TRUE(key.ok());
  for (const char* folder : {"/packs", "/trust"}) std::filesystem::create_directory(m_directory + folder);
  ASSERT_TRUE(key->write(m_directory + "/kiln.key", m_directory + "/trust/kiln.pub").ok());
  const Artifact code{ArtifactKind::code, {}, std::vector<uint8_t>(80, 0x90)};
  auto pack = PackWriter::create(m_directory + "/packs/a.kpack", 1, 1);
  ASSERT_TRUE(pack.ok());
  ASSERT_TRUE(pack->add(code).ok());
  ASSERT_TRUE(pack->add(k_layer, artifact_digest(code), 5, {std::string(k_layer_parts), "{}", {}}).ok());
  ASSERT_TRUE(pack->finish(&*key).ok());

  m_config.packs_path = m_directory + "/packs";
  m_config.packs_trust = m_directory + "/trust";
  const auto built = build("layer a");
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  EXPECT_EQ(built->compilations, 0U);
  EXPECT_EQ(mapped_bytes(k_layer, KILN_ARTIFACT_CODE), 80U);  // the program leads to it where there is no pack, too

  m_config.cache_shared = m_config.cache_directory;
  m_config.cache_directory = m_directory + "/other";
  m_config.packs_path = "";
  const auto beside = build("layer a");
  ASSERT_TRUE(beside.ok()) << beside.status().to_string();
  EXPECT_EQ(beside->compilations, 0U);
  EXPECT_EQ(mapped_bytes(k_layer, KILN_ARTIFACT_CODE), 80U);
  ask({.verb = Verb::shutdown});
  wait_for_end();
  m_config.cache_directory = m_config.cache_shared;  // whose daemon TearDown ends
}

/// Whoever signs captures that are believed runs code of theirs in Python: that takes a trust of its own.
TEST_F(KilndTest, CapturesOfAPackAreInstalledWhereItsSignerIsTrustedForCaptures) {
  const auto key = SigningKey::create();
  ASSERT_TRUE(key.ok());
  const std::string trust = m_directory + "/trust", path = m_directory + "/a.kpack";
  std::filesystem::create_directory(trust);
  ASSERT_TRUE(key->write(m_directory + "/kiln.key", trust + "/kiln.pub").ok());
  const Artifact code{ArtifactKind::code, {}, std::vector<uint8_t>(80, 0x90)};
  const Artifact capture{ArtifactKind::capture, {}, std::vector<uint8_t>(50, 1)};
  const Digest code_digest = artifact_digest(code), capture_digest = artifact_digest(capture);
  const std::string parts = R"({"level":"capture"})";
  auto pack = PackWriter::create(path, 2, 2);
  ASSERT_TRUE(pack.ok());
  // Both come in the order of their names.
  const std::map<Digest, Artifact> artifacts = {{code_digest, code}, {capture_digest, capture}};
  const std::map<Digest, std::pair<Digest, std::string>> heads = {{k_layer, {code_digest, std::string(k_layer_parts)}},
                                                                  {digest_of(parts), {capture_digest, parts}}};
  for (const auto& [digest, artifact] : artifacts) ASSERT_TRUE(pack->add(artifact).ok());
  for (const auto& [head, leads_to] : heads) {
    ASSERT_TRUE(pack->add(head, leads_to.first, 0, {leads_to.second, "{}", {}}).ok());
  }
  ASSERT_TRUE(pack->finish(&*key).ok());

  const auto install = [&](const std::string& trusted_for_captures) {
    const nlohmann::json request{{"path", path}, {"trust", trust}, {"trust_captures", trusted_for_captures}};
    return ask({.verb = Verb::install, .text = request.dump()});
  };
  const auto without_captures = install("");
  EXPECT_EQ(without_captures.at("captures_left_out"), 1);
  EXPECT_EQ(without_captures.at("kinds"), nlohmann::json({{"code", 1}}));
  EXPECT_EQ(without_captures.at("keys"), 1);
  EXPECT_EQ(mapped_bytes(k_layer, KILN_ARTIFACT_CODE), 80U);
  EXPECT_EQ(mapped_bytes(digest_of(parts), KILN_ARTIFACT_CAPTURE), 0U);
  const auto with_captures = install(trust);
  EXPECT_EQ(with_captures.at("captures_left_out"), 0);
  EXPECT_EQ(with_captures.at("kinds"), nlohmann::json({{"capture", 1}, {"code", 1}}));
  EXPECT_EQ(with_captures.at("keys_kept"), 0);
  EXPECT_EQ(mapped_bytes(digest_of(parts), KILN_ARTIFACT_CAPTURE), 50U);

  ask({.verb = Verb::clear});
  EXPECT_EQ(build("layer a")->compilations, 1U);
  EXPECT_EQ(install("").at("keys_kept"), 1);
  EXPECT_EQ(mapped_bytes(k_layer, KILN_ARTIFACT_CODE), 64U) << "one answer per key and generation";
}

// ---- a store that hosts share (tests/cache/fleet_redis_test.cc has what becomes of it)

TEST_F(KilndTest, AFreshCacheBesideAFilledStoreCompilesNothing) {
  if (!testing::has_program("redis-server")) GTEST_SKIP() << "there is no redis-server";
  const testing::RedisServer redis;
  use_store(redis.url());
  ASSERT_TRUE(build("unjudged ok").ok());
  EXPECT_EQ(build("layer a")->compilations, 1U);
  start_afresh();

  const auto program = build("unjudged ok");
  ASSERT_TRUE(program.ok()) << program.status().to_string();
  EXPECT_EQ(program->compilations, 0U);
  EXPECT_EQ(mapped_bytes(key_of("unjudged ok"), KILN_ARTIFACT_PROGRAM), 100U);
  EXPECT_EQ(ask({.verb = Verb::show, .key = key_of("unjudged ok")})["entry"]["heads"][0]["not_judged"],
            "it needs 9 bytes, at most 1");
  EXPECT_EQ(build("layer b")->compilations, 0U);  // another program of a kernel that is there
  const auto status = ask({.verb = Verb::status});
  EXPECT_EQ(status["counters"]["builds_supplied"], 1);
  EXPECT_EQ(status["counters"]["kernels_supplied"], 1);
  EXPECT_EQ(status["fleet"]["entries_found"], 2);
}

/// A server that needs room drops what it likes: a program without its kernels, or kernels without their program.
TEST_F(KilndTest, WhatAStoreHasDroppedIsBuiltAndGivenToItAgain) {
  if (!testing::has_program("redis-server")) GTEST_SKIP() << "there is no redis-server";
  const testing::RedisServer redis({"--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"});
  use_store(redis.url());
  const auto name_of = [](const Digest& key) { return "kiln1:" + key.to_hex(); };
  EXPECT_EQ(build("layer a")->compilations, 1U);
  start_afresh();
  ASSERT_EQ(redis.ask({"DEL", name_of(key_of("layer a"))}), "1");
  EXPECT_EQ(build("layer a")->compilations, 0U);  // of the kernel that is left
  start_afresh();
  EXPECT_EQ(redis.ask({"EXISTS", name_of(key_of("layer a"))}), "1");
  ASSERT_EQ(redis.ask({"DEL", name_of(k_layer)}), "1");
  EXPECT_EQ(build("layer b")->compilations, 1U);
  EXPECT_EQ(build("layer a")->compilations, 0U);  // the program, which has all that it needs
  start_afresh();
  EXPECT_EQ(redis.ask({"EXISTS", name_of(k_layer)}), "1");
}

TEST_F(KilndTest, APlanThatHasRacedIsTakenFromTheStoreByOtherPrograms) {
  if (!testing::has_program("redis-server")) GTEST_SKIP() << "there is no redis-server";
  const testing::RedisServer redis;
  use_store(redis.url());
  EXPECT_EQ(build("raced a")->compilations, 1U);
  start_afresh();
  EXPECT_EQ(build("raced b")->compilations, 0U);
}

/// One that dies over it leaves it to the other.
TEST_F(KilndTest, DaemonsBesideOneStoreCompileAKernelOnce) {
  if (!testing::has_program("redis-server")) GTEST_SKIP() << "there is no redis-server";
  const testing::RedisServer redis;
  use_store(redis.url());
  Config other = m_config;
  other.cache_directory = m_directory + "/other";
  for (const char* maker : {"layer a", "layer dead"}) {
    const auto [made, waited] = build_while_made(maker, "layer of another", other);
    EXPECT_EQ(made.ok(), maker == std::string_view("layer a"));
    ASSERT_TRUE(waited.ok()) << waited.status().to_string();
    EXPECT_EQ(waited->compilations, made.ok() ? 0U : 1U);
    ask({.verb = Verb::clear});
    EXPECT_TRUE(Connection(other).command({.verb = Verb::clear}, deadline_in(k_patience_ms)).ok());
    redis.ask({"FLUSHALL"});
  }
  EXPECT_TRUE(Connection(other).command({.verb = Verb::shutdown}, deadline_in(k_patience_ms), false).ok());
}

/// Right code, and code that is wrong, that kills its judge, or that passes its own verdict and makes programs wrong.
TEST_F(KilndTest, CodeThatNobodySignedIsJudgedWhereTheConfigurationSaysSo) {
  if (!testing::has_program("redis-server")) GTEST_SKIP() << "there is no redis-server";
  const testing::RedisServer redis;
  m_config.cache_remote = redis.url();
  m_config.remote_budget_ms = k_patience_ms;
  m_config.remote_untrusted = "judge";
  const std::string name = "kiln1:" + k_layer.to_hex();
  const auto fleet_of = [&](const char* counter) { return ask({.verb = Verb::status})["fleet"][counter]; };
  EXPECT_EQ(build("layer a")->compilations, 1U);
  start_afresh();
  const std::string right = redis.ask({"GET", name});
  ASSERT_FALSE(right.empty());
  EXPECT_EQ(build("layer b")->compilations, 0U);
  EXPECT_EQ(mapped_bytes(k_layer, KILN_ARTIFACT_CODE), 64U);
  EXPECT_EQ(fleet_of("entries_accepted"), 1);
  EXPECT_EQ(ask({.verb = Verb::status})["counters"]["kernels_supplied"], 1);

  for (const uint8_t body : {0x11, 0xcc, 0xf4}) {
    start_afresh();
    const Artifact code{ArtifactKind::code, {}, std::vector<uint8_t>(64, body)};
    const auto planted = seal({.key = k_layer,
                               .digest = artifact_digest(code),
                               .artifact = code,
                               .canonical_key = std::string(k_layer_parts)},
                              nullptr);
    ASSERT_TRUE(planted.ok()) << planted.status().to_string();
    redis.ask({"SET", name, std::string(planted->begin(), planted->end())});
    const auto built = build("layer b");
    ASSERT_TRUE(built.ok()) << int{body} << ": " << built.status().to_string();
    EXPECT_EQ(built->compilations, 1U);
    EXPECT_EQ(fleet_of("entries_rejected"), 1) << int{body};
    start_afresh();
    EXPECT_EQ(redis.ask({"GET", name}), right) << int{body} << ": what was made here took its place";
  }
  m_config.remote_untrusted = "refuse";
  EXPECT_EQ(build("layer b")->compilations, 1U);
  EXPECT_GE(fleet_of("entries_refused"), 1);
}

/// Whoever signs captures that are believed runs code of theirs in Python: that takes a trust of its own.
TEST_F(KilndTest, ACaptureOfTheFleetIsFoundWhereItsSignerIsTrustedForCaptures) {
  if (!testing::has_program("redis-server")) GTEST_SKIP() << "there is no redis-server";
  const testing::RedisServer redis;
  use_store(redis.url());
  const std::string parts = R"({"level":"capture"})";
  const Digest key = digest_of(parts);
  const auto put = [&](size_t bytes) {
    ask({.verb = Verb::capture_put, .key = key, .text = parts, .data = std::vector<uint8_t>(bytes), .name = "Block"});
  };
  put(50);
  put(60);
  start_afresh();
  EXPECT_EQ(ask({.verb = Verb::capture_find, .key = key}).at("found"), false);
  EXPECT_EQ(ask({.verb = Verb::status})["fleet"]["entries_refused"], 1);
  start_afresh();
  m_config.packs_trust_captures = m_config.packs_trust;
  EXPECT_EQ(ask({.verb = Verb::capture_find, .key = key}).at("found"), true);
  EXPECT_EQ(mapped_bytes(key, KILN_ARTIFACT_CAPTURE), 60U);
  EXPECT_EQ(ask({.verb = Verb::list}).at("entries").at(0).at("heads").at(0).value("name", ""), "Block");
  EXPECT_EQ(ask({.verb = Verb::capture_find, .key = digest_of("another")}).at("found"), false);
  put(70);  // what grows here takes the place of what was there
  start_afresh();
  EXPECT_EQ(ask({.verb = Verb::capture_find, .key = key}).at("found"), true);
  EXPECT_EQ(mapped_bytes(key, KILN_ARTIFACT_CAPTURE), 70U);
}

TEST_F(KilndTest, WithAStoreThatIsGoneOrHangsBuildsGoOnAsWithoutOne) {
  use_store("redis://127.0.0.1:" + std::to_string(testing::free_port()));
  EXPECT_EQ(build("ok gone")->compilations, 3U);
  EXPECT_EQ(ask({.verb = Verb::status})["fleet"]["searches_failed"], 1);
  start_afresh();
  const testing::Peer silent([](int socket) {
    char asked[4096];
    while (recv(socket, asked, sizeof asked, 0) > 0) {
    }
  });
  m_config.cache_remote = "redis://127.0.0.1:" + std::to_string(silent.port());
  m_config.remote_budget_ms = 50;
  EXPECT_EQ(build("ok hangs")->compilations, 3U);
  EXPECT_EQ(ask({.verb = Verb::status})["fleet"]["searches_failed"], 1);
  m_config.cache_remote = "";
}

}  // namespace
}  // namespace kiln
