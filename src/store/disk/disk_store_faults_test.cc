// File systems that refuse while the store is in use: no locks, no space, errors of the disk, and
// directories that nobody may write to. Each costs one clear error, and what was stored before stays whole.
// The store works again when the file system does. If it could not open its file, it waits for a pause first.
#include <gtest/gtest.h>
#include <lmdb.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "store/disk/disk_store.h"
#include "store/disk/failing_calls_testing.h"
#include "store/store_testing.h"

namespace kvcache::store::disk_store_faults_test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBudget = std::int64_t{4} << 20;

std::unique_ptr<Store> Open(const std::string& directory, const ManualClock& clock) {
  auto store = OpenDiskStoreWith({.directory = directory, .budget_bytes = kBudget}, clock.reader());
  EXPECT_TRUE(store.ok()) << store.status().message();
  return store.ok() ? std::move(*store) : nullptr;
}

// One line that has all of these words.
void ExpectSays(const Status& status, std::initializer_list<std::string> words) {
  EXPECT_EQ(status.code(), StatusCode::kIo) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos);
  for (const std::string& word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  }
}

struct Refusal {
  std::string name;
  FailingCall call;
  std::string words;
};

class DiskStoreFaults : public ::testing::TestWithParam<Refusal> {
 protected:
  TestDirectory directory_;
  ManualClock clock_;
};

using DiskStoreLocks = DiskStoreFaults;
using DiskStoreWrites = DiskStoreFaults;

TEST_P(DiskStoreLocks, AreNeeded) {
  Status status;
  const bool is_filtered = WithFailingCalls({GetParam().call}, [&] {
    status = OpenDiskStore({.directory = directory_.path(), .budget_bytes = kBudget}).status();
  });
  if (!is_filtered) GTEST_SKIP() << "the system has no filters of calls";
  ExpectSays(status, {directory_.path(), GetParam().words});
  const auto store = Open(directory_.path(), clock_);
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->Put(TestId(1), TestPayload(1, 100)).ok());
}

INSTANTIATE_TEST_SUITE_P(
    Calls, DiskStoreLocks,
    ::testing::Values(
        Refusal{"NoLocksOfFiles", {.number = SYS_flock, .error = ENOLCK}, "No locks available"},
        Refusal{
            "NotSupported", {.number = SYS_flock, .error = EOPNOTSUPP}, "Operation not supported"},
        Refusal{"NoLocksOfRecords",
                {.number = SYS_fcntl, .error = ENOLCK, .argument = 1, .from = 5, .below = 8},
                "No locks available"}),
    [](const auto& test) { return test.param.name; });

