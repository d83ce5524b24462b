// What a directory adds: other processes, ends of processes, damaged files, and file systems that refuse.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "store/disk/disk_store.h"
#include "store/store_testing.h"

namespace kvcache::store::disk_store_test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBudget = std::int64_t{4} << 20;

std::unique_ptr<Store> Open(const std::string& directory, std::int64_t budget = kBudget) {
  auto store = OpenDiskStore({.directory = directory, .budget_bytes = budget});
  EXPECT_TRUE(store.ok()) << store.status().message();
  return store.ok() ? std::move(*store) : nullptr;
}

std::size_t SizeOf(std::uint64_t number) {
  return number % 7 == 0 ? 100 : 3000 + number % 50 * 4000;
}

// Checks that each listed object is whole. Returns how many there are.
int ExpectWhole(Store& store, std::uint64_t numbers) {
  std::map<ObjectId, std::uint64_t> known;
  for (std::uint64_t i = 0; i < numbers; ++i) known[TestId(i)] = i;
  const auto all = store.List();
  EXPECT_TRUE(all.ok());
  for (const StoredObject& object : *all) {
    const auto number = known.find(object.id);
    if (number == known.end()) {
      ADD_FAILURE() << "an object that nobody stored";
      continue;
    }
    const auto found = ReadObject(store, object.id);
    EXPECT_TRUE(found.ok()) << found.status().message();
    if (!found.ok()) continue;
    EXPECT_EQ(*found, TestPayload(number->second, SizeOf(number->second)));
  }
  return static_cast<int>(all->size());
}

TEST(DiskStoreTest, OutlivesTheStore) {
  const TestDirectory directory;
  for (std::uint64_t i = 0; i < 20; ++i) {
    const auto store = Open(directory.path());
    ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, SizeOf(i))).ok());
  }
  const auto store = Open(directory.path());
  EXPECT_EQ(ExpectWhole(*store, 20), 20);
}

// A bit is flipped in the middle one of three objects.
TEST(DiskStoreTest, ReadsSeveralUpToADamagedOne) {
  const TestDirectory directory;
  constexpr std::size_t kSize = 900'000;
  std::vector<ObjectId> ids;
  {
    const auto store = Open(directory.path());
    for (std::uint64_t i = 0; i < 3; ++i) {
      ids.push_back(TestId(i));
      ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, kSize)).ok());
    }
  }
  std::ifstream file(directory.file(), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto payload = TestPayload(1, kSize);
  const std::string_view text(reinterpret_cast<const char*>(payload.data()), payload.size());
  const std::size_t at = bytes.find(text);
  ASSERT_NE(at, std::string::npos);
  bytes[at + kSize / 2] = static_cast<char>(bytes[at + kSize / 2] ^ 1);
  std::ofstream(directory.file(), std::ios::binary).write(bytes.data(), std::ssize(bytes));
  const auto store = Open(directory.path());
  std::size_t count = 0;
  const Status status =
      store->GetEach(ids, [&](std::size_t, std::span<const std::byte>, StoreTier) {
        ++count;
        return Status::Ok();
      });
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(count, 1U);
  EXPECT_EQ(store->Stats()->damaged, 1);
  EXPECT_FALSE(*store->Contains(TestId(1)));
  EXPECT_TRUE(*store->Contains(TestId(2)));
}

