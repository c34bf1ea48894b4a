// The daemon as clients meet it: real processes and sockets, with a store and a compiler that do as told.

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "base/config/directories.h"
#include "client/connection/connection.h"
#include "client/connection/start_daemon.h"

namespace kiln {
namespace {

using protocol::Build;
using protocol::Command;
using protocol::Verb;

// Generous: the machine that runs the tests may be busy, and sanitizers slow everything.
constexpr uint64_t k_patience_ms = 60'000;

Build graph(const std::string& text) { return {0, {text.begin(), text.end()}, {{"cpu", "x86-64-v3"}}}; }

/// The number after "name": in JSON.
int64_t number_in(const std::string& json, const std::string& name) {
  const size_t at = json.find("\"" + name + "\":");
  return at == std::string::npos ? -1 : std::stoll(json.substr(at + name.size() + 3));
}

class DaemonTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/kiln-daemon-XXXXXX";
    m_directory = mkdtemp(name);
    std::filesystem::create_directories(m_directory + "/run");
    std::filesystem::create_directories(m_directory + "/cache");
    chmod((m_directory + "/cache").c_str(), 0700);
    setenv("XDG_RUNTIME_DIR", (m_directory + "/run").c_str(), 1);
    setenv("XDG_STATE_HOME", (m_directory + "/state").c_str(), 1);
    m_config.cache_directory = m_directory + "/cache";
    m_config.daemon_path = KILN_FAKE_KILND;
    m_config.worker_path = KILN_FAKE_WORKER;
    m_config.worker_count = 4;
    m_config.daemon_start_timeout_ms = 20'000;
    m_config.worker_deadline_ms = 30'000;
    m_config.worker_memory_max_bytes = uint64_t{512} << 20;
  }

  void TearDown() override {
    Config config = m_config;
    Connection connection(config);
    (void)connection.command({.verb = Verb::shutdown}, deadline_in(5'000), false);
    wait_until([&] { return !daemon_runs(); });
    EXPECT_FALSE(daemon_runs());
    expect_no_last_words();
    std::filesystem::remove_all(m_directory);
  }

  /// Sanitizers and asserts speak on the detached daemon's stderr, which is a file.
  void expect_no_last_words() const {
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(m_directory + "/state/kiln", absent)) {
      if (entry.path().extension() != ".stderr") continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      for (const char* complaint : {"Sanitizer", "runtime error", "Assertion"}) {
        EXPECT_EQ(text.str().find(complaint), std::string::npos) << text.str();
      }
    }
  }

  Expected<protocol::Built> build(const std::string& text, const Connection::ProgressCallback& progress = {}) {
    Connection connection(m_config);
    return connection.build(graph(text), deadline_in(k_patience_ms), progress);
  }

  std::string ask(Verb verb) {
    Connection connection(m_config);
    auto json = connection.command({.verb = verb}, deadline_in(k_patience_ms));
    EXPECT_TRUE(json.ok()) << json.status().to_string();
    return json.ok() ? *json : "";
  }

  std::vector<std::string> lines(const std::string& file) const {
    std::ifstream stream(m_config.cache_directory + "/" + file);
    std::vector<std::string> found;
    for (std::string line; std::getline(stream, line);) found.push_back(line);
    return found;
  }

  std::string socket() const { return *socket_path(m_config.cache_directory); }

  /// A raw connection, for what a Connection would never say.
  UniqueFd raw() const {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, socket().c_str());
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << std::strerror(errno);
    return fd;
  }

  /// Everything the peer sends until it closes.
  static std::vector<protocol::Message> read_to_end(int fd) {
    std::vector<protocol::Message> messages;
    FrameReader reader(1 << 20);
    std::vector<uint8_t> buffer(1 << 16);
    for (;;) {
      auto got = receive_some(fd, buffer, deadline_in(k_patience_ms));
      if (!got.ok() || *got == 0) return messages;
      auto bytes = std::span<const uint8_t>(buffer).first(*got);
      while (!bytes.empty()) {
        bool whole = false;
        Frame frame;
        if (!reader.feed(bytes, whole, frame).ok()) return messages;
        if (whole) messages.push_back(protocol::decode(frame).value());
      }
    }
  }

  bool daemon_runs() const {
    const UniqueFd lock(open((m_config.cache_directory + "/kilnd.lock").c_str(), O_RDWR | O_CLOEXEC));
    return lock && flock(lock.get(), LOCK_EX | LOCK_NB) != 0;
  }
  pid_t daemon_pid() { return static_cast<pid_t>(number_in(ask(Verb::status), "pid")); }

