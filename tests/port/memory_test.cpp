#include "port/memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace coppice::port {
namespace {

namespace fs = std::filesystem;

/// A machine's /proc and /sys, as far as memory goes: 8 GiB are available.
class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() {
    std::string name = (fs::temp_directory_path() / "coppice-memory-XXXXXX").string();
    root_ = mkdtemp(name.data());
    write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:   1 kB\nMemAvailable:    8388608 kB\n");
  }
  ~MemoryTest() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::size_t free_mib() const { return free_memory(root_) >> 20; }

  fs::path root_;
};

TEST_F(MemoryTest, WithoutGroupsItIsWhatTheKernelReckons) {
  EXPECT_EQ(free_mib(), 8192U);
}

TEST_F(MemoryTest, ParentsOfAGroupLimitIt) {
  write("proc/self/cgroup", "0::/system.slice/coppice.service\n");
  write("sys/fs/cgroup/system.slice/coppice.service/memory.max", "max\n");
  write("sys/fs/cgroup/system.slice/coppice.service/memory.current", "1048576\n");
  write("sys/fs/cgroup/system.slice/memory.max", "2147483648\n");
  write("sys/fs/cgroup/system.slice/memory.current", "1073741824\n");
  EXPECT_EQ(free_mib(), 1024U);
}

TEST_F(MemoryTest, FilesThatTheKernelWouldDropAreFree) {
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "2147483648\n");
  write("sys/fs/cgroup/a/memory.current", "2147483648\n");
  write("sys/fs/cgroup/a/memory.stat",
        "anon 104857600\nfile 2042626048\ninactive_file 1992294400\nactive_file 10485760\n");
  EXPECT_EQ(free_mib(), 1910U);
}

TEST_F(MemoryTest, VersionOne) {
  write("proc/self/cgroup", "5:cpu:/\n4:freezer,memory:/docker/abc\n0::/\n");
  write("sys/fs/cgroup/unified/cgroup.procs", "");
  write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "4294967296\n");
  write("sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "3221225472\n");
  write("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/memory/docker/abc/memory.stat",
        "inactive_file 5\ntotal_inactive_file 536870912\ntotal_active_file 0\n");
  EXPECT_EQ(free_mib(), 2560U);
}

/// There the path is the host's, and the mount is the group itself.
TEST_F(MemoryTest, WithinAContainer) {
  write("proc/self/cgroup", "4:memory:/docker/abc\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "2147483648\n");
  EXPECT_EQ(free_mib(), 0U);
}

TEST_F(MemoryTest, NothingIsKnown) {
  fs::remove(root_ / "proc/meminfo");
  EXPECT_EQ(free_mib(), 0U);
}

}  // namespace
}  // namespace coppice::port
