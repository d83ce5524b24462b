#include "platform/system_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace kvcache {
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

}  // namespace
}  // namespace kvcache
