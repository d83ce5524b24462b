// A file that cannot be opened again is left alone for a while. Calls fail at once then, with the same error.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "store/disk/disk_store.h"
#include "store/disk/failing_calls_testing.h"
#include "store/store_testing.h"

namespace kvcache::store::disk_store_retry_test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// A store whose directory can be away.
class DiskStoreRetry : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = OpenDiskStoreWith({.directory = directory_.path()}, clock_.reader());
    ASSERT_TRUE(store.ok()) << store.status().message();
    store_ = std::move(*store);
    ASSERT_TRUE(Put().ok());
  }

  Status Put() { return store_->Put(TestId(1), TestPayload(1, 1000)); }
  void MoveAway() const { fs::rename(directory_.path(), away()); }
  void MoveBack() const { fs::rename(away(), directory_.path()); }
  // Another directory has the place: the file has to be opened again.
  void Replace() const {
    fs::create_directory(directory_.path());
    fs::permissions(directory_.path(), fs::perms::owner_all);
  }
  std::string away() const { return other_.path(); }

  const TestDirectory directory_, other_;
  ManualClock clock_;
  std::unique_ptr<Store> store_;
};

TEST_F(DiskStoreRetry, WritesWaitAndSucceedAfterwards) {
  MoveAway();
  const Status first = Put();
  EXPECT_EQ(first.message(), "the store's file was removed: cannot open the directory " +
                                 directory_.path() + ": No such file or directory");
  Replace();  // an attempt would succeed
  for (const int ms : {0, 500, 499}) {
    clock_.Advance(milliseconds(ms));
    EXPECT_EQ(Put().message(), first.message());
    EXPECT_EQ(store_->Remove(TestId(1)).message(), first.message());
  }
  EXPECT_FALSE(fs::exists(directory_.file()));
  clock_.Advance(milliseconds(1));
  const Status after = Put();
  EXPECT_TRUE(after.ok()) << after.message();
  EXPECT_TRUE(fs::exists(directory_.file()));
}

TEST_F(DiskStoreRetry, TheWaitGrowsToHalfAMinute) {
  MoveAway();
  EXPECT_FALSE(Put().ok());
  for (const int seconds : {1, 2, 4, 8, 16, 30, 30}) {
    Replace();
    clock_.Advance(milliseconds(1000 * seconds - 1));
    EXPECT_FALSE(Put().ok()) << seconds;
    fs::remove_all(directory_.path());
    clock_.Advance(milliseconds(1));
    EXPECT_FALSE(Put().ok()) << seconds;
  }
  Replace();
  clock_.Advance(std::chrono::seconds(30));
  EXPECT_TRUE(Put().ok());
  // After a success it begins anew.
  fs::remove_all(directory_.path());
  EXPECT_FALSE(Put().ok());
  Replace();
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(Put().ok());
}

// The file that is open has its name again: nothing has to be opened.
TEST_F(DiskStoreRetry, AFileThatIsBackIsUsedAtOnce) {
  MoveAway();
  EXPECT_FALSE(Put().ok());
  EXPECT_TRUE(ReadObject(*store_, TestId(1)).ok()) << "reads use the open file";
  MoveBack();
  EXPECT_TRUE(Put().ok());
  // The pause is over: another file is opened at once.
  MoveAway();
  Replace();
  const Status status = Put();
  EXPECT_TRUE(status.ok()) << status.message();
}

// Reads need the file again after LMDB has given it up.
TEST_F(DiskStoreRetry, ReadsWaitAndSucceedAfterwards) {
  const bool is_filtered =
      WithFailingCalls({{.number = SYS_pwrite64, .error = EIO, .argument = 3, .below = 8192}},
                       [&] { EXPECT_FALSE(store_->Put(TestId(2), TestPayload(2, 1000)).ok()); });
  if (!is_filtered) GTEST_SKIP() << "the system has no filters of calls";
  MoveAway();
  const std::string first = ReadObject(*store_, TestId(1)).status().message();
  EXPECT_EQ(first, "the store's file is opened again after an error: cannot open the directory " +
                       directory_.path() + ": No such file or directory");
  MoveBack();
  clock_.Advance(milliseconds(999));
  EXPECT_EQ(ReadObject(*store_, TestId(1)).status().message(), first);
  EXPECT_EQ(store_->Contains(TestId(1)).status().message(), first);
  EXPECT_EQ(store_->List().status().message(), first);
  EXPECT_EQ(store_->Stats().status().message(), first);
  EXPECT_EQ(Put().message(), first);
  clock_.Advance(milliseconds(1));
  const auto found = ReadObject(*store_, TestId(1));
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(*found, TestPayload(1, 1000));
}

}  // namespace
}  // namespace kvcache::store::disk_store_retry_test
