// Other processes that are stopped or killed while they use the directory. Nobody waits for them without an end,
// nothing is lost, and an error says who is in the way.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <lmdb.h>
#include <sys/file.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "store/disk/child_process_testing.h"
#include "store/disk/disk_store.h"
#include "store/store_testing.h"
#include "store/tiers/write_behind.h"

namespace kvcache::store::disk_store_stopped_test {
namespace {

constexpr std::int64_t kBudget = std::int64_t{4} << 20;
constexpr int kWaitMs = 100;
constexpr std::chrono::seconds kNoHang{60};  // machines are slow

Result<std::unique_ptr<Store>> Open(const std::string& directory) {
  return OpenDiskStore({.directory = directory, .budget_bytes = kBudget, .max_wait_ms = kWaitMs});
}

bool Says(const Status& status, const std::string& words) {
  return status.message().find(words) != std::string::npos;
}

// Stores objects without an end, and counts them.
int WriteForEver(const std::string& directory, std::atomic<int>& done) {
  auto store = Open(directory);
  if (!store.ok()) return 3;
  for (std::uint64_t i = 0;; ++i, ++done) {
    (void)(*store)->Put(TestId(100 + i % 40), TestPayload(i % 40, 2000 + i % 7 * 9000)).ok();
    if (i % 5 == 0) (void)ReadObject(**store, TestId(1)).ok();
  }
}

// Uses a directory beside a process that is stopped. Returns 0, or the number of what was wrong.
int UseBeside(const std::string& directory, const std::string& process) {
  auto store = Open(directory);
  // The process may be stopped while it opens the store, or while LMDB gives it a place to read.
  if (!store.ok()) return Says(store.status(), process) ? 0 : 10;
  const auto found = ReadObject(**store, TestId(1));
  if (found.ok() && *found != TestPayload(1, 3000)) return 11;
  if (!found.ok() && !Says(found.status(), process)) return 12;
  if (const auto all = (*store)->List(); !all.ok() && !Says(all.status(), process)) return 13;
  for (int i = 0; i < 5; ++i) {
    const Status put = (*store)->Put(TestId(2), TestPayload(2, 5000));
    if (!put.ok() && !Says(put, process)) return 14;
    if (!put.ok() && put.message().find('\n') != std::string::npos) return 15;
  }
  return 0;
}

TEST(DiskStoreStoppedTest, NobodyWaitsForAProcessThatIsStopped) {
  const int rounds = std::getenv("KVCACHE_SLOW_TESTS") != nullptr ? 400 : 25;
  const TestDirectory directory;
  ASSERT_TRUE((*Open(directory.path()))->Put(TestId(1), TestPayload(1, 3000)).ok());
  std::mt19937 random(1);
  for (int round = 0; round < rounds; ++round) {
    const SharedWithChildren<std::atomic<int>> done;
    ChildProcess writer([&] { return WriteForEver(directory.path(), *done); });
    const int min = static_cast<int>(random() % 6);
    while (*done < min) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    writer.Stop();
    const std::string name = "process " + std::to_string(writer.process()) + ", which is stopped,";
    ChildProcess other([&] { return UseBeside(directory.path(), name); });
    ASSERT_EQ(other.WaitFor(kNoHang), 0) << "round " << round;
    if (round % 2 == 0) {  // it continues where it was
      writer.Continue();
      const int before = *done;
      while (*done < before + 3) std::this_thread::yield();
    }
    writer.Kill();
    const auto store = Open(directory.path());
    ASSERT_TRUE(store.ok()) << store.status().message();
    EXPECT_EQ(*ReadObject(**store, TestId(1)), TestPayload(1, 3000));
    const Status put = (*store)->Put(TestId(3), TestPayload(3, 5000));
    EXPECT_TRUE(put.ok()) << put.message();
    EXPECT_EQ((*store)->Stats()->repair, "");
    EXPECT_EQ((*store)->Stats()->damaged, 0);
    if (HasFailure()) return;
  }
}

// A process that keeps one of the locks, and stops.
class LockKeeper {
 public:
  explicit LockKeeper(const std::string& path)
      : child_([path, this] {
          const int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
          *has_it_ = flock(fd, LOCK_EX) == 0 ? 1 : -1;
          for (;;) (void)pause();
          return 0;
        }) {
    while (*has_it_ == 0) std::this_thread::yield();
    child_.Stop();
  }
  std::string name() const { return "process " + std::to_string(child_.process()); }
  void Kill() { child_.Kill(); }

