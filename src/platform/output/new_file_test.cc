#include "platform/output/new_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace kvcache::new_file_test {
namespace {

class NewFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "new_file_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    path_ = directory_ + "/file";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Content() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::size_t FilesInDirectory() const {
    const std::filesystem::directory_iterator files(directory_);
    return static_cast<std::size_t>(std::distance(begin(files), end(files)));
  }
  std::string directory_;
  std::string path_;
};

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST_F(NewFileTest, AppearsOnCommitAndReplacesTheOldOne) {
  std::ofstream(path_) << "old";
  auto file = NewFile::Create(path_, 6);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE((*file)->WriteAt(4, Bytes("ef")).ok());
  EXPECT_TRUE((*file)->WriteOut().ok());
  EXPECT_TRUE((*file)->WriteAt(0, Bytes("ab")).ok());
  EXPECT_EQ(Content(), "old");
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(Content(), std::string("ab\0\0ef", 6));
  EXPECT_EQ(FilesInDirectory(), 1u);
  EXPECT_EQ((*file)->Commit().code(), StatusCode::kInvalidArgument);
}

TEST_F(NewFileTest, LeavesNothingWithoutCommit) {
  {
    auto file = NewFile::Create(path_, 10);
    ASSERT_TRUE(file.ok());
  }
  EXPECT_EQ(FilesInDirectory(), 0u);
}

TEST_F(NewFileTest, HasNoNameBeforeCommit) {
  const auto file = NewFile::Create(path_, 10);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(FilesInDirectory(), 0u) << "what a killed process would leave behind";
}

TEST_F(NewFileTest, KeepsPermissionsAndLinks) {
  std::ofstream(path_) << "old";
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  std::filesystem::create_symlink("file", directory_ + "/link");
  auto file = NewFile::Create(directory_ + "/link", 3);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE((*file)->WriteAt(0, Bytes("new")).ok());
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_TRUE(std::filesystem::is_symlink(directory_ + "/link"));
  EXPECT_EQ(Content(), "new");
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
}

TEST_F(NewFileTest, HasTheModeThatIsGiven) {
  const auto mode = [&] {
    struct stat info {};
    EXPECT_EQ(stat(path_.c_str(), &info), 0);
    return info.st_mode & 07777;
  };
  const mode_t before = umask(002);
  auto file = NewFile::Create(path_, 1, 0640);
  umask(before);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(mode(), 0640u);
  file = NewFile::Create(path_, 1, 0600);  // not that of the file before
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_TRUE((*file)->Commit().ok());
  EXPECT_EQ(mode(), 0600u);
}

TEST_F(NewFileTest, RefusesWhatCannotBeReplaced) {
  const auto device = NewFile::Create("/dev/null", 1);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().message(), "cannot replace /dev/null: it is not a regular file");
  const auto folder = NewFile::Create(directory_, 1);
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.status().message(), "cannot create " + directory_ + ": Is a directory");
  std::filesystem::create_symlink("circle", directory_ + "/circle");
  EXPECT_EQ(NewFile::Create(directory_ + "/circle", 1).status().code(), StatusCode::kIo);
}

TEST_F(NewFileTest, TakesTheLongestNames) {
  path_ = directory_ + "/" + std::string(255, 'x');
  for (int round = 0; round < 2; ++round) {  // new, then replaced
    auto file = NewFile::Create(path_, 3);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE((*file)->WriteAt(0, Bytes("new")).ok());
    EXPECT_TRUE((*file)->Commit().ok());
    EXPECT_EQ(Content(), "new");
    EXPECT_EQ(FilesInDirectory(), 1u);
  }
  EXPECT_FALSE(NewFile::Create(path_ + "x", 3).ok()) << "refused before the work";
}

TEST_F(NewFileTest, RefusesAFileThatMayNotBeWritten) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everything";
  std::ofstream(path_) << "old";
  ASSERT_EQ(chmod(path_.c_str(), 0400), 0);
  EXPECT_EQ(NewFile::Create(path_, 1).status().message(),
            "cannot write to " + path_ + ": Permission denied");
}

TEST_F(NewFileTest, RefusesBytesOutsideItsSize) {
  auto file = NewFile::Create(path_, 4);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->WriteAt(4, {}).ok());
  for (const std::uint64_t offset : {2ull, 5ull, ~0ull}) {
    const Status status = (*file)->WriteAt(offset, Bytes("abc"));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << offset;
  }
}

TEST_F(NewFileTest, ErrorsNameThePath) {
  const auto missing = NewFile::Create(directory_ + "/none/file", 1);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(missing.status().message(),
            "cannot create " + directory_ + "/none/file: No such file or directory");
}

// A size limit stands in for a full disk: the same calls fail in the same places.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit limited = before_;
    limited.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limited), 0);
  }
  ~SizeLimit() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(NewFileTest, ReportsThatThereIsNoRoomAtOnce) {
  const SizeLimit limit(1 << 20);
  const auto file = NewFile::Create(path_, 2 << 20);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kIo);
  EXPECT_EQ(file.status().message(),
            "cannot make room for 2097152 bytes in " + path_ + ": File too large");
  EXPECT_EQ(FilesInDirectory(), 0u);
}

TEST_F(NewFileTest, ReportsAWriteThatFails) {
  auto file = NewFile::Create(path_, 100);
  ASSERT_TRUE(file.ok());
  const SizeLimit limit(50);
  EXPECT_TRUE((*file)->WriteAt(0, Bytes("x")).ok());
  // The first bytes still fit: what remains after a short write fails with the reason.
  const Status status = (*file)->WriteAt(48, Bytes("abcd"));
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.message(), "cannot write at 50 to " + path_ + ": File too large");
}

}  // namespace
}  // namespace kvcache::new_file_test
