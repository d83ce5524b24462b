// The main function of every test program: gives each process a folder of its own for files, so that
// tests that run at once never see each other's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace {

// A new folder under TEST_TMPDIR, TMPDIR or /tmp, which testing::TempDir() names until it is removed.
class OwnTempDir {
 public:
  OwnTempDir() {
    const char* base = std::getenv("TEST_TMPDIR");
    if (base == nullptr) base = std::getenv("TMPDIR");
    path_ = std::string(base == nullptr || *base == '\0' ? "/tmp" : base) + "/kvcache_test_XXXXXX";
    if (mkdtemp(path_.data()) == nullptr) {
      std::perror(path_.c_str());
      std::exit(1);
    }
    path_ += "/";
    setenv("TEST_TMPDIR", path_.c_str(), 1);
  }
  ~OwnTempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  OwnTempDir(const OwnTempDir&) = delete;
  OwnTempDir& operator=(const OwnTempDir&) = delete;

 private:
  std::string path_;
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  const OwnTempDir temp_dir;
  return RUN_ALL_TESTS();
}
