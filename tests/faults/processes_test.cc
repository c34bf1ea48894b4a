// The daemon dies, is something else, or cannot be found; clients die, fork and leave. Everybody else gets an answer.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "base/config/directories.h"
#include "client/connection/connection.h"
#include "tests/faults/host.h"

namespace kiln::faults {
namespace {

namespace fs = std::filesystem;

/// One line, an error, and not later than the promised two seconds and a process's start.
void expect_typed_error_in_time(const Outcome& outcome, const std::string& what) {
  EXPECT_TRUE(outcome.ended) << what;
  EXPECT_EQ(outcome.exit_code, 0) << what << ", signal " << outcome.signal;
  ASSERT_EQ(outcome.lines.size(), 1U) << what;
  EXPECT_GT(error_code_in(outcome.lines[0]), 0) << what << ": " << outcome.lines[0];
  EXPECT_LT(outcome.seconds, 2.0 + 1.0) << what << ": " << outcome.lines[0];
}

std::string make_script(const Host& host, const std::string& name, const std::string& text) {
  const std::string path = host.directory() + "/" + name;
  std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
  fs::permissions(path, fs::perms::owner_all);
  return path;
}

TEST(NoDaemon, AnythingElseInItsPlaceIsATypedErrorInTime) {
  Host host;
  host.environment().erase("KILN_DAEMON_START_TIMEOUT_MS");  // the default is the promise
  for (const std::string& path :
       {std::string("/bin/false"), std::string("/nonexistent/kilnd"), std::string("/dev/null"),
        make_script(host, "sleeps", "exec sleep 30"), make_script(host, "crashes", "kill -SEGV $$")}) {
    host.environment()["KILN_DAEMON_PATH"] = path;
    expect_typed_error_in_time(host.compile({1}, 20), path);
  }
}

TEST(NoDaemon, AServerThatSpeaksNonsenseOrNothingIsATypedErrorInTime) {
  Host host;
  host.environment().erase("KILN_DAEMON_START_TIMEOUT_MS");
  const std::string path = socket_path(host.cache()).value();
  fs::create_directories(fs::path(path).parent_path());
  fs::permissions(fs::path(path).parent_path(), fs::perms::owner_all);
  const UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX};
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 16), 0);
  std::atomic<int> bytes = 0;
  std::jthread server([&](const std::stop_token& stop) {
    std::mt19937 random(5);
    std::vector<UniqueFd> silent;
    while (!stop.stop_requested()) {
      UniqueFd peer(accept(listener.get(), nullptr, nullptr));
      if (!peer) break;
      std::vector<uint8_t> noise(static_cast<size_t>(bytes.load()));
      for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random());
      if (noise.empty()) {
        silent.push_back(std::move(peer));  // open, and mute
      } else {
        (void)send(peer.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
      }
    }
  });
  for (const int count : {0, 1, 7, 4'096}) {
    bytes = count;
    expect_typed_error_in_time(host.compile({1}, 20), fmt::format("{} random bytes", count));
  }
  shutdown(listener.get(), SHUT_RDWR);
  server.join();
  fs::remove(path);
}

TEST(NoDaemon, NoCompilerIsNeededInPath) {
  Host host;
  for (const char* path : {"", "/nonexistent"}) {
    host.environment()["PATH"] = path;
    const Outcome outcome = host.compile({path[0] == 0 ? 1 : 2});
    ASSERT_EQ(outcome.lines.size(), 1U);
    EXPECT_TRUE(number_that_was_right(outcome.lines[0])) << outcome.lines[0];
    EXPECT_GT(counter_in(outcome.lines[0], "compilations"), 0);
  }
}

/// The client looks at itself after each run.
TEST(Memory, OfDaemonAndWorkersIsNeverWritableAndExecutable) {
  Host host;
  ASSERT_TRUE(number_that_was_right(host.compile({1}).lines.at(0)));
  Child client = host.start({"compile", "2", "3", "4"});
  std::set<pid_t> seen;
  for (std::vector<pid_t> family{host.daemon_pid()}; !family.empty(); family.erase(family.begin())) {
    const std::string process = fmt::format("/proc/{}", family.front());
    std::ifstream children(fmt::format("{}/task/{}/children", process, family.front()));
    for (pid_t child = 0; children >> child;) family.push_back(child);
    std::ifstream maps(process + "/maps");
    for (std::string line; std::getline(maps, line); seen.insert(family.front())) {
      EXPECT_EQ(line.find(" rwx"), std::string::npos) << process << ": " << line;
    }
  }
  EXPECT_GE(seen.size(), 2U) << "the daemon and its zygote at least";
  EXPECT_EQ(client.wait().exit_code, 0);
}

