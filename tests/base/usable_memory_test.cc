#include "base/usable_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t k_mib = uint64_t{1} << 20;

/// /proc and /sys of a machine with 1,000 MiB available.
class UsableMemory : public ::testing::Test {
 protected:
  UsableMemory() { write("/proc/meminfo", "MemTotal: 2048000 kB\nMemAvailable:    1024000 kB\n"); }
  ~UsableMemory() override { fs::remove_all(m_root); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(m_root + path).parent_path());
    std::ofstream(m_root + path) << text;
  }
  void write_mib(const std::string& path, uint64_t mib) const { write(path, std::to_string(mib * k_mib) + "\n"); }
  uint64_t mib() const { return usable_memory(m_root) / k_mib; }

  const std::string m_root = fs::temp_directory_path() / ("memory-" + std::to_string(getpid()));
};

TEST_F(UsableMemory, IsWhatIsAvailableWhereNothingSaysLess) {
  EXPECT_EQ(mib(), 1'000U);
  write("/proc/self/cgroup", "nonsense\n3:cpuset:/\n0::/user.slice\n");
  write("/sys/fs/cgroup/user.slice/memory.max", "max\n");
  write("/sys/fs/cgroup/user.slice/memory.high", "");
  EXPECT_EQ(mib(), 1'000U);
  write_mib("/sys/fs/cgroup/user.slice/memory.max", 5'000);
  write_mib("/sys/fs/cgroup/user.slice/memory.current", 3'000);
  EXPECT_EQ(mib(), 1'000U);
  write("/proc/meminfo", "nonsense");
  EXPECT_EQ(mib(), 2'000U);
  EXPECT_EQ(usable_memory(m_root + "/nowhere"), std::numeric_limits<uint64_t>::max());
  EXPECT_GT(usable_memory(), 0U);
}

TEST_F(UsableMemory, IsNoMoreThanAGroupOrOneAroundItLeaves) {
  write("/proc/self/cgroup", "0::/pods/one/main\n");
  write_mib("/sys/fs/cgroup/pods/one/memory.max", 900);
  EXPECT_EQ(mib(), 900U);
  write_mib("/sys/fs/cgroup/pods/one/memory.current", 500);
  EXPECT_EQ(mib(), 400U);
  write("/sys/fs/cgroup/pods/one/memory.stat", "anon 1\ninactive_file " + std::to_string(100 * k_mib) + "\n");
  EXPECT_EQ(mib(), 500U) << "files that nobody uses make room";
  write_mib("/sys/fs/cgroup/pods/memory.high", 300);
  EXPECT_EQ(mib(), 300U);
  write_mib("/sys/fs/cgroup/pods/memory.current", 310);
  EXPECT_EQ(mib(), 0U) << "more is taken than may be";
}

TEST_F(UsableMemory, IsThatOfOlderGroupsToo) {
  write("/proc/self/cgroup", "2:cpu,cpuacct:/x\n4:memory:/docker/1234\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  write_mib("/sys/fs/cgroup/memory/memory.usage_in_bytes", 700);
  EXPECT_EQ(mib(), 1'000U);
  write_mib("/sys/fs/cgroup/memory/memory.limit_in_bytes", 800);  // a container's own group is its top
  EXPECT_EQ(mib(), 100U);
  write("/sys/fs/cgroup/memory/memory.stat", "total_inactive_file " + std::to_string(50 * k_mib) + "\n");
  EXPECT_EQ(mib(), 150U);
}

}  // namespace
}  // namespace kiln
