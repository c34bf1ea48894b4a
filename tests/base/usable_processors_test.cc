#include "base/usable_processors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

namespace kiln {
namespace {

namespace fs = std::filesystem;

const size_t k_all = std::max(1U, std::thread::hardware_concurrency());

/// /proc and /sys of a machine.
class UsableProcessors : public ::testing::Test {
 protected:
  ~UsableProcessors() override { fs::remove_all(m_root); }
  void write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(m_root + path).parent_path());
    std::ofstream(m_root + path) << text;
  }
  size_t count() const { return usable_processors(m_root); }

  const std::string m_root = fs::temp_directory_path() / ("processors-" + std::to_string(getpid()));
};

TEST_F(UsableProcessors, AreAllWhereNothingSaysOtherwise) {
  EXPECT_EQ(count(), k_all);
  write("/proc/self/cgroup", "nonsense\n3:cpuset:/\n0::/user.slice\n");
  write("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
  EXPECT_EQ(count(), k_all);
  write("/sys/fs/cgroup/user.slice/cpu.max", "");
  EXPECT_EQ(count(), k_all);
  write("/sys/fs/cgroup/user.slice/cpu.max", "100000000 100000\n");
  EXPECT_EQ(count(), k_all);
  EXPECT_GE(usable_processors(), 1U);
}

TEST_F(UsableProcessors, AreNoMoreThanTheQuotaOfAGroupOrOneAroundIt) {
  write("/proc/self/cgroup", "0::/pods/one/main\n");
  write("/sys/fs/cgroup/pods/one/main/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/pods/one/cpu.max", "50000 100000\n");
  EXPECT_EQ(count(), 1U);
  write("/sys/fs/cgroup/pods/one/cpu.max", "110000 100000\n");
  EXPECT_EQ(count(), std::min<size_t>(k_all, 2));
  write("/sys/fs/cgroup/pods/cpu.max", "1000 100000\n");
  EXPECT_EQ(count(), 1U);
}

TEST_F(UsableProcessors, OfOneCoreCountOnceAsCores) {
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/cpu.max", "100000000 100000\n");
  EXPECT_EQ(usable_cores(m_root), k_all);
  write("/sys/devices/system/cpu/smt/active", "0\n");
  EXPECT_EQ(usable_cores(m_root), k_all);
  write("/sys/devices/system/cpu/smt/active", "1\n");
  EXPECT_EQ(usable_cores(m_root), (k_all + 1) / 2);
  write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(usable_cores(m_root), 1U);
}

TEST_F(UsableProcessors, AreThoseOfOlderGroupsToo) {
  write("/proc/self/cgroup", "4:memory:/x\n2:cpu,cpuacct:/docker/1234\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(count(), k_all);
  write("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "25000\n");  // a container's own group is its top
  EXPECT_EQ(count(), 1U);
}

}  // namespace
}  // namespace kiln
