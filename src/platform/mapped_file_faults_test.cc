#include "platform/mapped_file_faults.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "platform/mapped_file.h"

namespace kvcache::mapped_file_faults_test {
namespace {

// Reads the last byte of a mapped file whose name is `name` after it was cut short.
void ReadCutFile(const std::string& path) {
  ReportCutFiles();
  std::ofstream(path) << std::string(1 << 16, 'x');
  const auto file = MappedFile::Open(path);
  if (!file.ok()) _exit(2);
  std::filesystem::resize_file(path, 10);
  volatile std::byte last = file->bytes().back();
  (void)last;
  _exit(3);
}

TEST(MappedFileFaultsDeathTest, NamesTheFileThatWasCutShort) {
  const std::string path = ::testing::TempDir() + "cut_" + std::to_string(getpid());
  EXPECT_EXIT(ReadCutFile(path), ::testing::ExitedWithCode(1),
              "^kvcache: .*cut_[0-9]+ was cut short while it was in use\n$");
  std::filesystem::remove(path);
}

TEST(MappedFileFaultsDeathTest, OtherBusErrorsEndTheProcessAsBefore) {
  EXPECT_EXIT((ReportCutFiles(), std::raise(SIGBUS)), ::testing::KilledBySignal(SIGBUS), "");
}

// More mappings than there are places: the last ones are not named, and nothing else happens.
TEST(MappedFileFaults, ServesAnyNumberOfMappings) {
  const std::string path = ::testing::TempDir() + "many_" + std::to_string(getpid());
  std::ofstream(path) << "x";
  for (int round = 0; round < 3; ++round) {
    std::vector<MappedFile> files;
    for (int i = 0; i < 100; ++i) {
      auto file = MappedFile::Open(path);
      ASSERT_TRUE(file.ok());
      files.push_back(std::move(file).value());
    }
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace kvcache::mapped_file_faults_test