TEST(DaemonKilled, EveryClientGetsAnAnswerAndWhatWasAnsweredStays) {
  Host host;
  // Each kill costs each client at most the graph it waits for: some of the graphs get through on any machine.
  constexpr int k_clients = 3, k_graphs = 6, k_kills = 4;
  std::vector<Child> clients;
  for (int c = 0; c < k_clients; ++c) {
    std::vector<std::string> arguments{"compile"};
    for (int g = 0; g < k_graphs; ++g) arguments.push_back(std::to_string(10 + c * k_graphs + g));
    clients.push_back(host.start(std::move(arguments)));
  }
  std::atomic<bool> over = false;
  int kills = 0;
  std::jthread killer([&] {
    std::mt19937 random(std::random_device{}());
    while (!over && kills < k_kills) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30 + random() % 200));
      if (const pid_t daemon = host.daemon_pid(); daemon > 0 && !over && kill(daemon, SIGKILL) == 0) ++kills;
    }
  });
  std::set<int> right;
  size_t errors = 0;
  for (Child& client : clients) {
    const Outcome outcome = client.wait(60);
    EXPECT_TRUE(outcome.ended);
    EXPECT_EQ(outcome.exit_code, 0) << "signal " << outcome.signal;
    EXPECT_EQ(outcome.lines.size(), static_cast<size_t>(k_graphs));
    for (const std::string& line : outcome.lines) {
      if (const auto number = number_that_was_right(line)) right.insert(*number);
      errors += error_code_in(line) != 0;
      EXPECT_TRUE(number_that_was_right(line) || error_code_in(line) > 0) << line;
    }
  }
  over = true;
  killer.join();
  std::printf("%d kills, %zu right, %zu typed errors\n", kills, right.size(), errors);
  EXPECT_GT(kills, 0);
  EXPECT_GT(right.size(), 0U);

  // The next daemon repairs what there is to repair; then none is needed for what was answered.
  Connection connection(host.config());
  ASSERT_TRUE(connection.command({.verb = protocol::Verb::status}, deadline_in(20'000)).ok());
  host.stop_daemon();
  host.environment()["KILN_NO_DAEMON"] = "1";
  for (const std::string& line : host.compile({right.begin(), right.end()}).lines) {
    EXPECT_TRUE(number_that_was_right(line)) << line;
    EXPECT_EQ(counter_in(line, "compilations"), 0);
  }
}

/// Beside each other, without a daemon at first, as the ranks of a job start.
TEST(Stampede, ManyProcessesCompileWhatAllOfThemNeedOnce) {
  constexpr int k_clients = 32;
  const auto compilations = [](const Outcome& outcome) {
    EXPECT_EQ(outcome.exit_code, 0) << "signal " << outcome.signal;
    EXPECT_EQ(outcome.lines.size(), 3U);
    for (const std::string& line : outcome.lines) EXPECT_TRUE(number_that_was_right(line)) << line;
    return outcome.lines.empty() ? 0 : counter_in(outcome.lines.back(), "compilations");  // of all three
  };
  const int alone = compilations(Host().compile({1, 2, 3}));
  EXPECT_GT(alone, 0);
  Host host;
  std::vector<Child> clients;
  for (int i = 0; i < k_clients; ++i) clients.push_back(host.start({"compile", "1", "2", "3"}));
  int together = 0;
  for (Child& client : clients) together += compilations(client.wait());
  EXPECT_EQ(together, alone);
}

TEST(ClientKilled, OthersThatWaitForItsGraphGetTheirs) {
  Host host;
  int joined = 0;
  ASSERT_TRUE(number_that_was_right(host.compile({1}).lines.at(0)));  // the daemon is up
  for (int round = 0; round < 30 && joined == 0; ++round) {           // until the others were early enough to join
    const std::string number = std::to_string(40 + round);
    Child first = host.start({"compile", number});
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * round));
    std::vector<Child> others;
    for (int i = 0; i < 2; ++i) others.push_back(host.start({"compile", number}));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    first.kill(SIGKILL);
    for (Child& other : others) {
      const Outcome outcome = other.wait();
      ASSERT_EQ(outcome.lines.size(), 1U);
      EXPECT_TRUE(number_that_was_right(outcome.lines[0])) << outcome.lines[0];
      joined += counter_in(outcome.lines[0], "joined");
    }
  }
  EXPECT_GT(joined, 0);
}

TEST(ClientForks, ParentAndChildBothGoOn) {
  Host host;
  const Outcome outcome = host.start({"fork", "3", "4"}).wait();
  EXPECT_TRUE(outcome.ended);
  EXPECT_EQ(outcome.exit_code, 0);
  ASSERT_EQ(outcome.lines.size(), 2U);
  for (const std::string& line : outcome.lines) EXPECT_EQ(number_that_was_right(line), 4) << line;
}

TEST(ClientForks, AfterAProgramRanOnTwoThreadsTheChildRunsItOnOne) {
  Host host;
  const Outcome outcome = host.start({"fork-team", "2"}).wait();
  EXPECT_TRUE(outcome.ended) << "the child waits for threads that it does not have";
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.lines, std::vector<std::string>{"right"});
}

TEST(ClientLeaves, WhileItsGraphIsCompiledAndNobodyMinds) {
  Host host;
  for (const char* number : {"50", "51", "52"}) {
    const Outcome outcome = host.start({"leave", number}).wait(20);
    EXPECT_TRUE(outcome.ended);
    EXPECT_EQ(outcome.exit_code, 0) << "signal " << outcome.signal;
    EXPECT_LT(outcome.seconds, 5);
  }
  EXPECT_TRUE(number_that_was_right(host.compile({50}).lines.at(0)));
}

}  // namespace
}  // namespace kiln::faults
