#include "base/processor_times.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>

namespace kiln {
namespace {

class ProcStat {
 public:
  explicit ProcStat(const std::string& text) { std::ofstream(m_path) << text; }
  ~ProcStat() { std::filesystem::remove(m_path); }
  const std::string& path() const { return m_path; }

 private:
  std::string m_path = std::filesystem::temp_directory_path() / ("stat-" + std::to_string(getpid()));
};

constexpr uint64_t k_least_ticks = 3;

/// Uses a processor in a child of that niceness until k_least_ticks of `counter` passed, for ten seconds of computing at
/// most: the kernel looks who runs as it ticks, and on a busy machine misses who runs between.
void compute_in_child(int niceness, uint64_t ProcessorTimes::* counter) {
  const auto start = ProcessorTimes::read();
  ASSERT_TRUE(start);
  const pid_t child = fork();
  if (child == 0) {
    setpriority(PRIO_PROCESS, 0, niceness);
    while (std::clock() < 10 * CLOCKS_PER_SEC) {
      const auto now = ProcessorTimes::read();
      if (now && (*now).*counter >= (*start).*counter + k_least_ticks) break;
    }
    _exit(0);
  }
  waitpid(child, nullptr, 0);
}

TEST(ProcessorTimesTest, AddsUpTheRowsOfProcessorsThatThisProcessMayUse) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  std::string text = "cpu  9 9 9 9 9 9 9 9 9 9\n";
  for (int i = 0; i < 1'024; ++i) text += "cpu" + std::to_string(i) + " 10 20 1 2 3 4 5 30 0 0\n";
  const ProcStat file(text + "intr 12345 6\n");
  const auto times = ProcessorTimes::read(file.path());
  ASSERT_TRUE(times);
  const auto count = static_cast<uint64_t>(CPU_COUNT(&allowed));
  EXPECT_EQ(times->processors, count);
  EXPECT_EQ(times->user, 10 * count);
  EXPECT_EQ(times->nice, 20 * count);
  EXPECT_EQ(times->other, 15 * count);
  EXPECT_EQ(times->stolen, 30 * count);
}

TEST(ProcessorTimesTest, SaysNothingOfWhatItCannotRead) {
  EXPECT_FALSE(ProcessorTimes::read("/nonexistent/stat"));
  EXPECT_FALSE(ProcessorTimes::read(ProcStat("cpu0 1 2\n").path()));
  EXPECT_FALSE(ProcessorTimes::read(ProcStat("").path()));
}

TEST(ProcessorTimesTest, TellsGuestsFromOthers) {
  const auto start = ProcessorTimes::read();
  compute_in_child(0, &ProcessorTimes::user);
  const auto middle = ProcessorTimes::read();
  compute_in_child(19, &ProcessorTimes::nice);
  const auto end = ProcessorTimes::read();
  ASSERT_TRUE(start && middle && end);
  EXPECT_GE(middle->user - start->user, k_least_ticks);
  EXPECT_GE(end->nice - middle->nice, k_least_ticks);
}

TEST(ProcessorWatchTest, CountsProcessorsThatWorkAtUsualPriority) {
  ProcessorWatch watch;
  EXPECT_FALSE(watch.busy_processors()) << "the first call begins the watch";
  const auto before = ProcessorTimes::read();
  compute_in_child(0, &ProcessorTimes::user);
  const auto busy = watch.busy_processors();
  const auto after = ProcessorTimes::read();
  ASSERT_TRUE(before && busy && after);
  EXPECT_GT(*busy, 0);
  EXPECT_LE(*busy, after->processors);
}

}  // namespace
}  // namespace kiln
