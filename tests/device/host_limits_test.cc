#include "engine/device/cpu/host_limits.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/device/cpu/cpu_features.h"

namespace ete {
namespace {

namespace fs = std::filesystem;

class HostLimits : public testing::Test {
 protected:
  HostLimits() { fs::create_directories(root_); }
  ~HostLimits() override { fs::remove_all(top_); }

  void write(const std::string& name, const std::string& text) {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  GroupLimits read(const std::string& membership) {
    std::ofstream(top_ / "cgroup") << membership;
    return read_group_limits((top_ / "cgroup").string(), root_.string());
  }

  fs::path top_ = fs::path(testing::TempDir()) / ("host_limits_" + std::to_string(getpid()));
  fs::path root_ = top_ / "root";
};

TEST_F(HostLimits, NothingThereLimitsNothing) {
  for (const char* membership :
       {"", "0::/\n", "no colons\n", "0::/a/b\n", "4:memory:/x\n3:cpu,cpuacct:/x\n"}) {
    const GroupLimits limits = read(membership);
    EXPECT_FALSE(limits.memory_bytes || limits.memory_free_bytes || limits.cpus) << membership;
  }
  write("memory.max", "max\n");
  write("cpu.max", "max 100000\n");
  const GroupLimits limits = read("0::/\n");
  EXPECT_FALSE(limits.memory_bytes || limits.memory_free_bytes || limits.cpus);
}

// What is used counts, without the pages of files; a group above may be the tighter one.
TEST_F(HostLimits, Version2CountsUsageAndParents) {
  write("pod/job/memory.max", "1000\n");
  write("pod/job/memory.current", "700\n");
  write("pod/job/memory.stat", "anon 400\nfile 300\ninactive_file 200\nactive_file 50\n");
  write("pod/job/cpu.max", "250000 100000\n");
  const GroupLimits alone = read("0::/pod/job\n");
  EXPECT_EQ(alone.memory_bytes, 1000u);
  EXPECT_EQ(alone.memory_free_bytes, 1000u - (700 - 250));
  EXPECT_EQ(alone.cpus, 2.5);
  write("pod/memory.max", "1200\n");
  write("pod/memory.current", "1100\n");
  write("pod/cpu.max", "150000 100000\n");
  const GroupLimits both = read("0::/pod/job\n");
  EXPECT_EQ(both.memory_bytes, 1000u);
  EXPECT_EQ(both.memory_free_bytes, 100u);
  EXPECT_EQ(both.cpus, 1.5);
  // A container sees its own group at the top, under a path that is not there.
  write("memory.max", "500\n");
  write("memory.current", "600\n");
  const GroupLimits container = read("0::/docker/0123\n");
  EXPECT_EQ(container.memory_bytes, 500u);
  EXPECT_EQ(container.memory_free_bytes, 0u);
}

TEST_F(HostLimits, Version1CountsTheSame) {
  write("memory/job/memory.limit_in_bytes", "1000\n");
  write("memory/job/memory.usage_in_bytes", "700\n");
  write("memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 200\ntotal_active_file 50\n");
  write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("memory/memory.usage_in_bytes", "5\n");
  write("cpu/job/cpu.cfs_quota_us", "50000\n");
  write("cpu/job/cpu.cfs_period_us", "100000\n");
  write("cpu/cpu.cfs_quota_us", "-1\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  const GroupLimits limits = read("9:name=systemd:/\n4:memory:/job\n3:cpu,cpuacct:/job\n");
  EXPECT_EQ(limits.memory_bytes, 1000u);
  EXPECT_EQ(limits.memory_free_bytes, 550u);
  EXPECT_EQ(limits.cpus, 0.5);
}

// A process that may run on one processor computes on one.
TEST(DefaultThreads, HonoursAffinity) {
  std::thread([] {
    cpu_set_t allowed;
    ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    int first = 0;
    while (!CPU_ISSET(first, &allowed)) ++first;
    CPU_ZERO(&allowed);
    CPU_SET(first, &allowed);
    ASSERT_EQ(sched_setaffinity(0, sizeof(allowed), &allowed), 0);
    EXPECT_EQ(default_threads(), 1);
  }).join();
  EXPECT_GE(default_threads(), 1);
}

TEST(Ram, FreeIsWithinTheTotal) { EXPECT_LE(ram_free_bytes(), ram_total_bytes()); }

}  // namespace
}  // namespace ete