// A write that fails leaves what was there. The next one, on a disk that works, succeeds.
TEST_P(DiskStoreWrites, AreWholeOrAbsent) {
  const auto store = Open(directory_.path(), clock_);
  ASSERT_NE(store, nullptr);
  for (std::uint64_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, 50'000)).ok());
  }
  for (int round = 0; round < 3; ++round) {
    Status put, replaced, removed;
    const bool is_filtered = WithFailingCalls({GetParam().call}, [&] {
      put = store->Put(TestId(10), TestPayload(10, 300'000));
      replaced = store->Put(TestId(0), TestPayload(0, 50'000));
      removed = store->Remove(TestId(1));
    });
    if (!is_filtered) GTEST_SKIP() << "the system has no filters of calls";
    for (const Status& status : {put, replaced, removed}) {
      ExpectSays(status, {directory_.file(), GetParam().words});
    }
    clock_.Advance(std::chrono::seconds(1));
    for (std::uint64_t i = 0; i < 4; ++i) {
      const auto found = ReadObject(*store, TestId(i));
      ASSERT_TRUE(found.ok()) << found.status().message();
      EXPECT_EQ(*found, TestPayload(i, 50'000));
    }
    EXPECT_FALSE(*store->Contains(TestId(10)));
    const auto number = static_cast<std::uint64_t>(20 + round);
    const Status after = store->Put(TestId(number), TestPayload(number, 300'000));
    ASSERT_TRUE(after.ok()) << after.message();
    EXPECT_EQ(*ReadObject(*store, TestId(number)), TestPayload(number, 300'000));
  }
  EXPECT_EQ(store->Stats()->damaged, 0);
  EXPECT_EQ(store->Stats()->objects, 7);
}

// LMDB writes values with pwrite and pwritev, and names a transaction with a pwrite to the first two pages.
INSTANTIATE_TEST_SUITE_P(
    Calls, DiskStoreWrites,
    ::testing::Values(
        Refusal{"NoSpace", {.number = SYS_pwrite64, .error = ENOSPC}, "No space left on device"},
        Refusal{"ReadOnly", {.number = SYS_pwrite64, .error = EROFS}, "Read-only file system"},
        Refusal{"NotSynced", {.number = SYS_fdatasync, .error = EIO}, "Input/output error"},
        Refusal{"NotNamed",
                {.number = SYS_pwrite64, .error = EIO, .argument = 3, .below = 8192},
                "Input/output error"}),
    [](const auto& test) { return test.param.name; });

// Another process that reads a file in as many transactions as LMDB allows.
class AllReaders {
 public:
  explicit AllReaders(const std::string& file) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    process_ = fork();
    EXPECT_GE(process_, 0);
    if (process_ == 0) {
      (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
      MDB_env* env = nullptr;
      MDB_txn* transaction = nullptr;
      int error = mdb_env_create(&env);
      if (error == 0) {
        error = mdb_env_open(env, file.c_str(), MDB_NOSUBDIR | MDB_NOTLS | MDB_RDONLY, 0);
      }
      while (error == 0) error = mdb_txn_begin(env, nullptr, MDB_RDONLY, &transaction);
      (void)!write(ends[1], &error, sizeof(error));
      for (;;) (void)pause();
    }
    close(ends[1]);  // reading ends if the process does
    int error = 0;
    EXPECT_EQ(read(ends[0], &error, sizeof(error)), static_cast<ssize_t>(sizeof(error)));
    EXPECT_EQ(error, MDB_READERS_FULL) << mdb_strerror(error);
    close(ends[0]);
  }
  ~AllReaders() {
    if (process_ <= 0) return;
    (void)kill(process_, SIGKILL);
    (void)waitpid(process_, nullptr, 0);
  }
  AllReaders(const AllReaders&) = delete;
  AllReaders& operator=(const AllReaders&) = delete;

 private:
  pid_t process_ = -1;
};

struct FirstCall {
  std::string name;
  std::function<Status(Store&)> call;
};

class DiskStoreGivenUp : public ::testing::TestWithParam<FirstCall> {};

// LMDB gives the file up while other processes have all places of readers. The store sees it with a place that it
// has, and the next call uses the file again.
TEST_P(DiskStoreGivenUp, IsOneErrorAndOpensAgain) {
  const TestDirectory directory;
  const ManualClock clock;
  const auto store = Open(directory.path(), clock);
  ASSERT_NE(store, nullptr);
  ASSERT_TRUE(store->Put(TestId(1), TestPayload(1, 50'000)).ok());
  Status failed;
  {
    const AllReaders readers(directory.file());
    const bool is_filtered =
        WithFailingCalls({{.number = SYS_pwrite64, .error = EIO, .argument = 3, .below = 8192}},
                         [&] { failed = store->Put(TestId(2), TestPayload(2, 50'000)); });
    if (!is_filtered) GTEST_SKIP() << "the system has no filters of calls";
    ExpectSays(failed, {directory.file(), "Input/output error"});
  }
  const Status next = GetParam().call(*store);
  EXPECT_TRUE(next.ok()) << next.message();
  const auto found = ReadObject(*store, TestId(1));
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(*found, TestPayload(1, 50'000));
  const Status after = store->Put(TestId(3), TestPayload(3, 50'000));
  ASSERT_TRUE(after.ok()) << after.message();
  EXPECT_EQ(*ReadObject(*store, TestId(3)), TestPayload(3, 50'000));
  EXPECT_EQ(store->Stats()->damaged, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, DiskStoreGivenUp,
    ::testing::Values(
        FirstCall{"Put", [](Store& store) { return store.Put(TestId(4), TestPayload(4, 100)); }},
        FirstCall{"Remove", [](Store& store) { return store.Remove(TestId(4)); }},
        FirstCall{"Get", [](Store& store) { return ReadObject(store, TestId(1)).status(); }},
        FirstCall{"Contains", [](Store& store) { return store.Contains(TestId(1)).status(); }},
        FirstCall{"List", [](Store& store) { return store.List().status(); }}),
    [](const auto& test) { return test.param.name; });

// Some threads still use the file while one closes it, and others open it again.
TEST(DiskStoreGivenUpTest, ThreadsContinueTogether) {
  const TestDirectory directory;
  ManualClock clock;
  const auto store = Open(directory.path(), clock);
  ASSERT_NE(store, nullptr);
  ASSERT_TRUE(store->Put(TestId(0), TestPayload(0, 50'000)).ok());
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 1; thread <= 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = 0; !stop; ++i) {
        const std::uint64_t own = 10 * thread + i % 4;
        (void)store->Put(TestId(own), TestPayload(own, 20'000)).ok();  // the file may be given up
        for (const std::uint64_t number : {std::uint64_t{0}, own}) {
          const auto found = ReadObject(*store, TestId(number));
          wrong += found.ok() && *found != TestPayload(number, number == 0 ? 50'000 : 20'000);
        }
      }
    });
  }
  bool is_filtered = true;
  for (int round = 0; round < 20 && is_filtered; ++round) {
    is_filtered =
        WithFailingCalls({{.number = SYS_pwrite64, .error = EIO, .argument = 3, .below = 8192}},
                         [&] { (void)store->Put(TestId(1), TestPayload(1, 1000)).ok(); });
    clock.Advance(std::chrono::seconds(
        30));  // the thread whose calls fail may be the one that opens the file
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (!is_filtered) GTEST_SKIP() << "the system has no filters of calls";
  EXPECT_EQ(wrong, 0);
  (void)store->Contains(TestId(0)).ok();  // may be the first call after the last failure
  ASSERT_TRUE(store->Put(TestId(2), TestPayload(2, 1000)).ok());
  EXPECT_EQ(*ReadObject(*store, TestId(0)), TestPayload(0, 50'000));
  EXPECT_EQ(store->Stats()->damaged, 0);
}

// A disk of 2 MiB: the objects that fit are stored, the others are errors, and all that was stored is
// there for the next process.
TEST(DiskStoreFullTest, ADiskFillsInTheMiddleOfAWrite) {
  const TestDirectory directory;
  fs::create_directory(directory.path());
  const pid_t child = fork();
  if (child == 0) {
    const bool is_mounted =
        unshare(CLONE_NEWNS) == 0 &&
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        mount("none", directory.path().c_str(), "tmpfs", 0, "size=2m,mode=700") == 0;
    if (!is_mounted) _exit(77);
    int stored = 0;
    {
      auto store =
          OpenDiskStore({.directory = directory.path(), .budget_bytes = std::int64_t{64} << 20});
      if (!store.ok()) _exit(1);
      for (std::uint64_t i = 0; i < 40; ++i) {
        const Status status = (*store)->Put(TestId(i), TestPayload(i, 150'000));
        if (!status.ok() && status.message().find("No space left") == std::string::npos) _exit(2);
        stored += status.ok() ? 1 : 0;
      }
    }
    if (stored < 5 || stored == 40) _exit(3);
    auto store =
        OpenDiskStore({.directory = directory.path(), .budget_bytes = std::int64_t{64} << 20});
    if (!store.ok()) _exit(4);
    int found = 0;
    for (std::uint64_t i = 0; i < 40; ++i) {
      const auto bytes = ReadObject(**store, TestId(i));
      if (bytes.ok() && *bytes != TestPayload(i, 150'000)) _exit(5);
      found += bytes.ok() ? 1 : 0;
    }
    if (found != stored) _exit(6);
    if (!(*store)->Remove(TestId(0)).ok() || !(*store)->Remove(TestId(1)).ok()) _exit(7);
    if (!(*store)->Put(TestId(50), TestPayload(50, 100'000)).ok()) _exit(8);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this user may not mount";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// A user without rights: the superuser can write everywhere.
TEST(DiskStoreRightsTest, ADirectoryLosesItsRightsWhileTheStoreIsOpen) {
  std::string path = (fs::temp_directory_path() / "kvcache_rights.XXXXXX").string();
  ASSERT_NE(mkdtemp(path.data()), nullptr);
  constexpr uid_t kNobody = 65534;
  const bool is_superuser = geteuid() == 0;
  ASSERT_TRUE(!is_superuser || chown(path.c_str(), kNobody, kNobody) == 0);
  const pid_t child = fork();
  if (child == 0) {
    if (is_superuser && (setgid(kNobody) != 0 || setuid(kNobody) != 0)) _exit(77);
    ManualClock clock;
    auto store = OpenDiskStoreWith({.directory = path, .budget_bytes = kBudget}, clock.reader());
    if (!store.ok())
      _exit(store.status().message().find("Permission") == std::string::npos ? 1 : 77);
    if (!(*store)->Put(TestId(1), TestPayload(1, 1000)).ok()) _exit(2);
    // The file is open: its directory's rights do not matter.
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_exec);
    if (!(*store)->Put(TestId(2), TestPayload(2, 1000)).ok()) _exit(3);
    // Another file cannot take its place.
    fs::permissions(path, fs::perms::owner_all);
    if (!fs::remove(path + "/objects.mdb")) _exit(4);
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_exec);
    const Status refused = (*store)->Put(TestId(3), TestPayload(3, 1000));
    if (refused.message().find("Permission denied") == std::string::npos) _exit(5);
    if (refused.message().find(path) == std::string::npos) _exit(6);
    fs::permissions(path, fs::perms::owner_all);
    clock.Advance(std::chrono::seconds(1));
    if (!(*store)->Put(TestId(3), TestPayload(3, 1000)).ok()) _exit(7);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  fs::remove_all(path);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "another user cannot come to the directory";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace kvcache::store::disk_store_faults_test
