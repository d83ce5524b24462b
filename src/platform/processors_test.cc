#include "platform/processors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace kvcache::processors_test {
namespace {

constexpr char kV2Mount[] =
    "30 25 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr char kV1Mounts[] =
    "31 25 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "32 25 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n";

// A folder with the files of /proc and /sys that describe an invented machine.
class ProcessorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "processors.XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteSiblings(int processor, const std::string& siblings,
                     const std::string& name = "core_cpus_list") {
    Write("/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/" + name,
          siblings + "\n");
  }
  // Cores 0 … cores - 1 have the processors c and c + cores.
  void WriteTwoThreadsPerCore(int cores) {
    for (int core = 0; core < cores; ++core) {
      const std::string siblings = std::to_string(core) + "," + std::to_string(core + cores);
      WriteSiblings(core, siblings);
      WriteSiblings(core + cores, siblings);
    }
  }
  void WriteGroup(const std::string& mounts, const std::string& groups) {
    Write("/proc/self/mountinfo", "25 0 8:1 / / rw,relatime - ext4 /dev/vda rw\n" + mounts);
    Write("/proc/self/cgroup", groups);
  }

  static std::vector<int> Range(int begin, int end) {
    std::vector<int> range(static_cast<std::size_t>(end - begin));
    std::iota(range.begin(), range.end(), begin);
    return range;
  }
  ProcessorLimits Find(const std::vector<int>& allowed) const {
    return FindProcessorLimits(allowed, root_);
  }

  std::string root_;
};

TEST_F(ProcessorsTest, CountsEachCoreOnce) {
  WriteTwoThreadsPerCore(8);
  const ProcessorLimits limits = Find(Range(0, 16));
  EXPECT_EQ(limits.processors, 16);
  EXPECT_EQ(limits.cores, 8);
  EXPECT_FALSE(limits.quota.has_value());
  EXPECT_EQ(limits.AvailableProcessors(), 16);
  EXPECT_EQ(limits.DefaultThreads(), 8);
}

TEST_F(ProcessorsTest, CountsOnlyCoresOfTheAffinityMask) {
  WriteTwoThreadsPerCore(8);
  EXPECT_EQ(Find({0, 8, 1}).DefaultThreads(), 2);  // both threads of core 0, one of core 1
  EXPECT_EQ(Find({3, 4, 5}).DefaultThreads(), 3);
  EXPECT_EQ(Find({9}).DefaultThreads(), 1);
}

TEST_F(ProcessorsTest, CountsCoresWithAndWithoutTwoThreads) {
  WriteSiblings(0, "0-1");
  WriteSiblings(1, "0-1");
  for (const int small : {2, 3, 4, 5}) WriteSiblings(small, std::to_string(small));
  EXPECT_EQ(Find(Range(0, 6)).DefaultThreads(), 5);
}

TEST_F(ProcessorsTest, ReadsTheOlderNameOfSiblings) {
  for (const int processor : {0, 1}) WriteSiblings(processor, "0-1", "thread_siblings_list");
  EXPECT_EQ(Find({0, 1}).DefaultThreads(), 1);
}

TEST_F(ProcessorsTest, AProcessorOfUnknownTopologyIsACore) {
  EXPECT_EQ(Find(Range(0, 6)).DefaultThreads(), 6);
  EXPECT_EQ(Find({}).DefaultThreads(), 1);
}

TEST_F(ProcessorsTest, QuotaOfVersion2) {
  struct Case {
    const char* max;
    int threads;
  };
  for (const Case& each :
       {Case{"max 100000\n", 8}, Case{"400000 100000\n", 4}, Case{"250000 100000\n", 2},
        Case{"50000 100000\n", 1}, Case{"1600000 100000\n", 8}, Case{"garbage\n", 8}, Case{"", 8},
        Case{"100000 0\n", 8}}) {
    WriteGroup(kV2Mount, "0::/user.slice/run-1.scope\n");
    Write("/sys/fs/cgroup/user.slice/run-1.scope/cpu.max", each.max);
    EXPECT_EQ(Find(Range(0, 8)).DefaultThreads(), each.threads) << each.max;
  }
}