  template <typename Condition>
  static bool wait_until(const Condition& condition) {
    const Deadline deadline = deadline_in(k_patience_ms);
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  std::string m_directory;
  Config m_config;
};

// ---- the way of a build

TEST_F(DaemonTest, a_build_starts_the_daemon_reports_progress_and_is_published_before_the_answer) {
  std::vector<std::string> stages;
  const auto built =
      build("ok", [&](const protocol::Progress& step) { stages.push_back(step.stage + " " + step.item); });
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  const Digest key = digest_of("key ok");
  ASSERT_EQ(built->heads.size(), 1U);
  EXPECT_EQ(built->heads[0].key, key);
  EXPECT_EQ(lines("published"), std::vector<std::string>{key.to_hex()});
  EXPECT_EQ(built->compilations, 3U);
  EXPECT_EQ(stages, (std::vector<std::string>{"compile kernel", "compile kernel"}));
}

TEST_F(DaemonTest, many_askers_of_one_graph_cost_one_build) {
  ASSERT_TRUE(build("ok").ok());
  constexpr int k_askers = 32;
  std::atomic<int> built = 0;
  std::atomic<uint64_t> compilations = 0;
  std::barrier together(k_askers);
  std::vector<std::thread> threads;
  for (int i = 0; i < k_askers; ++i) {
    threads.emplace_back([&] {
      Connection connection(m_config);
      EXPECT_TRUE(connection.open().ok());
      together.arrive_and_wait();
      const auto result = connection.build(graph("slow one"), deadline_in(k_patience_ms));
      EXPECT_TRUE(result.ok()) << result.status().to_string();
      if (!result.ok()) return;
      ++built;
      compilations += result->compilations;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(built, k_askers);
  EXPECT_EQ(compilations, 3U);
  const auto builds = lines("builds");
  EXPECT_EQ(std::count(builds.begin(), builds.end(), "slow one"), 1);
  EXPECT_EQ(number_in(ask(Verb::stats), "builds_joined"), k_askers - 1);
}

TEST_F(DaemonTest, an_asker_that_dies_leaves_the_build_to_those_who_wait) {
  ASSERT_TRUE(build("ok").ok());
  const pid_t leader = fork();
  if (leader == 0) {
    Connection connection(m_config);
    (void)connection.build(graph("slow shared"), deadline_in(k_patience_ms));
    _exit(0);
  }
  ASSERT_TRUE(wait_until([&] { return lines("builds").size() == 2; }));
  std::thread killer([&] {
    wait_until([&] { return number_in(ask(Verb::stats), "builds_joined") == 1; });
    kill(leader, SIGKILL);
  });
  const auto built = build("slow shared");
  killer.join();
  EXPECT_TRUE(built.ok()) << built.status().to_string();
  EXPECT_TRUE(built->joined);
  waitpid(leader, nullptr, 0);
  EXPECT_EQ(lines("builds").size(), 2U);
}

TEST_F(DaemonTest, an_askers_deadline_ends_its_waiting_and_not_the_work) {
  ASSERT_TRUE(build("ok").ok());
  Connection connection(m_config);
  const auto late = connection.build(graph("slow alone"), deadline_in(50));
  EXPECT_EQ(late.status().code(), StatusCode::deadline_exceeded);
  EXPECT_TRUE(wait_until([&] { return lines("published").size() == 2; }));
}

TEST_F(DaemonTest, a_large_result_comes_through) { EXPECT_TRUE(build("big").ok()); }

TEST_F(DaemonTest, commands_are_answered_and_their_errors_keep_their_code) {
  Connection connection(m_config);
  EXPECT_EQ(*connection.command({.verb = Verb::list}, deadline_in(k_patience_ms)), "list");
  EXPECT_EQ(connection.command({.verb = Verb::show}, deadline_in(k_patience_ms)).status().code(),
            StatusCode::not_found);
  EXPECT_NE(ask(Verb::events).find("\"events\""), std::string::npos);
  EXPECT_EQ(number_in(ask(Verb::status), "workers"), 4);
}

// ---- workers that fail

TEST_F(DaemonTest, a_builds_own_error_reaches_the_asker_with_its_code) {
  const auto built = build("fail");
  EXPECT_EQ(built.status().code(), StatusCode::unimplemented);
  EXPECT_EQ(built.status().message(), "op nothing is not known");
  EXPECT_EQ(build("throw").status().code(), StatusCode::internal);
  EXPECT_EQ(lines("builds").size(), 2U);  // neither was tried twice
}

TEST_F(DaemonTest, a_worker_that_crashes_is_tried_once_more_then_its_key_is_quarantined) {
  const pid_t daemon = daemon_pid();
  for (const auto& [text, signal] : {std::pair{"abort", SIGABRT}, std::pair{"segv", SIGSEGV}}) {
    const auto built = build(text);
    EXPECT_EQ(built.status().code(), StatusCode::aborted);
    EXPECT_NE(built.status().message().find(fmt::format("signal {} ", signal)), std::string::npos)
        << built.status().message();
    const auto again = build(text);
    EXPECT_EQ(again.status().code(), StatusCode::aborted);
    EXPECT_NE(again.status().message().find("not tried again"), std::string::npos) << again.status().message();
    const auto builds = lines("builds");
    EXPECT_EQ(std::count(builds.begin(), builds.end(), text), 2);
  }
  EXPECT_EQ(build("exit").status().code(), StatusCode::aborted);
  EXPECT_EQ(daemon_pid(), daemon);
  EXPECT_TRUE(build("ok").ok());
}

TEST_F(DaemonTest, a_crash_that_does_not_repeat_is_forgiven) {
  EXPECT_TRUE(build("once").ok());
  EXPECT_EQ(lines("builds").size(), 2U);
}

TEST_F(DaemonTest, a_worker_that_hangs_is_killed_at_its_deadline_and_others_go_on) {
  m_config.worker_deadline_ms = 700;
  std::atomic<bool> hung = false;
  std::thread waiter([&] {
    EXPECT_EQ(build("hang").status().code(), StatusCode::deadline_exceeded);
    hung = true;
  });
  EXPECT_TRUE(build("ok 1").ok());
  EXPECT_FALSE(hung);
  waiter.join();
  EXPECT_EQ(build("hang").status().code(), StatusCode::deadline_exceeded);
  const auto builds = lines("builds");
  EXPECT_EQ(std::count(builds.begin(), builds.end(), "hang"), 1);  // then in quarantine
}

TEST_F(DaemonTest, a_worker_without_bounds_on_memory_ends_alone) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need the address space that is bounded here";
#endif
  EXPECT_EQ(build("oom").status().code(), StatusCode::resource_exhausted);
  EXPECT_TRUE(build("ok").ok());
}

TEST_F(DaemonTest, a_worker_can_neither_open_sockets_nor_remove_files) { EXPECT_TRUE(build("escape").ok()); }

TEST_F(DaemonTest, a_worker_runs_candidates_in_an_execution_worker) {
  const auto built = build("run");
  EXPECT_TRUE(built.ok()) << built.status().to_string();
}

TEST_F(DaemonTest, a_dead_zygote_is_replaced) {
  ASSERT_TRUE(build("ok").ok());
  const pid_t daemon = daemon_pid();
  std::ifstream children(fmt::format("/proc/{}/task/{}/children", daemon, daemon));
  pid_t zygote = 0;
  ASSERT_TRUE(children >> zygote);
  kill(zygote, SIGKILL);
  EXPECT_TRUE(build("ok again").ok());
  // The new one was started amid clients: it must not hold their sockets open.
  std::vector<pid_t> family;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", daemon))) {
    std::ifstream list(task.path() / "children");
    for (pid_t pid = 0; list >> pid;) family.push_back(pid);
  }
  ASSERT_EQ(family.size(), 1U);
  const std::filesystem::directory_iterator open_files(fmt::format("/proc/{}/fd", family[0]));
  EXPECT_LE(std::distance(begin(open_files), end(open_files)), 4);
}

// ---- life and death of the daemon

TEST_F(DaemonTest, a_hundred_and_twenty_eight_starts_at_once_leave_one) {
  constexpr int k_clients = 128;
  int gate[2];
  ASSERT_EQ(pipe(gate), 0);
  std::vector<pid_t> clients;
  for (int i = 0; i < k_clients; ++i) {
    const pid_t client = fork();
    if (client == 0) {
      close(gate[1]);
      char byte = 0;
      (void)!read(gate[0], &byte, 1);  // all go when the last writer closes
      Connection connection(m_config);
      auto json = connection.command({.verb = Verb::status}, deadline_in(k_patience_ms));
      if (!json.ok()) std::fprintf(stderr, "%s\n", json.status().to_string().c_str());
      std::ofstream(m_directory + "/pid." + std::to_string(i)) << (json.ok() ? number_in(*json, "pid") : -1);
      _exit(json.ok() ? 0 : 1);
    }
    clients.push_back(client);
  }
  close(gate[0]);
  close(gate[1]);
  std::set<std::string> pids;
  for (int i = 0; i < k_clients; ++i) {
    int status = 0;
    waitpid(clients[static_cast<size_t>(i)], &status, 0);
    EXPECT_EQ(status, 0);
    std::ostringstream text;
    text << std::ifstream(m_directory + "/pid." + std::to_string(i)).rdbuf();
    pids.insert(text.str());
  }
  EXPECT_EQ(pids.size(), 1U);
}

TEST_F(DaemonTest, kilnd_launched_many_times_at_once_leaves_one_and_all_launches_succeed) {
  std::vector<DaemonLaunch> launches;
  for (int i = 0; i < 32; ++i) {
    auto launch = DaemonLaunch::start(m_config);
    ASSERT_TRUE(launch.ok()) << launch.status().to_string();
    launches.push_back(std::move(*launch));
  }
  for (DaemonLaunch& launch : launches) {
    wait_until([&] {
      const Status status = launch.check();
      EXPECT_TRUE(status.ok()) << status.to_string();
      return launch.finished();
    });
  }
  EXPECT_EQ(number_in(ask(Verb::status), "connections"), 1);
}

TEST_F(DaemonTest, after_a_kill_the_next_client_starts_another) {
  const pid_t first = daemon_pid();
  kill(first, SIGKILL);
  ASSERT_TRUE(wait_until([&] { return !daemon_runs(); }));
  EXPECT_TRUE(build("ok").ok());
  EXPECT_NE(daemon_pid(), first);
}

TEST_F(DaemonTest, a_client_whose_daemon_is_killed_meanwhile_gets_its_build_from_the_next) {
  const pid_t first = daemon_pid();
  std::thread killer([&] {
    wait_until([&] { return !lines("builds").empty(); });
    kill(first, SIGKILL);
  });
  const auto built = build("slow survivor");
  killer.join();
  EXPECT_TRUE(built.ok()) << built.status().to_string();
}

TEST_F(DaemonTest, a_daemon_whose_directory_was_removed_leaves_whether_asked_or_not) {
  const pid_t first = daemon_pid();
  std::filesystem::remove_all(m_config.cache_directory);
  const auto built = build("ok");  // at once: the next client is not to wait for anything
  EXPECT_TRUE(built.ok()) << built.status().to_string();
  EXPECT_TRUE(wait_until([&] { return kill(first, 0) != 0; }));
  EXPECT_NE(daemon_pid(), first);

  const pid_t second = daemon_pid();
  std::filesystem::rename(m_config.cache_directory, m_directory + "/moved");
  EXPECT_TRUE(wait_until([&] { return kill(second, 0) != 0; }));
  EXPECT_FALSE(std::filesystem::exists(socket()));
}

TEST_F(DaemonTest, who_waits_when_the_directory_is_removed_gets_its_build_from_the_next_daemon) {
  const pid_t first = daemon_pid();
  std::thread remover([&] {
    wait_until([&] { return !lines("builds").empty(); });
    std::filesystem::remove_all(m_config.cache_directory);
  });
  const auto built = build("slow survivor");
  remover.join();
  EXPECT_TRUE(built.ok()) << built.status().to_string();
  EXPECT_NE(daemon_pid(), first);
}

TEST_F(DaemonTest, workers_die_with_a_killed_daemon) {
  const pid_t daemon = daemon_pid();
  std::thread asker([&] {
    m_config.daemon_use = true;
    Connection connection(m_config);
    (void)connection.build(graph("hang"), deadline_in(1'000));
  });
  ASSERT_TRUE(wait_until([&] { return !lines("builds").empty(); }));
  std::vector<pid_t> family;
  std::ifstream children(fmt::format("/proc/{}/task/{}/children", daemon, daemon));
  pid_t zygote = 0;
  ASSERT_TRUE(children >> zygote);
  std::ifstream grandchildren(fmt::format("/proc/{}/task/{}/children", zygote, zygote));
  for (pid_t pid = 0; grandchildren >> pid;) family.push_back(pid);
  ASSERT_FALSE(family.empty());
  asker.join();
  kill(daemon, SIGKILL);
  EXPECT_TRUE(wait_until([&] { return kill(zygote, 0) != 0 && kill(family[0], 0) != 0; }));
}

TEST_F(DaemonTest, sigterm_finishes_and_answers_what_runs_and_the_socket_is_gone) {
  const pid_t daemon = daemon_pid();
  std::thread terminator([&] {
    wait_until([&] { return !lines("builds").empty(); });
    kill(daemon, SIGTERM);
  });
  const auto built = build("slow drain");
  terminator.join();
  EXPECT_TRUE(built.ok()) << built.status().to_string();
  EXPECT_TRUE(wait_until([&] { return !daemon_runs(); }));
  EXPECT_FALSE(std::filesystem::exists(socket()));
  EXPECT_EQ(lines("builds").size(), 1U);
}

TEST_F(DaemonTest, a_drain_ends_in_time_whatever_hangs) {
  m_config.daemon_drain_timeout_ms = 200;
  const pid_t daemon = daemon_pid();
  Connection connection(m_config);
  EXPECT_EQ(connection.build(graph("hang"), deadline_in(200)).status().code(), StatusCode::deadline_exceeded);
  kill(daemon, SIGTERM);
  EXPECT_TRUE(wait_until([&] { return !daemon_runs(); }));
}

TEST_F(DaemonTest, an_idle_daemon_leaves_and_a_steady_trickle_never_fails) {
  m_config.daemon_idle_exit_ms = 50;
  Connection connection(m_config);
  std::set<int64_t> pids;
  for (int i = 0; i < 60; ++i) {
    auto json = connection.command({.verb = Verb::status}, deadline_in(k_patience_ms));
    ASSERT_TRUE(json.ok()) << i << ": " << json.status().to_string();
    pids.insert(number_in(*json, "pid"));
    std::this_thread::sleep_for(std::chrono::milliseconds(46 + i % 9));  // around the idle time: races both ways
  }
  EXPECT_GT(pids.size(), 1U);
  EXPECT_TRUE(wait_until([&] { return !daemon_runs(); }));
}

// ---- clients

TEST_F(DaemonTest, a_client_used_on_both_sides_of_a_fork_works_on_both) {
  Connection connection(m_config);
  ASSERT_TRUE(connection.build(graph("ok"), deadline_in(k_patience_ms)).ok());
  const pid_t child = fork();
  if (child == 0) {
    bool good = true;
    for (int i = 0; i < 20; ++i) good &= connection.command({.verb = Verb::stats}, deadline_in(k_patience_ms)).ok();
    _exit(good ? 0 : 1);
  }
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(connection.command({.verb = Verb::stats}, deadline_in(k_patience_ms)).ok());
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(DaemonTest, turned_off_it_answers_unavailable_at_once_and_starts_nothing) {
  for (bool Config::* off : {&Config::disable, &Config::daemon_use}) {
    Config config = m_config;
    config.*off = off == &Config::disable;
    Connection connection(config);
    EXPECT_EQ(connection.build(graph("ok"), deadline_in(k_patience_ms)).status().code(), StatusCode::unavailable);
  }
  EXPECT_FALSE(daemon_runs());
}

TEST_F(DaemonTest, a_daemon_that_cannot_start_costs_at_most_the_start_timeout) {
  const std::string hangs = m_directory + "/hangs";
  std::ofstream(hangs) << "#!/bin/sh\nexec sleep 1000\n";
  chmod(hangs.c_str(), 0700);
  for (const std::string program : {"/bin/false", "/nowhere/kilnd", "/bin/cat", hangs.c_str()}) {
    Config config = m_config;
    config.daemon_path = program;
    config.daemon_start_timeout_ms = 500;
    Connection connection(config);
    const auto begin = Clock::now();
    const auto status = connection.open();
    EXPECT_FALSE(status.ok()) << program;
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5)) << program;
  }
}

// ---- peers that misbehave

TEST_F(DaemonTest, another_user_is_refused_before_a_byte_is_read) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  ASSERT_TRUE(build("ok").ok());
  struct stat info{};
  ASSERT_EQ(stat(socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  ASSERT_EQ(stat((m_directory + "/run/kiln").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  // Open the doors that the file system keeps shut, to stand before the daemon itself.
  for (const std::string& path : {m_directory, m_directory + "/run", m_directory + "/run/kiln"})
    chmod(path.c_str(), 0711);
  chmod(socket().c_str(), 0666);
  const std::string path = socket();
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0) _exit(2);
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) _exit(3);
    const auto messages = read_to_end(fd.get());
    const auto* failure = messages.size() == 1 ? std::get_if<protocol::Failure>(&messages[0]) : nullptr;
    _exit(failure != nullptr && failure->status.code() == StatusCode::permission_denied ? 0 : 4);
  }
  int status = 1;
  waitpid(stranger, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(number_in(ask(Verb::stats), "refused_peers"), 1);
}

TEST_F(DaemonTest, malformed_bytes_end_their_connection_and_no_other) {
  ASSERT_TRUE(build("ok").ok());
  const auto hello = protocol::encode(protocol::Hello{protocol::k_protocol_version, "test", 1});
  const std::vector<std::vector<uint8_t>> attacks = {
      std::vector<uint8_t>(100, 0xff),
      encode_frame(77, {}),
      encode_frame(1, std::vector<uint8_t>(50, 0xee)),
      protocol::encode(protocol::Built{1}),
  };
  for (const bool greeted : {false, true}) {
    for (const auto& attack : attacks) {
      const UniqueFd fd = raw();
      if (greeted) {
        ASSERT_TRUE(send_all(fd.get(), hello, deadline_in(1'000)).ok());
      }
      ASSERT_TRUE(send_all(fd.get(), attack, deadline_in(1'000)).ok());
      const auto messages = read_to_end(fd.get());
      ASSERT_EQ(messages.size(), 2U);  // its greeting, and why not
      EXPECT_TRUE(std::holds_alternative<protocol::Failure>(messages[1]));
    }
  }
  EXPECT_TRUE(build("ok after").ok());
}

TEST_F(DaemonTest, another_protocol_version_is_told_so) {
  ASSERT_TRUE(build("ok").ok());
  const UniqueFd fd = raw();
  ASSERT_TRUE(send_all(fd.get(), protocol::encode(protocol::Hello{99, "new", 1}), deadline_in(1'000)).ok());
  const auto messages = read_to_end(fd.get());
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(std::get<protocol::Failure>(messages[1]).status.code(), StatusCode::failed_precondition);
}

TEST_F(DaemonTest, a_half_closed_client_gets_its_answer) {
  ASSERT_TRUE(build("ok").ok());
  const UniqueFd fd = raw();
  auto request = graph("slow half");
  request.id = 1;
  ASSERT_TRUE(send_all(fd.get(), protocol::encode(protocol::Hello{}), deadline_in(1'000)).ok());
  ASSERT_TRUE(send_all(fd.get(), protocol::encode(request), deadline_in(1'000)).ok());
  shutdown(fd.get(), SHUT_WR);
  const auto messages = read_to_end(fd.get());
  ASSERT_FALSE(messages.empty());
  EXPECT_TRUE(std::holds_alternative<protocol::Built>(messages.back()));
}

TEST_F(DaemonTest, a_client_that_sends_byte_by_byte_and_one_that_says_nothing_block_nobody) {
  ASSERT_TRUE(build("ok").ok());
  const UniqueFd silent = raw();
  const UniqueFd slow = raw();
  auto request = Command{1, Verb::stats, {}, "", {}};
  auto bytes = protocol::encode(protocol::Hello{});
  const auto more = protocol::encode(request);
  bytes.insert(bytes.end(), more.begin(), more.end());
  for (const uint8_t byte : bytes) {
    ASSERT_TRUE(send_all(slow.get(), {&byte, 1}, deadline_in(1'000)).ok());
    if (&byte == &bytes[bytes.size() / 2]) {
      EXPECT_TRUE(build("ok meanwhile").ok());
    }
  }
  shutdown(slow.get(), SHUT_WR);
  const auto messages = read_to_end(slow.get());
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_TRUE(std::holds_alternative<protocol::Answer>(messages[1]));
}

TEST_F(DaemonTest, connections_beyond_the_limit_are_refused_and_closed_ones_make_room) {
  ASSERT_TRUE(build("ok").ok());
  for (int round = 0; round < 200; ++round) {
    const UniqueFd fd = raw();  // and away
  }
  EXPECT_TRUE(wait_until([&] { return number_in(ask(Verb::status), "connections") == 1; }));
}

}  // namespace
}  // namespace kiln
