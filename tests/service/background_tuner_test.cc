// Tuning in the background: when the machine is quiet, until nothing is left, and never in anybody's way.

#include <ctime>

#include "base/processor_times.h"
#include "tests/service/daemon_testing.h"

namespace kiln {
namespace {

using std::chrono::milliseconds;

class BackgroundTunerTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    unsetenv("KILN_AUTOTUNE_MODE");  // the other tests' daemons have it off
    m_config.autotune_mode = "background";
    // Whoever else works on this machine keeps the tuner away; that is not what is tested here.
    ProcessorWatch watch;
    (void)watch.busy_processors();
    std::this_thread::sleep_for(milliseconds(1'500));
    const auto busy = watch.busy_processors();
    if (!busy || *busy > 0.08) GTEST_SKIP() << "this machine is busy with " << busy.value_or(-1) << " processors";
  }

  void leave_untuned(const std::string& graph) {
    std::ofstream(m_config.cache_directory + "/untuned", std::ios::app) << graph << "\n";
  }
  bool is_tuned(const std::string& graph) const {
    const auto tuned = lines("tuned");
    return std::ranges::find(tuned, graph) != tuned.end();
  }
  size_t builds_of(const std::string& graph) const {
    return static_cast<size_t>(std::ranges::count(lines("builds"), graph));
  }
};

TEST_F(BackgroundTunerTest, RacesUntilNothingIsLeft) {
  leave_untuned("race a");
  leave_untuned("race b");
  ASSERT_TRUE(build("ok").ok());
  EXPECT_TRUE(wait_until([&] { return is_tuned("race a") && is_tuned("race b"); }));
  EXPECT_EQ(builds_of("race a"), 3);
  EXPECT_EQ(builds_of("race b"), 3);
  EXPECT_TRUE(wait_until([&] { return number_in(ask(Verb::stats), "kernels_tuned") == 6; }));
  EXPECT_EQ(number_in(ask(Verb::stats), "builds_done"), 1) << "it is nobody's build";
}

TEST_F(BackgroundTunerTest, WorksAsAGuest) {
  leave_untuned("guest");
  ASSERT_TRUE(build("ok").ok());
  ASSERT_TRUE(wait_until([&] { return is_tuned("guest"); }));
  EXPECT_EQ(lines("priority"), std::vector(builds_of("guest"), fmt::format("19 {}", SCHED_IDLE)));
}

TEST_F(BackgroundTunerTest, GivesUpWhereNothingRaces) {
  leave_untuned("vain");
  leave_untuned("race");
  ASSERT_TRUE(build("ok").ok());
  EXPECT_TRUE(wait_until([&] { return is_tuned("race"); }));
  EXPECT_EQ(builds_of("vain"), 1);
}

TEST_F(BackgroundTunerTest, MakesWayForABuildAndGoesOnAfterwards) {
  leave_untuned("long");
  ASSERT_TRUE(build("ok").ok());
  ASSERT_TRUE(wait_until([&] { return builds_of("long") == 1; }));
  m_config.worker_count = 1;
  ASSERT_TRUE(build("ok too").ok()) << "the only worker was the tuner's";
  EXPECT_TRUE(wait_until([&] { return builds_of("long") == 2; })) << "it was not given up";
  EXPECT_NE(ask(Verb::events).find("tuning stopped"), std::string::npos);
}

TEST_F(BackgroundTunerTest, MakesWayForWhoUsesTheProcessors) {
  leave_untuned("long");
  ASSERT_TRUE(build("ok").ok());
  ASSERT_TRUE(wait_until([&] { return builds_of("long") == 1; }));
  const auto start = Clock::now();
  const Deadline end = deadline_in(k_patience_ms);
  const auto is_stopped = [&] { return ask(Verb::events).find("tuning stopped") != std::string::npos; };
  while (!is_stopped() && Clock::now() < end) {
    for (const Deadline glance = deadline_in(200); Clock::now() < glance;) {
    }
  }
  EXPECT_LT(Clock::now() - start, milliseconds(5'000));
  for (const Deadline pause = deadline_in(3'000); Clock::now() < pause;) {
  }
  EXPECT_EQ(builds_of("long"), 1) << "the machine was busy";
}

TEST_F(BackgroundTunerTest, StaysAwayFromAJobThatMostlyPauses) {
  leave_untuned("race");
  ASSERT_TRUE(build("ok").ok());
  for (const Deadline end = deadline_in(6'000); Clock::now() < end;) {
    for (const clock_t step = clock(); clock() - step < CLOCKS_PER_SEC / 20;) {
      for (volatile int work = 0; work < 100'000;) work = work + 1;  // the kernel's own time is nobody's job
    }
    std::this_thread::sleep_for(milliseconds(250));
  }
  EXPECT_EQ(builds_of("race"), 0);
  EXPECT_TRUE(wait_until([&] { return is_tuned("race"); })) << "the job has ended";
}

TEST_F(BackgroundTunerTest, StaysAwayWhenTurnedOff) {
  m_config.autotune_mode = "off";
  leave_untuned("race");
  ASSERT_TRUE(build("ok").ok());
  std::this_thread::sleep_for(milliseconds(4'000));
  EXPECT_EQ(builds_of("race"), 0);
}

TEST_F(BackgroundTunerTest, KeepsAnIdleDaemonUntilAllIsTuned) {
  m_config.daemon_idle_exit_ms = 1'500;
  leave_untuned("race");
  ASSERT_TRUE(build("ok").ok());
  EXPECT_TRUE(wait_until([&] { return !daemon_runs(); }));
  EXPECT_TRUE(is_tuned("race"));
}

}  // namespace
}  // namespace kiln