 private:
  const SharedWithChildren<std::atomic<int>> has_it_;
  ChildProcess child_;
};

TEST(DiskStoreStoppedTest, AnOpeningThatIsStoppedIsAnError) {
  const TestDirectory directory;
  ASSERT_TRUE(Open(directory.path()).ok());
  LockKeeper keeper(directory.path() + "/lock");
  const Status status = Open(directory.path()).status();
  EXPECT_TRUE(Says(status, keeper.name())) << status.message();
  EXPECT_TRUE(Says(status, directory.path() + "/lock")) << status.message();
  keeper.Kill();
  EXPECT_TRUE(Open(directory.path()).ok());
}

TEST(DiskStoreStoppedTest, ReadingContinuesBesideAWriterThatIsStopped) {
  const TestDirectory directory;
  ASSERT_TRUE((*Open(directory.path()))->Put(TestId(1), TestPayload(1, 3000)).ok());
  LockKeeper keeper(directory.path() + "/write-lock");
  const auto store = std::move(*Open(directory.path()));
  EXPECT_EQ(*ReadObject(*store, TestId(1)), TestPayload(1, 3000));
  EXPECT_EQ(store->List()->size(), 1U);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 200; ++i) {  // only the first one waits
    const Status put = store->Put(TestId(2), TestPayload(2, 3000));
    EXPECT_TRUE(Says(put, keeper.name() + ", which is stopped,")) << put.message();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(200 * kWaitMs));
  keeper.Kill();
  const Status put = store->Put(TestId(2), TestPayload(2, 3000));
  EXPECT_TRUE(put.ok()) << put.message();
}

TEST(DiskStoreStoppedTest, AStoreThatIsOpenReadsWithoutTheReadersLock) {
  const TestDirectory directory;
  const auto store = std::move(*Open(directory.path()));
  ASSERT_TRUE(store->Put(TestId(1), TestPayload(1, 3000)).ok());
  const LockKeeper keeper(directory.path() + "/read-lock");
  EXPECT_EQ(*ReadObject(*store, TestId(1)), TestPayload(1, 3000));
  ChildProcess other([&] {
    const Status status = Open(directory.path()).status();
    return Says(status, keeper.name()) ? 0 : 1;
  });
  EXPECT_EQ(other.WaitFor(kNoHang), 0);
}

// A process that reads the newest state, and does not end.
class Reader {
 public:
  explicit Reader(const std::string& file)
      : child_([file, this] {
          MDB_env* env = nullptr;
          MDB_txn* transaction = nullptr;
          int error = mdb_env_create(&env);
          if (error == 0)
            error = mdb_env_open(env, file.c_str(), MDB_NOSUBDIR | MDB_NOTLS | MDB_RDONLY, 0);
          if (error == 0) error = mdb_txn_begin(env, nullptr, MDB_RDONLY, &transaction);
          *reads_ = error == 0 ? 1 : -1;
          for (;;) (void)pause();
          return 0;
        }) {
    while (*reads_ == 0) std::this_thread::yield();
    EXPECT_EQ(*reads_, 1);
  }
  pid_t process() const { return child_.process(); }
  std::string name() const { return "process " + std::to_string(process()); }
  void Kill() { child_.Kill(); }

