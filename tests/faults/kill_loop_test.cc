// The daemon is killed at random moments under load. An oracle outside it knows what was acknowledged: all of that must be
// found by a reader that knows nothing of the daemon, with the right bytes, and no client may fail.

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <random>
#include <thread>

#include "cache/reader/reader.h"
#include "client/connection/connection.h"

namespace kiln {
namespace {

constexpr uint64_t k_patience_ms = 60'000;
constexpr int k_clients = 4;
constexpr auto k_duration = std::chrono::seconds(8);

/// Keys that were acknowledged, and the text their payload begins with.
class Oracle {
 public:
  void acknowledge(const Digest& key, std::string text) {
    const std::scoped_lock lock(m_mutex);
    m_expected.emplace_back(key, std::move(text));
  }
  std::vector<std::pair<Digest, std::string>> expected() {
    const std::scoped_lock lock(m_mutex);
    return m_expected;
  }

 private:
  std::mutex m_mutex;
  std::vector<std::pair<Digest, std::string>> m_expected;
};

pid_t daemon_pid(const Config& config) {
  Connection connection(config);
  const auto json = connection.command({.verb = protocol::Verb::status}, deadline_in(k_patience_ms));
  const size_t at = json.ok() ? json->find("\"pid\":") : std::string::npos;
  return at == std::string::npos ? 0 : static_cast<pid_t>(std::stol(json->substr(at + 6)));
}

/// How many of what was acknowledged a fresh reader finds whole.
size_t found_whole(const Config& config, const std::vector<std::pair<Digest, std::string>>& expected) {
  kiln_reader* reader = kiln_reader_open(config.cache_directory.c_str());
  size_t found = 0;
  for (const auto& [key, text] : expected) {
    kiln_view view{};
    const kiln_miss miss = kiln_reader_find_key(reader, key.bytes.data(), KILN_ARTIFACT_PROGRAM, &view);
    const bool whole = miss == KILN_HIT && view.header.payload_size >= text.size() &&
                       std::equal(text.begin(), text.end(), view.payload);
    EXPECT_TRUE(whole) << text << ": " << kiln_miss_name(miss);
    found += whole;
  }
  kiln_reader_close(reader);
  return found;
}

TEST(KillLoop, nothing_acknowledged_is_lost_and_no_client_fails) {
  char name[] = "/tmp/kiln-kill-XXXXXX";
  const std::string directory = mkdtemp(name);
  std::filesystem::create_directories(directory + "/run");
  setenv("XDG_RUNTIME_DIR", (directory + "/run").c_str(), 1);
  setenv("XDG_STATE_HOME", (directory + "/state").c_str(), 1);
  Config config;
  config.cache_directory = directory + "/cache";
  config.daemon_path = KILN_KILND;
  config.worker_path = KILN_FAKE_WORKER;
  config.worker_count = 2;
  config.daemon_start_timeout_ms = 20'000;

  Oracle oracle;
  std::atomic<bool> over = false;
  std::vector<std::thread> clients;
  for (int client = 0; client < k_clients; ++client) {
    clients.emplace_back([&, client] {
      Connection connection(config);
      for (int i = 0; !over; ++i) {
        const std::string text = fmt::format("ok client {} graph {}", client, i);
        // A client that meets four deaths in a row gives up, as it must; its caller asks again.
        for (;;) {
          const auto built =
              connection.build({0, {text.begin(), text.end()}, {{"cpu", "x86-64-v3"}}}, deadline_in(k_patience_ms));
          if (!built.ok()) {
            EXPECT_EQ(built.status().code(), StatusCode::unavailable) << built.status().to_string();
            continue;
          }
          oracle.acknowledge(built->heads.at(0).key, text);
          break;
        }
      }
    });
  }
  std::mt19937 random(std::random_device{}());
  int kills = 0;
  const Deadline end = Clock::now() + k_duration;
  while (Clock::now() < end) {
    const pid_t daemon = daemon_pid(config);
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 300));
    if (daemon > 0 && kill(daemon, SIGKILL) == 0) ++kills;
  }
  over = true;
  for (std::thread& client : clients) client.join();

  Connection connection(config);
  ASSERT_TRUE(connection.open().ok());  // whatever there was to repair is repaired
  const auto expected = oracle.expected();
  EXPECT_EQ(found_whole(config, expected), expected.size());
  EXPECT_GT(expected.size(), 10U);
  EXPECT_GT(kills, 5);
  std::printf("%d kills, %zu acknowledged\n", kills, expected.size());
  (void)connection.command({.verb = protocol::Verb::shutdown}, deadline_in(5'000), false);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace kiln
