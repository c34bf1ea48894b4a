#include "base/fd.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace kiln {
namespace {

/// Interrupts this process's system calls a thousand times a second, as a profiler does.
class Interruptions {
 public:
  Interruptions() {
    struct sigaction action{};
    action.sa_handler = [](int) {};  // without SA_RESTART
    sigaction(SIGALRM, &action, &m_before);
    const itimerval often{{0, 1'000}, {0, 1'000}};
    setitimer(ITIMER_REAL, &often, nullptr);
  }
  ~Interruptions() {
    const itimerval never{};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &m_before, nullptr);
  }
  Interruptions(const Interruptions&) = delete;

 private:
  struct sigaction m_before{};
};

TEST(Fd, SignalsEndNoWait) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd ours(ends[0]), theirs(ends[1]);
  sigset_t alarm, before;
  sigemptyset(&alarm);
  sigaddset(&alarm, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &alarm, &before);  // the other thread is left alone: all signals come here
  std::vector<uint8_t> message(size_t{4} << 20, 7);
  std::thread peer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::vector<uint8_t> heard(message.size());
    for (size_t got = 0; got < heard.size();) {
      const ssize_t some = recv(theirs.get(), heard.data() + got, heard.size() - got, 0);
      if (some <= 0) return;
      got += static_cast<size_t>(some);
      if (got % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(send(theirs.get(), heard.data(), 1, MSG_NOSIGNAL), 1);
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  {
    const Interruptions interruptions;
    const Status sent = send_all(ours.get(), message, deadline_in(20'000));
    EXPECT_TRUE(sent.ok()) << sent.to_string();
    uint8_t answer = 0;
    const auto got = receive_some(ours.get(), {&answer, 1}, deadline_in(20'000));
    EXPECT_TRUE(got.ok() && *got == 1 && answer == 7) << got.status().to_string();
    const auto start = Clock::now();
    EXPECT_EQ(receive_some(ours.get(), {&answer, 1}, deadline_in(30)).status().code(), StatusCode::deadline_exceeded);
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(30));
  }
  shutdown(ours.get(), SHUT_RDWR);  // a peer that still waits, where sending failed
  peer.join();
}

}  // namespace
}  // namespace kiln
