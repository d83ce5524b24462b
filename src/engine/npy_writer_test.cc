#include "engine/npy_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace kvcache::npy_writer_test {
namespace {

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

TEST(NpyWriter, WritesHeaderAndRows) {
  const std::string path = ::testing::TempDir() + "rows.npy";
  const float rows[] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
  {
    auto writer = NpyWriter::Create(path, 2, 3);
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    ASSERT_TRUE(writer->Write(std::span(rows).first(3)).ok());
    EXPECT_FALSE(std::filesystem::exists(path)) << "not before Close";
    ASSERT_TRUE(writer->Write(std::span(rows).last(3)).ok());
    ASSERT_TRUE(writer->Close().ok());
  }
  const std::string bytes = Slurp(path);
  ASSERT_EQ(bytes.size() % 64, sizeof(rows) % 64);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  EXPECT_NE(bytes.find("'shape': (2, 3)"), std::string::npos);
  EXPECT_EQ(std::memcmp(bytes.data() + bytes.size() - sizeof(rows), rows, sizeof(rows)), 0);
  std::filesystem::remove(path);
}

TEST(NpyWriter, LeavesNothingWithoutClose) {
  const std::string path = ::testing::TempDir() + "left.npy";
  { ASSERT_TRUE(NpyWriter::Create(path, 1, 1).ok()); }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(NpyWriter, ErrorsNameThePath) {
  const auto missing = NpyWriter::Create("/nonexistent/folder/x.npy", 1, 1);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().message(),
            "cannot create /nonexistent/folder/x.npy: No such file or directory");
}

Status WriteOne(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(NpyWriter writer, NpyWriter::Create(path, 1, 1));
  const float one[] = {1.0f};
  KVCACHE_RETURN_IF_ERROR(writer.Write(one));
  return writer.Close();
}

TEST(NpyWriter, FullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const Status status = WriteOne("/dev/full");
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.message(), "cannot write to /dev/full: No space left on device");
}

TEST(NpyWriter, LinksStandForTheirFiles) {
  const std::string target = ::testing::TempDir() + "linked_to.npy";
  const std::string link = ::testing::TempDir() + "link.npy";
  std::ofstream(target) << "before";
  std::filesystem::create_symlink(target, link);
  ASSERT_TRUE(WriteOne(link).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(Slurp(target).substr(1, 5), "NUMPY");
  std::filesystem::remove(link);
  std::filesystem::remove(target);
}

// Replacing one would take /dev/null from everybody.
TEST(NpyWriter, DevicesAndPipesAreWrittenToNotReplaced) {
  const std::string pipe = ::testing::TempDir() + "pipe.npy";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_TRUE(WriteOne(pipe).ok());
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  char bytes[256];
  EXPECT_EQ(read(reader, bytes, sizeof(bytes)), 132) << "128 of header, a value";
  close(reader);
  std::filesystem::remove(pipe);
}

TEST(NpyWriter, FoldersAreErrors) {
  const std::string folder = ::testing::TempDir() + "folder.npy";
  std::filesystem::create_directory(folder);
  EXPECT_EQ(WriteOne(folder).message(), "cannot create " + folder + ": Is a directory");
  std::filesystem::remove(folder);
}

}  // namespace
}  // namespace kvcache::npy_writer_test
