// What happens to the cache's files before they are opened: damaged, cut, read only. A client may miss; it never gets a
// wrong result.

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/faults/host.h"

namespace kiln::faults {
namespace {

namespace fs = std::filesystem;

const std::vector<int> k_numbers{1, 2};

std::vector<fs::path> files_of(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("LOG") || name.starts_with("OPTIONS")) continue;  // for people
    if (entry.is_regular_file() && entry.file_size() > 0) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

void flip(const fs::path& file, std::mt19937& random, int flips) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto size = static_cast<std::streamoff>(fs::file_size(file));
  for (int i = 0; i < flips; ++i) {
    const std::streamoff at = static_cast<std::streamoff>(random()) % size;
    stream.seekg(at);
    const int byte = stream.get();
    stream.seekp(at);
    stream.put(static_cast<char>(byte ^ (1 << random() % 8)));
  }
}

/// Either right or a typed error, always an answer.
void expect_answers(const Outcome& outcome, const std::string& what) {
  EXPECT_TRUE(outcome.ended) << what;
  EXPECT_EQ(outcome.exit_code, 0) << what << ", signal " << outcome.signal;
  EXPECT_EQ(outcome.lines.size(), k_numbers.size()) << what;
  for (const std::string& line : outcome.lines) {
    EXPECT_TRUE(number_that_was_right(line) || error_code_in(line) > 0) << what << ": " << line;
  }
}

void expect_all_right(const Outcome& outcome, const std::string& what) {
  expect_answers(outcome, what);
  for (const std::string& line : outcome.lines) EXPECT_TRUE(number_that_was_right(line)) << what << ": " << line;
}

class Storage : public testing::Test {
 protected:
  Storage() {
    expect_all_right(host.compile(k_numbers), "cold");
    host.stop_daemon();
    fs::copy(host.cache(), whole(), fs::copy_options::recursive);
  }
  std::string whole() const { return host.directory() + "/whole"; }
  /// The cache as it was, its links too: what damages a published file damages the store's own.
  void restore() {
    fs::remove_all(host.cache());
    fs::copy(whole(), host.cache(), fs::copy_options::recursive);
    for (const auto& entry : fs::directory_iterator(host.cache() + "/db")) {
      const fs::path link = host.cache() / fs::path("pub") / entry.path().filename();
      if (fs::remove(link)) fs::create_hard_link(entry.path(), link);
    }
  }

  /// Without a daemon: a hit or a miss. With one: whatever is missing is built again, and is a hit from then on.
  void expect_survived(const std::string& what) {
    host.environment()["KILN_NO_DAEMON"] = "1";
    expect_answers(host.compile(k_numbers), what + ", no daemon");
    host.environment().erase("KILN_NO_DAEMON");
    expect_all_right(host.compile(k_numbers), what);
    host.stop_daemon();
    host.environment()["KILN_NO_DAEMON"] = "1";
    const Outcome warm = host.compile(k_numbers);
    expect_all_right(warm, what + ", mapped afterwards");
    EXPECT_EQ(warm.lines.empty() ? 0 : counter_in(warm.lines.back(), "hits_mapped"), 2) << what;
    host.environment().erase("KILN_NO_DAEMON");
  }