TEST_F(ProcessorsTest, TheLeastQuotaOfTheGroupsAboveCounts) {
  WriteGroup(kV2Mount, "0::/machine/pod/container\n");
  Write("/sys/fs/cgroup/machine/pod/container/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/machine/pod/cpu.max", "300000 100000\n");
  Write("/sys/fs/cgroup/machine/cpu.max", "500000 100000\n");
  EXPECT_EQ(Find(Range(0, 8)).DefaultThreads(), 3);
}

TEST_F(ProcessorsTest, QuotaOfVersion1) {
  WriteGroup(kV1Mounts, "5:cpuset:/other\n4:cpu,cpuacct:/docker/abc\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "200000\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(Find(Range(0, 8)).DefaultThreads(), 4);
  Write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(Find(Range(0, 8)).DefaultThreads(), 8);
}

// A container mounts its own group as the root of the hierarchy. The process's group still has the
// host's path, unless the container has a namespace of groups.
TEST_F(ProcessorsTest, QuotaOfAContainer) {
  const std::string mount = "30 25 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
  Write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  Write("/sys/fs/cgroup/inner/cpu.max", "100000 100000\n");
  WriteGroup(mount, "0::/docker/abc\n");
  EXPECT_EQ(Find(Range(0, 8)).DefaultThreads(), 2);
  WriteGroup(mount, "0::/docker/abc/inner\n");
  EXPECT_EQ(Find(Range(0, 8)).DefaultThreads(), 1);
  WriteGroup(mount, "0::/elsewhere\n");
  EXPECT_EQ(Find(Range(0, 8)).DefaultThreads(), 2);
  WriteGroup(kV2Mount, "0::/\n");
  EXPECT_EQ(Find(Range(0, 8)).DefaultThreads(), 2);
}

TEST_F(ProcessorsTest, BothVersionsLimit) {
  WriteGroup(std::string(kV1Mounts) + kV2Mount, "4:cpu,cpuacct:/a\n0::/b\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "600000\n");
  Write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Find(Range(0, 8)).DefaultThreads(), 6);
  Write("/sys/fs/cgroup/b/cpu.max", "500000 100000\n");
  EXPECT_EQ(Find(Range(0, 8)).DefaultThreads(), 5);
}

// The quota counts processors, so it limits threads of cores only where it is the smaller one.
TEST_F(ProcessorsTest, QuotaAndCores) {
  WriteTwoThreadsPerCore(4);
  WriteGroup(kV2Mount, "0::/a\n");
  Write("/sys/fs/cgroup/a/cpu.max", "600000 100000\n");
  const ProcessorLimits limits = Find(Range(0, 8));
  EXPECT_EQ(limits.AvailableProcessors(), 6);
  EXPECT_EQ(limits.DefaultThreads(), 4);
}

TEST_F(ProcessorsTest, DamagedFilesSetNoLimit) {
  Write("/proc/self/mountinfo",
        "\n30\n - \n30 25 0:26 / /x rw - cgroup2\n" + std::string(kV2Mount));
  Write("/proc/self/cgroup", "\n0\n0:\n::\nno colon\n0::relative\n");
  EXPECT_EQ(Find(Range(0, 3)).DefaultThreads(), 3);
}

TEST(ThisProcessTest, HasProcessorsAndCores) {
  const ProcessorLimits limits = FindProcessorLimits();
  EXPECT_GE(limits.processors, limits.cores);
  EXPECT_GE(limits.AvailableProcessors(), limits.DefaultThreads());
  EXPECT_GE(limits.DefaultThreads(), 1);
}

}  // namespace
}  // namespace kvcache::processors_test
