#include "platform/system_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/strings.h"

namespace kvcache::system_memory_test {
namespace {

class SystemMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "system_memory." + std::to_string(getpid());
    Write("/proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:   4000 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  std::string root_;
};

TEST_F(SystemMemoryTest, TheSystemTellsWhatIsAvailable) {
  EXPECT_EQ(AvailableMemory(root_), 4000 * 1024);
  std::filesystem::remove_all(root_);
  EXPECT_EQ(AvailableMemory(root_), std::nullopt);
}

TEST_F(SystemMemoryTest, NeededPagesOfFilesAreNotAvailable) {
  {
    const NeededFilePages one(1000 * 1024);
    const NeededFilePages two(500 * 1024);
    EXPECT_EQ(AvailableMemory(root_), 2500 * 1024);
    const NeededFilePages more(3000 * 1024);
    EXPECT_EQ(AvailableMemory(root_), 0);
  }
  EXPECT_EQ(AvailableMemory(root_), 4000 * 1024);
}

TEST_F(SystemMemoryTest, TheLeastOfAllGroupsCounts) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/b/memory.current", "100\n");
  EXPECT_EQ(AvailableMemory(root_), 4000 * 1024);
  Write("/sys/fs/cgroup/a/memory.max", "5000\n");
  Write("/sys/fs/cgroup/a/memory.current", "1500\n");
  EXPECT_EQ(AvailableMemory(root_), 3500);
  Write("/sys/fs/cgroup/a/memory.stat", "anon 9\nactive_file 200\ninactive_file 300\n");
  EXPECT_EQ(AvailableMemory(root_), 4000) << "pages of files can go";
  Write("/sys/fs/cgroup/a/memory.current", "6000\n");
  EXPECT_EQ(AvailableMemory(root_), 0);
}

constexpr std::int64_t kSystem = 4000 * 1024;
constexpr char kV1Mounts[] =
    "31 25 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "32 25 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";
constexpr char kV2Mount[] = "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";

TEST_F(SystemMemoryTest, MemoryHighIsALimitToo) {
  Write("/proc/self/cgroup", "0::/a\n");
  Write("/sys/fs/cgroup/a/memory.max", "9000\n");
  Write("/sys/fs/cgroup/a/memory.high", "7000\n");
  Write("/sys/fs/cgroup/a/memory.current", "1000\n");
  EXPECT_EQ(AvailableMemory(root_), 6000);
}

TEST_F(SystemMemoryTest, Version1) {
  Write("/proc/self/mountinfo", kV1Mounts);
  Write("/proc/self/cgroup", "9:cpu:/other\n4:hugetlb,memory:/docker/abc\n");
  const std::string folder = "/sys/fs/cgroup/memory/docker/abc/memory.";
  Write(folder + "limit_in_bytes", "9223372036854771712\n");
  Write(folder + "usage_in_bytes", "1000\n");
  EXPECT_EQ(AvailableMemory(root_), kSystem) << "there is no limit";
  Write(folder + "limit_in_bytes", "5000\n");
  EXPECT_EQ(AvailableMemory(root_), 4000);
  Write(folder + "stat",
        "cache 1\ninactive_file 1\nactive_file 2\ntotal_inactive_file 300\n"
        "total_active_file 40\n");
  EXPECT_EQ(AvailableMemory(root_), 4340) << "pages of files can go";
  Write(folder + "memsw.limit_in_bytes", "5000\n");
  Write(folder + "memsw.usage_in_bytes", "3000\n");
  EXPECT_EQ(AvailableMemory(root_), 2340) << "swap counts there";
  Write(folder + "usage_in_bytes", "6000\n");
  EXPECT_EQ(AvailableMemory(root_), 0);
}

TEST_F(SystemMemoryTest, GroupsOfVersion1ThatContainTheGroup) {
  Write("/proc/self/mountinfo", kV1Mounts);
  Write("/proc/self/cgroup", "4:memory:/a/b\n");
  const std::string mount = "/sys/fs/cgroup/memory";
  Write(mount + "/a/b/memory.limit_in_bytes", "8000\n");
  Write(mount + "/a/b/memory.usage_in_bytes", "100\n");
  Write(mount + "/a/memory.limit_in_bytes", "6000\n");
  Write(mount + "/a/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(AvailableMemory(root_), 5000);
  Write(mount + "/memory.limit_in_bytes", "3000\n");
  Write(mount + "/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(AvailableMemory(root_), 2000);
  Write(mount + "/a/memory.use_hierarchy", "0\n");  // nothing that is above counts the group
  EXPECT_EQ(AvailableMemory(root_), 7900);
  Write(mount + "/a/b/memory.stat", "hierarchical_memory_limit 4000\n");
  EXPECT_EQ(AvailableMemory(root_), 3900) << "a limit that the container does not see";
}

// A container's mount shows its own group as the root; without a namespace of groups, its path is the host's.
TEST_F(SystemMemoryTest, Containers) {
  const std::string v1 = "32 25 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup memory\n";
  const std::string v2 = "30 25 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "3000\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
  Write("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "2000\n");
  Write("/sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "500\n");
  Write("/sys/fs/cgroup/memory.max", "3100\n");
  Write("/sys/fs/cgroup/memory.current", "1000\n");
  Write("/sys/fs/cgroup/inner/memory.max", "2100\n");
  Write("/sys/fs/cgroup/inner/memory.current", "500\n");
  struct Case {
    const char* group;
    std::int64_t left;
  };
  for (const Case& each : {Case{"/docker/abc", 2000}, Case{"/docker/abc/inner", 1500},
                           Case{"/docker/abcd", 2000}, Case{"/elsewhere", 2000}, Case{"/", 2000},
                           Case{"/docker/abc/inner/", 1500}, Case{"/docker/abc/../inner", 2000}}) {
    Write("/proc/self/mountinfo", v1);
    Write("/proc/self/cgroup", StrCat("4:memory:", each.group, "\n"));
    EXPECT_EQ(AvailableMemory(root_), each.left) << each.group;
    Write("/proc/self/mountinfo", v2);
    Write("/proc/self/cgroup", StrCat("0::", each.group, "\n"));
    EXPECT_EQ(AvailableMemory(root_), each.left + 100) << each.group;
  }
  // In a namespace of groups: the process was moved out of it, or the mount is from outside.
  Write("/proc/self/mountinfo", kV2Mount);
  Write("/proc/self/cgroup", "0::/../inner\n");
  EXPECT_EQ(AvailableMemory(root_), 2100);
  Write("/proc/self/mountinfo", "30 25 0:26 /.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  Write("/proc/self/cgroup", "0::/inner\n");
  EXPECT_EQ(AvailableMemory(root_), 2100);
}

TEST_F(SystemMemoryTest, BothVersionsLimit) {
  Write("/proc/self/mountinfo",
        StrCat(kV1Mounts, "33 25 0:29 / /sys/fs/cgroup/my\\040unified rw - cgroup2 cgroup2 rw\n"));
  Write("/proc/self/cgroup", "4:memory:/a\n1:name=systemd:/c\n0::/b\n");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "5000\n");
  Write("/sys/fs/cgroup/memory/a/memory.usage_in_bytes", "0\n");
  EXPECT_EQ(AvailableMemory(root_), 5000);
  Write("/sys/fs/cgroup/my unified/b/memory.max", "4500\n");
  Write("/sys/fs/cgroup/my unified/b/memory.current", "0\n");
  EXPECT_EQ(AvailableMemory(root_), 4500);
}

TEST_F(SystemMemoryTest, DamagedFilesSetNoLimit) {
  Write("/proc/self/mountinfo", StrCat("\n30\n - \n30 25 0:26 / /x rw - cgroup2\n", kV1Mounts));
  Write("/proc/self/cgroup", "\n0\n0:\n::\nno colon\n0::relative\n4:memory:relative\n");
  const std::string limit = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
  for (const char* text : {"", "garbage", "-1", "-5000", "1e3", "0x10", "5000k",
                           "99999999999999999999999", "18446744073709551615"}) {
    Write(limit, text);
    EXPECT_EQ(AvailableMemory(root_), kSystem) << text;
  }
  Write(limit, "5000");
  for (const char* text : {"", "garbage", "-9223372036854775808", "99999999999999999999999"}) {
    Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", text);
    EXPECT_EQ(AvailableMemory(root_), 5000) << text;
  }
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000");
  Write("/sys/fs/cgroup/memory/memory.stat",
        "active_file\nx y z\nactive_file -7\ninactive_file 999999999999999\n");
  EXPECT_EQ(AvailableMemory(root_), 5000) << "no more pages of files than pages";
  for (const char* text : {"MemAvailable: -4 kB\n", "MemAvailable: 9223372036854775807 kB\n"}) {
    Write("/proc/meminfo", text);
    EXPECT_EQ(AvailableMemory(root_), 5000) << text;
  }
}

}  // namespace
}  // namespace kvcache::system_memory_test
