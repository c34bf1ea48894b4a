// What may happen while kernels race, as people see it.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "cli_fixture.h"

namespace kiln {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::StartsWith;

std::vector<pid_t> children_of(pid_t process) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::string name, state;
    pid_t pid = 0, parent = 0;
    std::ifstream stat(entry.path() / "stat");
    if (stat >> pid >> name >> state >> parent && parent == process && state != "Z") children.push_back(pid);
  }
  return children;
}

/// A compile worker of the daemon that has a process to run candidates in; 0 where there is none.
pid_t racing_worker(pid_t daemon) {
  for (const pid_t zygote : children_of(daemon)) {
    for (const pid_t worker : children_of(zygote)) {
      if (!children_of(worker).empty()) return worker;
    }
  }
  return 0;
}

/// Fewer processors than threads for a process and its children. Threads and children may end meanwhile.
void take_processors_away(pid_t process) {
  cpu_set_t one;
  ASSERT_EQ(sched_getaffinity(0, sizeof one, &one), 0);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) > 1; ++i) CPU_CLR(i, &one);
  std::error_code ended;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/task", ended)) {
    const int taken = sched_setaffinity(std::stoi(thread.path().filename()), sizeof one, &one);
    EXPECT_TRUE(taken == 0 || errno == ESRCH) << strerror(errno);
  }
  for (const pid_t child : children_of(process)) take_processors_away(child);
}

/// A control group with a fifth of one processor's time; none where this process may not make it.
class Quota {
 public:
  Quota() {
    for (const std::filesystem::path top : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup"}) {
      m_group = top / ("kiln-test-" + std::to_string(getpid()));
      std::error_code refused;
      if (!std::filesystem::create_directory(m_group, refused)) continue;
      m_is_made = write(m_group / "cpu.cfs_quota_us", "20000") || write(m_group / "cpu.max", "20000 100000");
      if (m_is_made) return;
      std::filesystem::remove(m_group, refused);
    }
  }
  ~Quota() {
    if (!m_is_made) return;
    std::ifstream members(m_group / "cgroup.procs");
    for (std::string process; members >> process;) write(m_group.parent_path() / "cgroup.procs", process);
    EXPECT_TRUE(std::filesystem::remove(m_group));
  }
  Quota(const Quota&) = delete;
  Quota& operator=(const Quota&) = delete;

  bool is_made() const { return m_is_made; }
  void put_on(pid_t process) const {
    EXPECT_TRUE(write(m_group / "cgroup.procs", std::to_string(process)));
    for (const pid_t child : children_of(process)) put_on(child);
  }
  /// How often its processes had to wait because of it.
  uint64_t waits() const {
    std::ifstream stat(m_group / "cpu.stat");
    uint64_t count = 0;
    for (std::string name; stat >> name >> count && name != "nr_throttled";) {
    }
    return count;
  }

 private:
  static bool write(const std::filesystem::path& path, const std::string& text) {
    std::ofstream file(path, std::ios::in);  // does not make one
    return bool(file << text << std::flush);
  }

  std::filesystem::path m_group;
  bool m_is_made = false;
};

/// What may happen to a race: a daemon and its worker.
using Fault = std::function<void(pid_t daemon, pid_t worker)>;

