#include "port/processors.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace coppice::port {
namespace {

namespace fs = std::filesystem;

/// A machine's /proc and /sys, as far as processors go.
class ProcessorsTest : public ::testing::Test {
 protected:
  ProcessorsTest() {
    std::string name = (fs::temp_directory_path() / "coppice-processors-XXXXXX").string();
    root_ = mkdtemp(name.data());
  }
  ~ProcessorsTest() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  void core(int id, int package, int core) const {
    const std::string topology = "sys/devices/system/cpu/cpu" + std::to_string(id) + "/topology/";
    write(topology + "physical_package_id", std::to_string(package));
    write(topology + "core_id", std::to_string(core));
  }
  /// n processors, one behind the other on as many cores.
  std::vector<int> cores(int n, int n_cores) const {
    for (int i = 0; i < n; ++i) core(i, 0, i % n_cores);
    std::vector<int> ids(static_cast<std::size_t>(n));
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }

  fs::path root_;
};

TEST_F(ProcessorsTest, AHardwareThreadIsNoCore) {
  const Processors found = find_processors(root_, cores(16, 8));
  EXPECT_EQ(found.threads(), 8);
  EXPECT_EQ(found.reason(), "16 processors, 8 whole cores");
}

TEST_F(ProcessorsTest, OnlyWhatTheProcessMayUseCounts) {
  cores(16, 8);
  EXPECT_EQ(find_processors(root_, {3}).threads(), 1);
  EXPECT_EQ(find_processors(root_, {3, 11}).threads(), 1);  // one core
  EXPECT_EQ(find_processors(root_, {3, 4}).threads(), 2);
}

TEST_F(ProcessorsTest, CoresOfTwoPackagesMayHaveOneNumber) {
  core(0, 0, 0), core(1, 1, 0);
  EXPECT_EQ(find_processors(root_, {0, 1}).threads(), 2);
}

TEST_F(ProcessorsTest, WithoutATopologyEachProcessorIsACore) {
  EXPECT_EQ(find_processors(root_, {0, 1, 2}).threads(), 3);
}

TEST_F(ProcessorsTest, SlowCoresAreLeftOut) {
  write("sys/devices/cpu_core/cpus", "0-3,8");
  const Processors found = find_processors(root_, cores(12, 12));
  EXPECT_EQ(found.threads(), 5);
  EXPECT_EQ(found.reason(), "12 processors, 5 of the faster kind");
}

TEST_F(ProcessorsTest, AProcessOnSlowCoresAloneUsesThem) {
  write("sys/devices/cpu_core/cpus", "0-3");
  cores(8, 8);
  EXPECT_EQ(find_processors(root_, {4, 5, 6}).threads(), 3);
}

TEST_F(ProcessorsTest, ArmTellsByCapacity) {
  const std::vector<int> ids = cores(6, 6);
  for (const int id : ids) {
    write("sys/devices/system/cpu/cpu" + std::to_string(id) + "/cpu_capacity", id < 4    ? "430"
                                                                               : id == 4 ? "1000"
                                                                                         : "1024");
  }
  EXPECT_EQ(find_processors(root_, ids).threads(), 2);
}

TEST_F(ProcessorsTest, AQuotaBoundsThreads) {
  const std::vector<int> ids = cores(16, 16);
  write("proc/self/cgroup", "0::/system.slice/coppice.service");
  write("sys/fs/cgroup/system.slice/coppice.service/cpu.max", "250000 100000");
  const Processors found = find_processors(root_, ids);
  EXPECT_EQ(found.threads(), 2);
  EXPECT_EQ(found.reason(), "16 processors, a quota of 2.5");
}

TEST_F(ProcessorsTest, TheLeastQuotaOfAGroupAndItsParentsCounts) {
  const std::vector<int> ids = cores(16, 16);
  write("proc/self/cgroup", "0::/a/b");
  write("sys/fs/cgroup/a/b/cpu.max", "max 100000");
  write("sys/fs/cgroup/a/cpu.max", "400000 100000");
  EXPECT_EQ(find_processors(root_, ids).threads(), 4);
  write("sys/fs/cgroup/a/b/cpu.max", "10000 100000");
  EXPECT_EQ(find_processors(root_, ids).threads(), 1);
  write("sys/fs/cgroup/a/b/cpu.max", "3200000 100000");
  write("sys/fs/cgroup/a/cpu.max", "max 100000");
  EXPECT_EQ(find_processors(root_, ids).threads(), 16);
}

TEST_F(ProcessorsTest, VersionOne) {
  const std::vector<int> ids = cores(16, 16);
  write("proc/self/cgroup", "4:memory:/\n3:cpu,cpuacct:/docker/abc\n0::/");
  write("sys/fs/cgroup/unified/cgroup.procs", "");
  write("sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "300000");
  write("sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000");
  write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "-1");
  write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000");
  EXPECT_EQ(find_processors(root_, ids).threads(), 3);
}

/// As in a container of version 1, whose own group is the mount.
TEST_F(ProcessorsTest, TheHostsPathStandsForTheMount) {
  const std::vector<int> ids = cores(4, 4);
  write("proc/self/cgroup", "3:cpu:/docker/abc");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(find_processors(root_, ids).threads(), 2);
}

TEST_F(ProcessorsTest, MemoryNodesAreNamed) {
  EXPECT_EQ(find_processors(root_, cores(4, 4)).nodes, 1);
  EXPECT_TRUE(memory_nodes(root_).empty());
  write("sys/devices/system/node/has_memory", "0-1,3");
  EXPECT_EQ(memory_nodes(root_), (std::vector{0, 1, 3}));
  EXPECT_EQ(find_processors(root_, {0, 1, 2, 3}).reason(), "4 processors, 3 memory nodes");
}

TEST(Processors, MemoryOfThisMachineCanBeInterleaved) {
  const std::vector<int> nodes = memory_nodes();
  int before = 0;
  if (nodes.empty() || syscall(SYS_get_mempolicy, &before, nullptr, 0, nullptr, 0) != 0) {
    GTEST_SKIP() << "the system has no memory nodes, or a sandbox that forbids to place memory";
  }
  std::thread([&nodes] {  // the thread's own, and it ends
    EXPECT_TRUE(interleave_memory(nodes));
    int policy = 0;
    ASSERT_EQ(syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0), 0);
    EXPECT_EQ(policy, MPOL_INTERLEAVE);
    EXPECT_FALSE(interleave_memory(std::vector{8000})) << "there is no such node";
  })
      .join();
}

TEST(Processors, OfThisMachine) {
  const Processors found = find_processors();
  EXPECT_GE(found.threads(), 1);
  EXPECT_LE(found.threads(), found.usable);
}

}  // namespace
}  // namespace coppice::port