TEST(DiskStoreTest, CollectsGarbage) {
  const TestDirectory directory;
  {
    const auto store = Open(directory.path(), std::int64_t{16} << 20);
    for (std::uint64_t i = 0; i < 60; ++i) {
      ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, SizeOf(i))).ok());
    }
    ASSERT_TRUE(ReadObject(*store, TestId(2)).ok()) << "the most recently used one";
  }
  const auto size = [&] { return static_cast<std::int64_t>(fs::file_size(directory.file())); };
  ASSERT_GT(size(), kBudget);
  const auto stats = CollectGarbage({.directory = directory.path(), .budget_bytes = kBudget});
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_LE(size(), kBudget);
  EXPECT_GT(stats->evicted, 0);
  struct stat info {};
  ASSERT_EQ(stat(directory.file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  const auto store = Open(directory.path());
  EXPECT_EQ(ExpectWhole(*store, 60), stats->objects);
  EXPECT_TRUE(*store->Contains(TestId(2)));
  EXPECT_FALSE(*store->Contains(TestId(0)));
  ASSERT_TRUE(store->Put(TestId(61), TestPayload(61, 1000)).ok());
}

TEST(DiskStoreTest, ShrinksToASmallerBudget) {
  const TestDirectory directory;
  {
    const auto store = Open(directory.path(), std::int64_t{16} << 20);
    for (std::uint64_t i = 0; i < 60; ++i) {
      ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, SizeOf(i))).ok());
    }
  }
  const auto store = Open(directory.path());
  EXPECT_LE(store->Stats()->held_bytes, kBudget);
  EXPECT_GT(ExpectWhole(*store, 60), 10);
  EXPECT_TRUE(*store->Contains(TestId(59)));
  for (std::uint64_t i = 0; i < 60; ++i) {
    ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, SizeOf(i))).ok());
    EXPECT_LE(store->Stats()->held_bytes, kBudget);
  }
}

TEST(DiskStoreTest, IsPrivate) {
  const TestDirectory directory;
  const std::string inner = directory.path() + "/a/b";
  const auto store = Open(inner);
  struct stat info {};
  for (const std::string& path : {directory.path(), inner}) {
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700U) << path;
  }
  for (const char* name : {"/objects.mdb", "/objects.mdb-lock", "/lock"}) {
    ASSERT_EQ(stat((inner + name).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U) << name;
  }
}

TEST(DiskStoreTest, RefusesWhatIsNotItsOwn) {
  const TestDirectory directory;
  const auto refused = [&](const std::string& word) {
    const auto store = OpenDiskStore({.directory = directory.path()});
    ASSERT_FALSE(store.ok());
    EXPECT_NE(store.status().message().find(word), std::string::npos) << store.status().message();
    EXPECT_NE(store.status().message().find(directory.path()), std::string::npos);
  };
  std::ofstream(directory.path()).put('x');
  refused("not a directory");
  fs::remove(directory.path());
  fs::create_directory(directory.path());
  fs::permissions(directory.path(), fs::perms::all);
  refused("other users can write");
  fs::permissions(directory.path(), fs::perms::owner_all);
  EXPECT_TRUE(OpenDiskStore({.directory = directory.path()}).ok());
  EXPECT_FALSE(OpenDiskStore({.directory = ""}).ok());
  EXPECT_FALSE(OpenDiskStore({.directory = directory.path(), .budget_bytes = 1000}).ok());
}

TEST(DiskStoreTest, SaysThatItsDirectoryIsGone) {
  const TestDirectory directory;
  ManualClock clock;
  const auto store = std::move(*OpenDiskStoreWith({.directory = directory.path()}, clock.reader()));
  ASSERT_TRUE(store->Put(TestId(1), TestPayload(1, 100)).ok());
  fs::remove_all(directory.path());
  const Status status = store->Put(TestId(2), TestPayload(2, 100));
  EXPECT_EQ(status.message(), "the store's file was removed: cannot open the directory " +
                                  directory.path() + ": No such file or directory");
  // A directory that is there again is used.
  fs::create_directory(directory.path());
  fs::permissions(directory.path(), fs::perms::owner_all);
  clock.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(store->Put(TestId(3), TestPayload(3, 100)).ok());
  EXPECT_EQ(*ReadObject(*store, TestId(3)), TestPayload(3, 100));
  EXPECT_FALSE(*store->Contains(TestId(1)));
}

// Runs `body` in another process and returns its number.
template <class Body>
pid_t Fork(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  return child;
}

int WaitFor(pid_t child) {
  int status = 0;
  (void)waitpid(child, &status, 0);
  return status;
}

