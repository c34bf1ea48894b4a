// What clients do about a daemon that hangs, leaves, cannot start or is somebody else's, and what the daemon makes of the
// process that started it.

#include <sched.h>
#include <sys/resource.h>

#include "base/limits.h"
#include "base/process_identity.h"
#include "tests/service/daemon_testing.h"

namespace kiln {
namespace {

double seconds_since(Deadline begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

TEST_F(DaemonTest, a_daemon_told_to_leave_with_more_builds_than_workers_leaves_and_the_next_one_does_the_rest) {
  m_config.worker_count = 1;
  m_config.daemon_drain_timeout_ms = 500;
  const pid_t daemon = daemon_pid();
  std::thread hangs([&] {
    Connection connection(m_config);
    (void)connection.build(graph("hang"), deadline_in(3'000));
  });
  wait_until([&] { return !lines("builds").empty(); });
  std::vector<std::thread> askers;
  std::atomic<int> served = 0;
  for (const char* text : {"ok 1", "ok 2"}) {
    askers.emplace_back([&, text] { served += build(text).ok(); });
  }
  wait_until([&] { return number_in(ask(Verb::status), "builds_queued") == 2; });
  m_config.worker_count = 4;  // of the next daemon, where the hanging build comes back
  kill(daemon, SIGTERM);
  EXPECT_TRUE(wait_until([&] { return kill(daemon, 0) != 0; }));
  for (std::thread& asker : askers) asker.join();
  hangs.join();
  EXPECT_EQ(served, 2);
}

TEST_F(DaemonTest, a_second_signal_ends_the_wait_for_what_runs) {
  const pid_t daemon = daemon_pid();
  Connection connection(m_config);
  EXPECT_FALSE(connection.build(graph("hang"), deadline_in(200)).ok());
  kill(daemon, SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto begin = Clock::now();
  kill(daemon, SIGTERM);
  EXPECT_TRUE(wait_until([&] { return !daemon_runs(); }));
  EXPECT_LT(seconds_since(begin), 10);  // daemon.drain_timeout_ms is 30 s
}

TEST_F(DaemonTest, a_daemon_that_says_nothing_is_waited_for_once) {
  const pid_t daemon = daemon_pid();
  m_config.daemon_start_timeout_ms = 500;
  Connection connection(m_config);
  kill(daemon, SIGSTOP);
  const auto begin = Clock::now();
  Status status;
  for (int region = 0; region < 50; ++region) {
    status = connection.build(graph("ok"), deadline_in(k_patience_ms)).status();
    ASSERT_EQ(status.code(), StatusCode::unavailable);
  }
  kill(daemon, SIGCONT);
  EXPECT_LT(seconds_since(begin), 1.5);
  EXPECT_NE(status.message().find("kiln daemon restart"), std::string::npos) << status.message();
  Connection another(m_config);
  EXPECT_TRUE(another.build(graph("ok"), deadline_in(k_patience_ms)).ok());
}

TEST_F(DaemonTest, a_daemon_that_hangs_in_a_build_is_found_out_and_one_that_works_is_not) {
  Connection connection(m_config);
  const pid_t daemon = daemon_pid();
  const auto begin = Clock::now();
  EXPECT_EQ(connection.build(graph("hang"), deadline_in(limits::k_daemon_silence_ms + 1'000)).status().code(),
            StatusCode::deadline_exceeded)
      << "it says every second that it lives";
  std::thread stopper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    kill(daemon, SIGSTOP);
  });
  const Status status = connection.build(graph("hang"), deadline_in(k_patience_ms)).status();
  stopper.join();
  EXPECT_EQ(status.code(), StatusCode::unavailable) << status.to_string();
  EXPECT_LT(seconds_since(begin), 2 * static_cast<double>(limits::k_daemon_silence_ms) / 1'000 + 5);
  EXPECT_EQ(connection.build(graph("ok"), deadline_in(k_patience_ms)).status().code(), StatusCode::unavailable);
  kill(daemon, SIGCONT);
  kill(daemon, SIGKILL);
}

TEST_F(DaemonTest, why_there_is_no_daemon_is_said_with_what_to_do_and_found_out_once) {
  chmod(m_config.cache_directory.c_str(), 0755);
  Connection open_to_others(m_config);
  auto status = open_to_others.open();
  EXPECT_EQ(status.message(), fmt::format("no daemon: {0} is mode 755, expected 700; chmod 700 {0}",
                                          canonical_path(m_config.cache_directory)));
  chmod(m_config.cache_directory.c_str(), 0700);

  // Something that only the daemon meets, after it detached: its own words come through.
  std::filesystem::create_directories(m_config.cache_directory + "/kilnd.lock");
  Connection connection(m_config);
  const auto begin = Clock::now();
  status = connection.open();
  EXPECT_NE(status.message().find("kilnd.lock: Is a directory"), std::string::npos) << status.message();
  const double first = seconds_since(begin);
  for (int region = 0; region < 50; ++region) EXPECT_EQ(connection.open().message(), status.message());
  EXPECT_LT(seconds_since(begin), first + 1);
  std::filesystem::remove(m_config.cache_directory + "/kilnd.lock");
  // What somebody else has started meanwhile is used at once.
  EXPECT_FALSE(connection.open().ok());
  EXPECT_GT(daemon_pid(), 0);
  EXPECT_TRUE(connection.open().ok());
}

TEST_F(DaemonTest, who_waits_can_be_interrupted) {
  std::atomic<bool> interrupted = false;
  Connection connection(m_config, [&] { return interrupted.load(); });
  ASSERT_TRUE(connection.open().ok());
  std::thread interrupter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    interrupted = true;
  });
  const auto begin = Clock::now();
  EXPECT_EQ(connection.build(graph("hang"), deadline_in(k_patience_ms)).status().code(), StatusCode::cancelled);
  EXPECT_LT(seconds_since(begin), 2);
  interrupter.join();
  interrupted = false;
  EXPECT_TRUE(connection.build(graph("ok"), deadline_in(k_patience_ms)).ok()) << "the next one is not";
}

TEST_F(DaemonTest, another_users_socket_hears_nothing) {
  if (getuid() != 0) GTEST_SKIP() << "needs to become another user";
  chmod(m_directory.c_str(), 0711);
  chmod(m_config.cache_directory.c_str(), 0777);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const std::string path = socket();
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0) _exit(2);
    const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) _exit(3);
    listen(listener.get(), 4);
    (void)!write(ready[1], "x", 1);
    const UniqueFd peer(accept(listener.get(), nullptr, nullptr));
    const auto greeting = protocol::encode(protocol::Hello{});
    (void)send_all(peer.get(), greeting, deadline_in(1'000));
    char heard = 0;
    _exit(recv(peer.get(), &heard, 1, 0) > 0 ? 4 : 0);  // hung up on, with its greeting unread or not
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  Connection early(m_config);
  EXPECT_FALSE(early.open().ok()) << "others may write there: nothing in it is believed";
  chmod(m_config.cache_directory.c_str(), 0700);
  Connection connection(m_config);
  const Status status = connection.build(graph("secret"), deadline_in(2'000)).status();
  EXPECT_NE(status.message().find("user 65534 listens"), std::string::npos) << status.message();
  int left = 1;
  waitpid(stranger, &left, 0);
  EXPECT_EQ(WEXITSTATUS(left), 0);
  std::filesystem::remove(path);
}

TEST_F(DaemonTest, one_cache_has_one_daemon_whatever_the_runtime_directory) {
  const pid_t first = daemon_pid();
  std::filesystem::create_directories(m_directory + "/cron");
  setenv("XDG_RUNTIME_DIR", (m_directory + "/cron").c_str(), 1);
  EXPECT_EQ(daemon_pid(), first);
}

/// A daemon of another build, which takes longer to finish its builds than a start may take.
TEST_F(DaemonTest, a_daemon_of_another_build_is_waited_for_while_it_finishes) {
  m_config.daemon_start_timeout_ms = 2'000;
  const std::string lock_path = m_config.cache_directory + "/kilnd.lock";
  UniqueFd lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, socket().c_str());
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 4), 0);
  std::thread other([&] {
    const UniqueFd peer(accept(listener.get(), nullptr, nullptr));
    const auto hello = protocol::encode(protocol::Hello{protocol::k_protocol_version, "another build", 1});
    (void)send_all(peer.get(), hello, deadline_in(1'000));
    for (int i = 0; i < 3; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(900));
      (void)send_all(peer.get(), protocol::encode(protocol::Progress{}), deadline_in(1'000));
    }
    std::filesystem::remove(socket());
    listener.reset();
    lock.reset();
  });
  const auto built = build("ok");
  other.join();
  EXPECT_TRUE(built.ok()) << built.status().to_string();
}

/// As when Kiln is updated under a process that runs: what it starts is not its own, however often.
TEST_F(DaemonTest, a_daemon_of_another_build_that_was_started_just_now_is_not_started_again) {
  const std::string program = m_directory + "/kilnd", started = m_directory + "/started";
  std::ofstream(program) << "#!/bin/sh\n: > " << started << "\n";
  chmod(program.c_str(), 0700);
  m_config.daemon_path = program;
  std::atomic<bool> is_over = false;
  std::atomic<int> greeted = 0;
  std::thread other([&] {
    wait_until([&] { return std::filesystem::exists(started); });
    const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, socket().c_str());
    EXPECT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(listener.get(), 4), 0);
    while (!is_over) {
      const UniqueFd peer(accept(listener.get(), nullptr, nullptr));
      if (!peer) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      ++greeted;
      const auto hello = protocol::encode(protocol::Hello{protocol::k_protocol_version, "another build", 1});
      (void)send_all(peer.get(), hello, deadline_in(1'000));
      char heard[256];
      while (read(peer.get(), heard, sizeof heard) > 0) {
      }
    }
  });
  Connection connection(m_config);
  for (int region = 0; region < 3; ++region) {
    const Status status = connection.build(graph("ok"), deadline_in(k_patience_ms)).status();
    EXPECT_EQ(status.code(), StatusCode::unavailable);
    EXPECT_NE(status.message().find("kilnd is another build (another build)"), std::string::npos) << status.to_string();
  }
  is_over = true;
  other.join();
  EXPECT_EQ(greeted, 3) << "none is asked to leave for another one";
}

TEST_F(DaemonTest, the_daemon_has_not_its_starters_processors_priority_and_limits) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one processor";
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  rlimit files{}, few{};
  getrlimit(RLIMIT_NOFILE, &files);
  few = files;
  few.rlim_cur = 200;
  sched_setaffinity(0, sizeof one, &one);
  setrlimit(RLIMIT_NOFILE, &few);
  const bool may_be_less_nice = geteuid() == 0;
  if (may_be_less_nice) setpriority(PRIO_PROCESS, 0, 5);
  const pid_t daemon = daemon_pid();
  if (may_be_less_nice) setpriority(PRIO_PROCESS, 0, 0);
  sched_setaffinity(0, sizeof before, &before);
  setrlimit(RLIMIT_NOFILE, &files);
  cpu_set_t its;
  ASSERT_EQ(sched_getaffinity(daemon, sizeof its, &its), 0);
  EXPECT_GE(CPU_COUNT(&its), CPU_COUNT(&before));
  rlimit limit{};
  ASSERT_EQ(prlimit(daemon, RLIMIT_NOFILE, nullptr, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
  EXPECT_EQ(getpriority(PRIO_PROCESS, static_cast<id_t>(daemon)), 0);
  EXPECT_NE(getsid(daemon), getsid(0));
  EXPECT_NE(getpgid(daemon), getpgid(0)) << "who ends a job by its group does not end the daemon";
}

TEST_F(DaemonTest, frames_that_are_never_whole_are_held_up_to_a_limit) {
  ASSERT_TRUE(build("ok").ok());
  const auto hello = protocol::encode(protocol::Hello{protocol::k_protocol_version, "test", 1});
  std::vector<uint8_t> header = encode_frame(1, {});
  const auto length = static_cast<uint32_t>(limits::k_frame_bytes);
  std::memcpy(header.data(), &length, sizeof length);
  const std::vector<uint8_t> piece(size_t{16} << 20, 1);
  std::vector<UniqueFd> peers;
  bool was_refused = false;
  for (size_t sent = 0; !was_refused && sent < 2 * limits::k_partial_frame_bytes;) {
    peers.push_back(raw());
    const int fd = peers.back().get();
    ASSERT_TRUE(send_all(fd, hello, deadline_in(5'000)).ok());
    was_refused = !send_all(fd, header, deadline_in(5'000)).ok();
    for (size_t part = 0; !was_refused && part + piece.size() < limits::k_frame_bytes; part += piece.size()) {
      was_refused = !send_all(fd, piece, deadline_in(20'000)).ok();
      sent += piece.size();
    }
  }
  EXPECT_TRUE(was_refused);
  peers.clear();
  EXPECT_TRUE(build("ok after").ok());
}

TEST_F(DaemonTest, last_words_go_to_no_link_and_take_nothing_away) {
  std::filesystem::create_directories(m_directory + "/state/kiln");
  chmod((m_directory + "/state/kiln").c_str(), 0700);
  const std::string precious = m_directory + "/precious";
  std::ofstream(precious) << "kept";
  const std::string words = log_path(m_directory + "/state/kiln", m_config.cache_directory) + ".stderr";
  std::filesystem::create_symlink(precious, words);
  ASSERT_TRUE(build("ok").ok());
  EXPECT_EQ(std::filesystem::file_size(precious), 4U);
  std::filesystem::remove(words);
}

TEST(ProcessIdentity, TellsOneProcessFromTheNextWithItsNumber) {
  const auto self = ProcessIdentity::of(getpid());
  ASSERT_TRUE(self);
  EXPECT_EQ(ProcessIdentity::from_text(self->to_text()), self);
  const pid_t child = fork();
  if (child == 0) pause();
  const auto other = ProcessIdentity::of(child);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->pid_namespace, self->pid_namespace);
  EXPECT_NE(*other, *self);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(ProcessIdentity::of(child));
  for (const char* text : {"", "123\n", "1 2 3\n", "x 1 2\n"}) EXPECT_FALSE(ProcessIdentity::from_text(text)) << text;
}

}  // namespace
}  // namespace kiln
