#include "platform/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace kvcache::mapped_file_test {
namespace {

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "mapped_file_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override {
    unlink((directory_ + "/file").c_str());
    rmdir(directory_.c_str());
  }
  std::string Write(const std::string& bytes) {
    const std::string path = directory_ + "/file";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string directory_;
};

std::string TextOf(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST_F(MappedFileTest, ShowsTheBytes) {
  for (const std::string bytes : {"", "x", "hello"}) {
    const auto file = MappedFile::Open(Write(bytes));
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(TextOf(*file), bytes);
    EXPECT_EQ(file->path(), directory_ + "/file");
  }
}

TEST_F(MappedFileTest, MovesOwnershipOnce) {
  auto opened = MappedFile::Open(Write("hello"));
  ASSERT_TRUE(opened.ok());
  MappedFile first = std::move(opened).value();
  MappedFile second = std::move(first);
  EXPECT_TRUE(first.bytes().empty());  // NOLINT: the moved-from state is the point
  first = std::move(second);
  EXPECT_EQ(TextOf(first), "hello");
}

TEST_F(MappedFileTest, ErrorsNameThePathAndTheReason) {
  const auto missing = MappedFile::Open(directory_ + "/none");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.status().message(),
            "cannot open " + directory_ + "/none: No such file or directory");

  const auto folder = MappedFile::Open(directory_);
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.status().message(), "cannot open " + directory_ + ": it is a directory");

  const auto device = MappedFile::Open("/dev/null");
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().message(), "cannot open /dev/null: it is not a regular file");

  const auto below = MappedFile::Open(Write("x") + "/y");
  ASSERT_FALSE(below.ok());
  EXPECT_EQ(below.status().code(), StatusCode::kIo);
}

std::size_t ResidentPages(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  // What mincore() reports is the page cache; /proc/self/smaps counts this mapping's pages.
  std::ifstream maps("/proc/self/smaps");
  char start[32];
  std::snprintf(start, sizeof(start), "%lx-", reinterpret_cast<unsigned long>(bytes.data()));
  bool ours = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') != std::string::npos && line.find(':') > 20) ours = line.starts_with(start);
    if (ours && line.starts_with("Rss:")) return std::stoul(line.substr(4)) * 1024 / page;
  }
  return 0;
}

TEST_F(MappedFileTest, DropGivesBackWholePagesAndKeepsTheBytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto file = MappedFile::Open(Write(std::string(16 * page, 'x')));
  ASSERT_TRUE(file.ok());
  file->WillNeed(file->bytes());
  std::size_t sum = 0;
  for (const std::byte byte : file->bytes()) sum += static_cast<std::size_t>(byte);
  EXPECT_EQ(sum, 16 * page * 'x');
  EXPECT_EQ(ResidentPages(file->bytes()), 16u);
  file->Drop(file->bytes().subspan(1, 8 * page));  // seven whole pages lie inside
  EXPECT_EQ(ResidentPages(file->bytes()), 9u);
  EXPECT_EQ(file->bytes()[page], std::byte{'x'});
}

}  // namespace
}  // namespace kvcache::mapped_file_test