 private:
  const SharedWithChildren<std::atomic<int>> reads_;
  ChildProcess child_;
};

// Replaces objects until the file has been filled many times. Returns the first error.
Status Churn(Store& store, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    KVCACHE_RETURN_IF_ERROR(store.Put(TestId(i % 30), TestPayload(i % 30, 90'000)));
  }
  return Status::Ok();
}

TEST(DiskStoreStoppedTest, AReaderThatWasKilledKeepsNothing) {
  const TestDirectory directory;
  const auto store = std::move(*Open(directory.path()));
  ASSERT_TRUE(Churn(*store, 30).ok());
  const std::int64_t before = store->Stats()->objects;
  for (int round = 0; round < 3; ++round) {
    Reader reader(directory.file());
    reader.Kill();
    const Status status = Churn(*store, 200);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(store->Stats()->objects, before);
  }
  EXPECT_EQ(store->Stats()->evicted, 0);
}

// A process that was killed had the number of the next one, as in a container that starts again.
TEST(DiskStoreStoppedTest, AReaderThatHadOurNumberKeepsNothing) {
  const TestDirectory directory;
  const auto store = std::move(*Open(directory.path()));  // LMDB's table of readers stays
  ASSERT_TRUE(Churn(*store, 30).ok());
  Reader reader(directory.file());
  reader.Kill();
  ChildProcess next([&] {
    const int fd = open((directory.file() + "-lock").c_str(), O_RDWR);
    std::vector<pid_t> table(8192 / sizeof(pid_t));
    if (pread(fd, table.data(), 8192, 0) != 8192) return 1;
    for (pid_t& number : table) {
      if (number == reader.process()) number = getpid();
    }
    if (pwrite(fd, table.data(), 8192, 0) != 8192) return 2;
    close(fd);
    const auto opened = Open(directory.path());
    return opened.ok() && Churn(**opened, 200).ok() ? 0 : 3;
  });
  EXPECT_EQ(next.WaitFor(kNoHang), 0);
}

TEST(DiskStoreStoppedTest, AReaderThatDoesNotEndIsNamedAndNothingIsEvicted) {
  const TestDirectory directory;
  const auto store = std::move(*Open(directory.path()));
  ASSERT_TRUE(Churn(*store, 30).ok());
  const std::int64_t before = store->Stats()->objects;
  Reader reader(directory.file());
  const Status status = Churn(*store, 200);
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_TRUE(Says(status, reader.name())) << status.message();
  EXPECT_EQ(store->Stats()->objects, before);
  EXPECT_EQ(store->Stats()->evicted, 0);
  reader.Kill();
  const Status after = Churn(*store, 200);
  EXPECT_TRUE(after.ok()) << after.message();
}

// A queue costs one wait, whatever its length is.
TEST(DiskStoreStoppedTest, AQueueWaitsOnceForAReaderThatDoesNotEnd) {
  constexpr std::uint64_t kQueued = 60;
  const TestDirectory directory;
  const auto store = std::move(*Open(directory.path()));
  ASSERT_TRUE(Churn(*store, 30).ok());
  Reader reader(directory.file());
  for (std::uint64_t i = 0; i < 200 && store->Put(TestId(i), TestPayload(i, 90'000)).ok(); ++i) {
  }
  const auto start = std::chrono::steady_clock::now();
  {
    WriteBehind writer(*store, std::int64_t{64} << 20);
    for (std::uint64_t i = 0; i < kQueued; ++i) {
      StoreBytes payload = std::move(*StoreBytes::Make(90'000));
      std::memset(payload.data.get(), static_cast<int>(i), payload.size);
      ASSERT_EQ(writer.Add(TestId(500 + i), std::move(payload), 0), WriteBehind::Outcome::kQueued);
    }
    writer.Flush();
    const std::string problem = writer.TakeProblem();
    EXPECT_NE(problem.find(reader.name()), std::string::npos) << problem;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(kQueued * kWaitMs));
  reader.Kill();  // the pause is no reason to wait
  const Status after = Churn(*store, 60);
  EXPECT_TRUE(after.ok()) << after.message();
}

// A directory that cannot be opened when a program starts is opened when it can.
TEST(DiskStoreStoppedTest, AStoreOpensLater) {
  const TestDirectory directory;
  ASSERT_TRUE((*Open(directory.path()))->Put(TestId(1), TestPayload(1, 3000)).ok());
  LockKeeper keeper(directory.path() + "/lock");
  ManualClock clock;
  auto late = OpenDiskStoreLaterWith(
      {.directory = directory.path(), .budget_bytes = kBudget, .max_wait_ms = kWaitMs},
      clock.reader());
  ASSERT_TRUE(late.ok()) << late.status().message();
  EXPECT_TRUE(Says(late->problem, keeper.name())) << late->problem.message();
  Store& store = *late->store;
  EXPECT_TRUE(Says(store.Put(TestId(2), TestPayload(2, 3000)), keeper.name()));
  EXPECT_TRUE(Says(ReadObject(store, TestId(1)).status(), keeper.name()));
  EXPECT_TRUE(Says(store.Usage().status(), keeper.name()));
  store.Touch(std::vector{TestId(1)});
  clock.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(Says(store.List().status(), keeper.name()));
  keeper.Kill();
  EXPECT_FALSE(store.Contains(TestId(1)).ok()) << "the pause lasts";
  clock.Advance(std::chrono::seconds(2));
  EXPECT_EQ(*ReadObject(store, TestId(1)), TestPayload(1, 3000));
  const Status put = store.Put(TestId(2), TestPayload(2, 3000));
  EXPECT_TRUE(put.ok()) << put.message();
  EXPECT_EQ(store.List()->size(), 2U);
}

TEST(DiskStoreStoppedTest, AStoreThatOpensLaterMakesItsDirectory) {
  const TestDirectory directory;
  { std::ofstream(directory.path()) << "a file is in the way"; }
  const DiskStoreOptions options{.directory = directory.path() + "/store"};
  ManualClock clock;
  const auto late = OpenDiskStoreLaterWith(options, clock.reader());
  ASSERT_TRUE(late.ok()) << late.status().message();
  EXPECT_FALSE(late->problem.ok());
  std::filesystem::remove(directory.path());
  clock.Advance(std::chrono::seconds(1));
  const Status put = late->store->Put(TestId(2), TestPayload(2, 3000));
  EXPECT_TRUE(put.ok()) << put.message();
}

TEST(DiskStoreStoppedTest, AnInvalidDirectoryIsRefusedAtOnce) {
  EXPECT_EQ(OpenDiskStoreLater({.directory = ""}).status().code(), StatusCode::kInvalidArgument);
  const auto opened = OpenDiskStoreLater({.directory = TestDirectory().path()});
  ASSERT_TRUE(opened.ok());
  EXPECT_TRUE(opened->problem.ok()) << opened->problem.message();
}

}  // namespace
}  // namespace kvcache::store::disk_store_stopped_test