// A number that processes share.
class SharedCount {
 public:
  SharedCount()
      : count_(static_cast<std::atomic<int>*>(mmap(nullptr, sizeof(std::atomic<int>),
                                                   PROT_READ | PROT_WRITE,
                                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedCount() { (void)munmap(count_, sizeof(std::atomic<int>)); }
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;
  std::atomic<int>& operator*() const { return *count_; }

 private:
  std::atomic<int>* const count_;
};

// Writes, removes and reads objects without an end, and counts them.
void Work(const std::string& directory, unsigned seed, std::uint64_t numbers,
          std::atomic<int>& done) {
  // On a busy machine the others may hold the lock for long.
  auto store =
      OpenDiskStore({.directory = directory, .budget_bytes = kBudget, .max_wait_ms = 60'000});
  if (!store.ok()) _exit(3);
  std::mt19937 random(seed);
  for (;; ++done) {
    const std::uint64_t number = random() % numbers;
    if (random() % 8 == 0) {
      if (!(*store)->Remove(TestId(number)).ok()) _exit(4);
    } else if (random() % 8 == 0) {
      (void)ReadObject(**store, TestId(number));
    } else if (!(*store)->Put(TestId(number), TestPayload(number, SizeOf(number))).ok()) {
      _exit(5);
    }
  }
}

// A process that is killed at any moment leaves whole objects, within the budget.
TEST(DiskStoreTest, SurvivesKills) {
  const int kills = std::getenv("KVCACHE_SLOW_TESTS") != nullptr ? 1000 : 40;
  const TestDirectory directory;
  std::mt19937 random(1);
  int max = 0;
  for (int i = 0; i < kills; ++i) {
    const SharedCount done;
    const pid_t child = Fork([&] { Work(directory.path(), static_cast<unsigned>(i), 60, *done); });
    // The process ends while it opens the store, or in one of its first writes.
    const int min = static_cast<int>(random() % 8);
    while (*done < min && waitpid(child, nullptr, WNOHANG) == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    const int status = WaitFor(child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit status " << WEXITSTATUS(status);
    const auto store = Open(directory.path());
    ASSERT_NE(store, nullptr);
    max = std::max(max, ExpectWhole(*store, 60));
    EXPECT_LE(store->Stats()->held_bytes, kBudget);
    EXPECT_EQ(store->Stats()->damaged, 0);
    if (HasFailure()) return;
  }
  EXPECT_GT(max, 10);
}

// Two processes write; each sees what the other has written. One is killed, and the other continues.
TEST(DiskStoreTest, IsSharedByProcesses) {
  const TestDirectory directory;
  const SharedCount done;
  const pid_t first = Fork([&] { Work(directory.path(), 1, 60, *done); });
  const pid_t second = Fork([&] { Work(directory.path(), 2, 60, *done); });
  while (*done < 40 && waitpid(-1, nullptr, WNOHANG) == 0) std::this_thread::yield();
  {
    const auto store = Open(directory.path());
    ASSERT_NE(store, nullptr);
    const ObjectId own = TestId(1000);
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(store->Put(own, TestPayload(1000, 5000)).ok());
      EXPECT_EQ(*ReadObject(*store, own), TestPayload(1000, 5000));
    }
    ASSERT_EQ(kill(first, SIGKILL), 0);
    (void)WaitFor(first);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(store->Put(own, TestPayload(1000, 5000)).ok());
    ASSERT_TRUE(store->Remove(own).ok());
  }
  ASSERT_EQ(kill(second, SIGKILL), 0);
  EXPECT_TRUE(WIFSIGNALED(WaitFor(second)));
  const auto store = Open(directory.path());
  EXPECT_GT(ExpectWhole(*store, 60), 0);
}

// A process that opens the store with a larger budget lets the file grow beyond another one's map.
TEST(DiskStoreTest, FollowsAFileThatGrew) {
  const TestDirectory directory;
  const auto store = Open(directory.path(), std::int64_t{2} << 20);
  const int status = WaitFor(Fork([&] {
    auto larger =
        OpenDiskStore({.directory = directory.path(), .budget_bytes = std::int64_t{32} << 20});
    if (!larger.ok()) _exit(3);
    for (std::uint64_t i = 0; i < 60; ++i) {
      if (!(*larger)->Put(TestId(i), TestPayload(i, SizeOf(i))).ok()) _exit(4);
    }
  }));
  EXPECT_TRUE(WIFEXITED(status));
  for (std::uint64_t i = 0; i < 60; ++i) {
    const auto found = ReadObject(*store, TestId(i));
    if (!found.ok()) continue;
    EXPECT_EQ(*found, TestPayload(i, SizeOf(i)));
  }
  EXPECT_TRUE(store->Put(TestId(100), TestPayload(100, 5000)).ok());
}

class DamagedFile : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto store = Open(directory_.path());
    // Some churn, so that the list of free pages is not empty.
    for (std::uint64_t i = 0; i < 40; ++i) {
      ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, SizeOf(i))).ok());
    }
    for (std::uint64_t i = 0; i < 40; i += 3) ASSERT_TRUE(store->Remove(TestId(i)).ok());
  }

  std::string Bytes() const {
    std::ifstream file(directory_.file(), std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(file)), {});
  }

