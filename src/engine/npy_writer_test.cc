#include "engine/npy_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace kvcache {
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
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST(NpyWriter, ErrorsNameThePath) {
  const auto missing = NpyWriter::Create("/nonexistent/folder/x.npy", 1, 1);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().message(),
            "/nonexistent/folder/x.npy: cannot create: No such file or directory");
}

TEST(NpyWriter, FullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  // The partial file is a link to a device that is always full.
  const std::string path = ::testing::TempDir() + "full.npy";
  std::filesystem::create_symlink("/dev/full", path + ".partial");
  auto writer = NpyWriter::Create(path, 1, 1);
  ASSERT_TRUE(writer.ok());
  const float one[] = {1.0f};
  ASSERT_TRUE(writer->Write(one).ok()) << "still in the buffer";
  const Status status = writer->Close();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_EQ(status.message(), path + ": cannot write: No space left on device");
}

}  // namespace
}  // namespace kvcache