  Host host;
  std::mt19937 random{11};
};

TEST_F(Storage, AllIsThereWithoutADaemonWhenNothingIsDamaged) {
  host.environment()["KILN_NO_DAEMON"] = "1";
  const Outcome outcome = host.compile(k_numbers);
  expect_all_right(outcome, "warm");
  EXPECT_EQ(counter_in(outcome.lines.back(), "hits_mapped"), 2);
}

TEST_F(Storage, FlippedBitsAreAMissAndAreBuiltAgain) {
  for (const fs::path& original : files_of(host.cache())) {
    restore();
    flip(original, random, 64);
    const std::string what = "flipped " + original.filename().string();
    expect_survived(what);
  }
}

TEST_F(Storage, TruncatedFilesAreAMissAndAreBuiltAgain) {
  for (const fs::path& original : files_of(host.cache())) {
    for (const double kept : {0.0, 0.6}) {
      restore();
      fs::resize_file(original, static_cast<uintmax_t>(static_cast<double>(fs::file_size(original)) * kept));
      expect_survived(fmt::format("{} cut to {}", original.filename().string(), kept));
    }
  }
}

/// Root may write anywhere: then the cache is root's and the client another user.
TEST_F(Storage, AReadOnlyCacheServesHitsAndRefusesTheRestInTime) {
  constexpr auto k_for_all = fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read;
  constexpr auto k_enter_all = fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec;
  fs::permissions(host.directory(), k_for_all | k_enter_all);
  fs::permissions(host.cache(), k_for_all | k_enter_all);
  for (const auto& entry : fs::recursive_directory_iterator(host.cache())) {
    fs::permissions(entry.path(), entry.is_directory() ? k_for_all | k_enter_all : k_for_all);
  }
  if (getuid() == 0) host.environment()["FAULT_UID"] = "65534";
  const Outcome outcome = host.compile({k_numbers[0], 99}, 30);
  for (const fs::path& path : {fs::path(host.directory()), fs::path(host.cache())}) {
    fs::permissions(path, fs::perms::owner_all);
  }
  ASSERT_EQ(outcome.lines.size(), 2U);
  EXPECT_EQ(number_that_was_right(outcome.lines[0]), k_numbers[0]) << outcome.lines[0];
  EXPECT_GT(error_code_in(outcome.lines[1]), 0) << outcome.lines[1];
}

TEST_F(Storage, WhatIsRemovedUnderALivingDaemonIsMadeAgain) {
  for (const char* part : {"", "/pub", "/db"}) {
    restore();
    ASSERT_EQ(number_that_was_right(host.compile({3}).lines.at(0)), 3);  // the daemon is up and has the store open
    fs::remove_all(host.cache() + part);
    const std::string what = std::string("removed ") + part;
    expect_all_right(host.compile(k_numbers), what);
    host.environment()["KILN_NO_DAEMON"] = "1";
    expect_all_right(host.compile(k_numbers), what + ", mapped afterwards");
    host.environment().erase("KILN_NO_DAEMON");
    host.stop_daemon();
  }
}

/// Eight clients run and compile while every published file is cut, flipped and removed: nobody dies, nothing is wrong,
/// and afterwards the cache serves as before.
TEST_F(Storage, UnderRunningClientsNoDamageEndsOneOrReachesAResult) {
  constexpr double k_seconds = 6;
  host.environment()["KILN_DAEMON_START_TIMEOUT_MS"] = "20000";
  std::vector<Child> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(host.start({"flight", std::to_string(k_seconds), "1", "2"}));
  const Deadline end = deadline_in(static_cast<uint64_t>(k_seconds * 1'000));
  size_t damages = 0;
  while (Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::error_code gone;  // others come and go here
    std::vector<fs::path> published;
    for (const auto& entry : fs::directory_iterator(host.cache() + "/pub", gone)) published.push_back(entry.path());
    if (published.empty()) continue;
    const fs::path& file = published[random() % published.size()];
    const uintmax_t size = fs::file_size(file, gone);
    if (gone || size == 0) continue;
    switch (random() % 3) {
      case 0:
        fs::resize_file(file, random() % size, gone);
        break;
      case 1:
        flip(file, random, 64);
        break;
      default:
        fs::remove(file, gone);
    }
    ++damages;
  }
  EXPECT_GT(damages, 50U);
  for (Child& client : clients) {
    const Outcome outcome = client.wait();
    EXPECT_TRUE(outcome.ended);
    EXPECT_EQ(outcome.signal, 0);
    EXPECT_EQ(outcome.exit_code, 0) << (outcome.lines.empty() ? "" : outcome.lines.back());
  }
  host.stop_daemon();
  expect_all_right(host.compile({3, 4}), "a new client with a new daemon");
}

/// What the disk has no room for serves the process that asked, and is kept once there is room.
TEST(FullDisk, ServesFromMemoryAndRecovers) {
  Host host;
  fs::create_directories(host.cache());
  if (mount("kiln-test", host.cache().c_str(), "tmpfs", 0, "size=300k,mode=0700") != 0) {
    GTEST_SKIP() << "needs the right to mount: " << std::strerror(errno);
  }
  const std::string errors = host.directory() + "/errors";
  host.environment()["FAULT_ERRORS"] = errors;
  const Outcome first = host.compile(k_numbers);
  std::ifstream words(errors);
  size_t complaints = 0;
  for (std::string line; std::getline(words, line);)
    complaints += line.find("is not kept") == std::string::npos ? 0 : 1;
  EXPECT_EQ(complaints, 1U) << "of a client that compiled " << k_numbers.size() << " graphs";
  const Outcome second = host.compile(k_numbers);
  expect_all_right(first, "the first client on a full disk");
  expect_all_right(second, "the second client on a full disk");
  EXPECT_EQ(counter_in(second.lines.back(), "compilations"), 0) << "the daemon has it still";
  EXPECT_EQ(mount("kiln-test", host.cache().c_str(), "tmpfs", MS_REMOUNT, "size=64m,mode=0700"), 0);
  expect_all_right(host.compile(k_numbers), "with room again");
  host.stop_daemon();
  host.environment()["KILN_NO_DAEMON"] = "1";
  expect_all_right(host.compile(k_numbers), "kept");
  umount(host.cache().c_str());
}

TEST(CacheDirectory, ThatCannotBeMadeIsATypedErrorInTime) {
  Host host;
  host.environment()["KILN_DAEMON_START_TIMEOUT_MS"] = "2000";
  for (const char* place : {"/proc/kiln-cache", "/dev/null/cache"}) {
    host.environment()["KILN_CACHE_DIR"] = place;
    const Outcome outcome = host.compile({1}, 10);
    EXPECT_EQ(outcome.exit_code, 0) << place;
    ASSERT_EQ(outcome.lines.size(), 1U) << place;
    EXPECT_GT(error_code_in(outcome.lines[0]), 0) << outcome.lines[0];
    EXPECT_LT(outcome.seconds, 4) << place;
  }
}

}  // namespace
}  // namespace kiln::faults