  // Opens a store whose file has these bytes, in a process of its own, and reads and writes. Returns the
  // exit status of the process: the number of hits, or more than 100 for a wrong answer.
  int HitsOf(const std::string& bytes) const {
    const TestDirectory damaged;
    fs::create_directory(damaged.path());
    fs::permissions(damaged.path(), fs::perms::owner_all);
    std::ofstream(damaged.file(), std::ios::binary).write(bytes.data(), std::ssize(bytes));
    const int status = WaitFor(Fork([&] { _exit(Exercise(damaged.path())); }));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  // A damaged meta page makes LMDB take the transaction before: the object that was removed last is back, whole.
  static constexpr std::uint64_t kLastRemoved = 39;
  static constexpr int kHeld = 26;

  static int Exercise(const std::string& path) {
    auto store = OpenDiskStore({.directory = path, .budget_bytes = kBudget});
    if (!store.ok()) return 101;
    int hits = 0;
    for (std::uint64_t i = 0; i < 40; ++i) {
      const auto found = ReadObject(**store, TestId(i));
      if (found.ok() && *found != TestPayload(i, SizeOf(i))) return 102;
      if (found.ok() && i % 3 == 0 && i != kLastRemoved) return 105;
      hits += found.ok() ? 1 : 0;
    }
    for (std::uint64_t i = 40; i < 80; ++i) {
      const auto payload = TestPayload(i, SizeOf(i));
      if (!(*store)->Put(TestId(i), payload).ok()) return 103;
      const auto found = ReadObject(**store, TestId(i));
      if (!found.ok() || *found != payload) return 104;
    }
    return hits;
  }

  TestDirectory directory_;
};

TEST_F(DamagedFile, GivesAllWithoutDamage) {
  EXPECT_EQ(HitsOf(Bytes()), kHeld);
}

TEST_F(DamagedFile, GivesOnlyMissesWhenItIsCut) {
  const std::string bytes = Bytes();
  const std::size_t step = std::getenv("KVCACHE_SLOW_TESTS") != nullptr ? 4096 : 4096 * 23;
  for (std::size_t size = 0; size < bytes.size(); size += step) {
    EXPECT_LE(HitsOf(bytes.substr(0, size)), kHeld) << size;
  }
  EXPECT_LE(HitsOf(bytes.substr(0, 100)), kHeld);
  EXPECT_LE(HitsOf(bytes.substr(0, 5000)), kHeld);
}

// Bits anywhere, and bits in the pages of the index, which are few.
TEST_F(DamagedFile, GivesOnlyMissesWhenBitsAreFlipped) {
  const std::string bytes = Bytes();
  std::vector<std::size_t> index;  // pages that are not of a large value
  for (std::size_t page = 0; page + 4096 <= bytes.size(); page += 4096) {
    const auto kind = static_cast<unsigned char>(bytes[page + 10]);
    std::uint64_t number = 0;
    std::memcpy(&number, bytes.data() + page, sizeof(number));
    if (number == page / 4096 && (kind == 1 || kind == 2 || kind == 8)) index.push_back(page);
  }
  ASSERT_GT(index.size(), 5U);
  const int rounds = std::getenv("KVCACHE_SLOW_TESTS") != nullptr ? 4000 : 150;
  std::mt19937 random(7);
  int max = 0;
  for (int i = 0; i < rounds; ++i) {
    std::string damaged = bytes;
    for (auto flips = 1 + random() % 3; flips > 0; --flips) {
      const std::size_t at = i % 3 == 0 ? random() % bytes.size()
                                        : index[random() % index.size()] +
                                              (i % 3 == 1 ? random() % 200 : random() % 4096);
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    }
    const int hits = HitsOf(damaged);
    ASSERT_LE(hits, kHeld + 1) << "round " << i;
    max = std::max(max, hits);
  }
  EXPECT_GT(max, 20);
}

// The first pages of large values have headers that LMDB believes.
TEST_F(DamagedFile, GivesOnlyMissesWhenRunsOfPagesAreDamaged) {
  const std::string bytes = Bytes();
  std::mt19937 random(8);
  int runs = 0;
  for (std::size_t page = 4096 * 2; page + 4096 <= bytes.size(); page += 4096) {
    if (bytes[page + 10] != 4 || bytes[page + 11] != 0) continue;
    if (++runs % 5 != 0) continue;
    std::string damaged = bytes;
    const std::size_t at = page + random() % 16;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    ASSERT_LE(HitsOf(damaged), kHeld) << at;
  }
  EXPECT_GT(runs, 20);
}

TEST_F(DamagedFile, IsNoStoreOfAnotherProgram) {
  EXPECT_EQ(HitsOf("hello"), 0);
  EXPECT_EQ(HitsOf(std::string(20000, 'x')), 0);
  EXPECT_EQ(HitsOf(std::string(20000, '\0')), 0);
}

// A limit on the size of files stands for a full disk: LMDB gets an error from the system.
TEST(DiskStoreTest, SaysThatTheDiskIsFull) {
  const TestDirectory directory;
  const int status = WaitFor(Fork([&] {
    (void)signal(SIGXFSZ, SIG_IGN);
    auto store =
        OpenDiskStore({.directory = directory.path(), .budget_bytes = std::int64_t{64} << 20});
    if (!store.ok()) _exit(1);
    const rlimit limit{1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    if (!(*store)->Put(TestId(1), TestPayload(1, 10000)).ok()) _exit(3);
    const Status full = (*store)->Put(TestId(2), TestPayload(2, 4 << 20));
    if (full.code() != StatusCode::kIo) _exit(4);
    if (full.message().find(directory.file()) == std::string::npos) _exit(5);
    const auto found = ReadObject(**store, TestId(1));
    if (!found.ok() || *found != TestPayload(1, 10000)) _exit(6);
    if (!(*store)->Put(TestId(3), TestPayload(3, 10000)).ok()) _exit(7);
  }));
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(DiskStoreTest, SaysThatItCannotWrite) {
  if (geteuid() == 0) {
    EXPECT_FALSE(OpenDiskStore({.directory = "/proc/kvcache"}).ok());
    return;  // the superuser can write everywhere else
  }
  const TestDirectory directory;
  fs::create_directory(directory.path());
  fs::permissions(directory.path(), fs::perms::owner_read | fs::perms::owner_exec);
  const auto store = OpenDiskStore({.directory = directory.path()});
  ASSERT_FALSE(store.ok());
  EXPECT_NE(store.status().message().find("Permission denied"), std::string::npos);
}

}  // namespace
}  // namespace kvcache::store::disk_store_test