class RaceFaults : public Cli {
 protected:
  /// Has a graph's kernels race, with a fault as they do. Gives the exit status of who waits for it.
  int race_with(const Fault& fault) {
    EXPECT_EQ(kiln({"warm", graph(33)}).exit_status, 0);
    const auto daemon = kiln({"status", "--json"}).json()["pid"].get<pid_t>();
    for (int i = 0; i < 1'000 && racing_worker(daemon) != 0; ++i) {  // the build's own, which tidies up
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const pid_t warming = m_world.start({"warm", graph(33), "--tune"}, m_world.directory() / "out", "/dev/null");
    bool was_met = false;
    int status = 0;
    for (bool is_over = false; !is_over; is_over = waitpid(warming, &status, WNOHANG) != 0) {
      const pid_t worker = was_met ? 0 : racing_worker(daemon);
      if (worker != 0) fault(daemon, worker);
      was_met = was_met || worker != 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(was_met) << "nothing raced";
    return status;
  }

  /// Heads of records: a key, its generation, and what was measured.
  std::set<std::tuple<std::string, int, std::string>> records() const {
    std::set<std::tuple<std::string, int, std::string>> heads;
    const auto listed = kiln({"ls", "--kind", "record", "--json"}).json();
    for (const auto& entry : listed["entries"]) {
      for (const auto& head : entry["heads"]) heads.emplace(head["key"], head["generation"], entry["digest"]);
    }
    return heads;
  }

  /// What raced serves, and does not race again.
  void expect_tuned() {
    const auto run = kiln({"run", graph(33), "--check", "--json"}).json();
    EXPECT_EQ(run["found"], "mapped hit");
    EXPECT_GT(run["generation"], 0);
    EXPECT_EQ(run["outputs"][0]["right"], true);
    EXPECT_EQ(kiln({"warm", graph(33), "--tune", "--json"}).json()["graphs"][0]["result"], "mapped hit");
  }
};

TEST_F(RaceFaults, AWorkerThatIsKilledLosesNothing) {
  EXPECT_EQ(race_with([](pid_t, pid_t worker) { EXPECT_EQ(kill(worker, SIGKILL), 0); }), 0) << "another one went on";
  expect_tuned();
}

TEST_F(RaceFaults, ADaemonThatIsKilledAtAnyPointLosesNothing) {
  for (const int milliseconds : {0, 150}) {
    const int status = race_with([&](pid_t daemon, pid_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      EXPECT_EQ(kill(daemon, SIGKILL), 0);
    });
    EXPECT_EQ(status, 0) << "the next daemon went on";
    expect_tuned();
    ASSERT_EQ(kiln({"clear"}).exit_status, 0);
  }
}

TEST_F(RaceFaults, WhatRacedBeforeADaemonIsKilledDoesNotRaceAgain) {
  const pid_t warming = m_world.start({"warm", graph(33), "--tune"}, m_world.directory() / "out", "/dev/null");
  while (records().empty()) {
    ASSERT_EQ(waitpid(warming, nullptr, WNOHANG), 0) << "nothing was kept before the end";
  }
  ASSERT_EQ(kill(kiln({"status", "--json"}).json()["pid"].get<pid_t>(), SIGKILL), 0);
  const auto before = records();  // of the next daemon
  int status = 0;
  waitpid(warming, &status, 0);
  EXPECT_EQ(status, 0) << "the next daemon went on";
  const auto after = records();
  EXPECT_THAT(after, IsSupersetOf(before));
  EXPECT_GT(after.size(), before.size()) << "nothing was left to race";
  EXPECT_EQ(kiln({"warm", graph(33), "--tune", "--json"}).json()["graphs"][0]["result"], "mapped hit");
}

TEST_F(RaceFaults, TopShowsWhatRaces) {
  const pid_t warming = m_world.start({"warm", graph(33), "--tune"}, m_world.directory() / "out", "/dev/null");
  std::string shown;
  const auto is_shown = [&] { return shown.find(" best ") != std::string::npos; };
  while (!is_shown() && waitpid(warming, nullptr, WNOHANG) == 0) shown = kiln({"top"}).out;
  EXPECT_THAT(shown, ContainsRegex("running +1 +tune [0-9]+/[1-9][0-9]*  best [0-9.]+ ms  [^\n]*gemm_"));
  waitpid(warming, nullptr, 0);
}

TEST_F(RaceFaults, ARaceGoesOnWhereProcessorsAreTakenAwayMeanwhile) {
  EXPECT_EQ(race_with([](pid_t, pid_t worker) { take_processors_away(worker); }), 0);
  expect_tuned();
}

TEST_F(RaceFaults, ARaceGoesOnUnderAQuotaThatIsPutOnMeanwhile) {
  const Quota quota;
  if (!quota.is_made()) GTEST_SKIP() << "this process may make no control group with a share of processors";
  EXPECT_EQ(race_with([&](pid_t, pid_t worker) { quota.put_on(worker); }), 0);
  EXPECT_GT(quota.waits(), 0);
  expect_tuned();
}

TEST_F(Cli, AWinnerNeverRunsWhereItsFeaturesAreMasked) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "there is nothing to mask";
  const auto run = [&](const std::string& features) {
    kiln({"daemon", "stop"});
    m_world.set("KILN_CPU_FEATURES", features);
    const CliResult result = kiln({"run", graph(33), "--check", "--json"});
    EXPECT_EQ(result.exit_status, 0) << result.err;
    return result.json();
  };
  ASSERT_EQ(kiln({"warm", graph(33), "--tune"}).exit_status, 0);
  const auto masked = run("x86-64-v2");
  EXPECT_EQ(masked["found"], "built");
  EXPECT_EQ(masked["generation"], 0);
  EXPECT_EQ(kiln({"warm", graph(33), "--tune", "--json"}).json()["graphs"][0]["result"], "tuned");
  const auto whole = run("");
  EXPECT_EQ(whole["found"], "mapped hit");
  EXPECT_GT(whole["generation"], 0);
}

/// Retunes everything with stderr on a terminal; what the terminal was sent.
std::string retune_on_terminal(const CliWorld& world) {
  int terminal = -1, process_end = -1;
  char name[64];
  EXPECT_EQ(openpty(&terminal, &process_end, name, nullptr, nullptr), 0);
  const pid_t child = world.start({"retune"}, world.directory() / "out", name);
  std::string sent;
  int status = 0;
  for (bool is_over = false;;) {
    pollfd ready{terminal, POLLIN, 0};
    char bytes[4096];
    if (poll(&ready, 1, 20) == 1) {
      sent.append(bytes, static_cast<size_t>(std::max<ssize_t>(read(terminal, bytes, sizeof bytes), 0)));
    } else if (is_over) {
      break;
    }
    is_over = is_over || waitpid(child, &status, WNOHANG) != 0;
  }
  EXPECT_EQ(status, 0) << sent;
  close(terminal);
  close(process_end);
  return sent;
}

TEST_F(Cli, RacesOnATerminalShowHowFarTheyAreAndLeaveNothingBehind) {
  ASSERT_EQ(kiln({"warm", graph(33), "--tune"}).exit_status, 0);
  const std::string sent = retune_on_terminal(m_world);
  EXPECT_THAT(sent, StartsWith("\r["));
  EXPECT_THAT(sent, ContainsRegex("\\] [0-9]+/[1-9][0-9]*  [0-9.]+/s  ETA [0-9][^\r]*  best [0-9.]+ ms  "));
  EXPECT_THAT(sent, HasSubstr("gemm_"));
  const std::string erased = "\r\x1b[K";
  const size_t last_bar = sent.rfind("\r[");
  ASSERT_NE(last_bar, std::string::npos);
  EXPECT_THAT(sent.substr(last_bar + 1), HasSubstr(erased)) << "the bar is still there";
}

}  // namespace
}  // namespace kiln
