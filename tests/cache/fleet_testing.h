#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cache/fleet/fleet_tier.h"
#include "tests/cache/cache_testing.h"
#include "tests/cache/servers.h"

/// What the tests of a fleet's store share: entries that can be recognised, and hosts.
namespace kiln::testing {

namespace fs = std::filesystem;

// Generous: the machine that runs the tests may be busy.
inline constexpr uint64_t k_patience_ms = 60'000;

/// A plan of which each byte tells its seed, under a key that does.
inline SourceEntry entry_of(uint64_t seed, size_t size = 300, uint32_t generation = 0) {
  const PublishBatch batch = plan_batch(seed, size);
  const Head& head = batch.heads[0];
  return {head.key,
          generation,
          head.artifact,
          batch.artifacts[0],
          {},
          std::string(head.canonical_key.begin(), head.canonical_key.end()),
          "{}"};
}

inline std::string name_of(uint64_t seed) { return "kiln1:" + entry_of(seed).key.to_hex(); }

template <typename Condition>
bool wait_until(Condition is_so) {
  const Deadline deadline = deadline_in(k_patience_ms);
  while (!is_so()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

class FleetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);  // as in the daemon
    for (const char* name : {"", "ours", "theirs"}) {
      fs::create_directories(m_directory.path(name));
      fs::permissions(m_directory.path(name), fs::perms::owner_all);
    }
    for (const char* name : {"ours", "theirs"}) {
      const auto key = SigningKey::create();
      ASSERT_TRUE(key->write(m_directory.path(name) + "/kiln.key", m_directory.path(name) + "/kiln.pub").ok());
    }
  }

  /// A host that signs with a key and believes its owner.
  std::unique_ptr<FleetTier> host(const std::string& url, const std::string& who = "ours", bool signs = true) {
    const std::string folder = m_directory.path(who);
    FleetSettings settings{{url, m_password_file}, signs ? folder + "/kiln.key" : "", folder, ""};
    auto tier = FleetTier::open(settings, [this](const std::string& sentence) {
      const std::scoped_lock lock(m_mutex);
      m_said.push_back(sentence);
    });
    EXPECT_TRUE(tier.ok()) << tier.status().to_string();
    return std::move(*tier);
  }

  /// Offers, and returns when it is written.
  static void write(FleetTier& tier, std::vector<SourceEntry> entries) {
    const uint64_t before = tier.counts().entries_written;
    const size_t count = entries.size();
    for (SourceEntry& entry : entries) tier.offer(std::move(entry));
    EXPECT_TRUE(wait_until([&] { return tier.counts().entries_written == before + count; }));
  }

  static std::vector<SourceEntry> find(FleetTier& tier, const std::vector<uint64_t>& seeds) {
    std::vector<Digest> keys;
    for (const uint64_t seed : seeds) keys.push_back(entry_of(seed).key);
    Patience patience{std::chrono::milliseconds(k_patience_ms)};
    return tier.find(keys, ArtifactKind::plan, patience);
  }
  /// Whether the entry of the seed is found, with its own bytes; any others are a failure.
  static bool finds(FleetTier& tier, uint64_t seed) {
    const auto found = find(tier, {seed});
    if (found.empty()) return false;
    EXPECT_EQ(found[0].artifact, entry_of(seed).artifact);
    EXPECT_EQ(found[0].digest, entry_of(seed).digest);
    return true;
  }

  TemporaryDirectory m_directory;
  std::string m_password_file;
  std::mutex m_mutex;
  std::vector<std::string> m_said;
};

}  // namespace kiln::testing
