// What opening a store finds and corrects: counters of the index, tables that do not agree, and what a process that
// was killed left behind. What only looks like damage is left alone.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "store/disk/child_process_testing.h"
#include "store/disk/disk_store.h"
#include "store/disk/failing_calls_testing.h"
#include "store/disk/slow_calls_testing.h"
#include "store/store_testing.h"

namespace kvcache::store::disk_store_repair_test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBudget = std::int64_t{4} << 20;
constexpr std::uint64_t kObjects = 24;
constexpr std::size_t kPage = 4096;
constexpr std::chrono::seconds kLong{120};

std::size_t SizeOfObject(std::uint64_t number) {
  return number % 5 == 0 ? 200 : 3000 + number * 3000;
}

std::unique_ptr<Store> Open(const std::string& directory) {
  auto store =
      OpenDiskStore({.directory = directory, .budget_bytes = kBudget, .max_wait_ms = 1000});
  EXPECT_TRUE(store.ok()) << store.status().message();
  return store.ok() ? std::move(*store) : nullptr;
}

int CountWhole(Store& store) {
  int whole = 0;
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    const auto found = ReadObject(store, TestId(i));
    if (!found.ok()) continue;
    EXPECT_EQ(*found, TestPayload(i, SizeOfObject(i)));
    ++whole;
  }
  return whole;
}

// A store's file whose bytes a test changes.
class DiskStoreRepair : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto store = Open(directory_.path());
    for (std::uint64_t i = 0; i < kObjects + 10; ++i) {
      ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, SizeOfObject(i))).ok());
    }
    for (std::uint64_t i = kObjects; i < kObjects + 10; ++i) {
      ASSERT_TRUE(store->Remove(TestId(i)).ok());
    }
    ASSERT_TRUE(ReadObject(*store, TestId(3)).ok());
  }

  std::string Bytes() const {
    std::ifstream file(directory_.file(), std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(file)), {});
  }
  void SetBytes(const std::string& bytes) const {
    std::ofstream(directory_.file(), std::ios::binary).write(bytes.data(), std::ssize(bytes));
  }

  // Replaces everything that was there by other objects, and returns how many of the old ones are left.
  static int LeftAfterChurn(Store& store) {
    for (std::uint64_t i = 0; i < 90; ++i) {
      const std::uint64_t number = 1000 + i;
      EXPECT_TRUE(store.Put(TestId(number), TestPayload(number, 60'000)).ok());
    }
    EXPECT_GT(store.List()->size(), 30U);
    int left = 0;
    for (std::uint64_t i = 0; i < kObjects; ++i) left += ReadObject(store, TestId(i)).ok() ? 1 : 0;
    return left;
  }

  const TestDirectory directory_;
};

std::uint64_t NumberAt(const std::string& bytes, std::size_t at) {
  std::uint64_t number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

// The offsets of the descriptions of all tables in the newest state (mdb.c: MDB_meta, MDB_db).
std::vector<std::size_t> Tables(const std::string& bytes) {
  constexpr std::size_t kFree = 16 + 24, kMain = kFree + 48, kRoot = 40, kTransaction = kMain + 56;
  const bool second = NumberAt(bytes, kPage + kTransaction) > NumberAt(bytes, kTransaction);
  const std::size_t meta = second ? kPage : 0;
  std::vector<std::size_t> tables = {meta + kFree, meta + kMain};
  const std::size_t root = NumberAt(bytes, meta + kMain + kRoot) * kPage;
  for (const std::string name : {"objects", "usage", "order"}) {
    tables.push_back(bytes.substr(0, root + kPage).find(name, root) + name.size());
  }
  return tables;
}

TEST_F(DiskStoreRepair, CountersOfTables) {
  const std::string whole = Bytes();
  std::mt19937 random(3);
  for (const std::size_t table : Tables(whole)) {
    for (const std::size_t counter : {8, 16, 24, 32}) {
      std::string bytes = whole;
      const std::size_t bit = random() % 63;
      const std::size_t at = table + counter + bit / 8;
      ASSERT_LT(at, bytes.size());
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit % 8));
      SetBytes(bytes);
      {
        const auto store = Open(directory_.path());
        EXPECT_NE(store->Stats()->repair.find("corrected"), std::string::npos)
            << table << " " << counter;
        EXPECT_EQ(CountWhole(*store), static_cast<int>(kObjects)) << table << " " << counter;
      }
      {
        const auto store = Open(directory_.path());
        EXPECT_EQ(store->Stats()->repair, "");
        EXPECT_EQ(LeftAfterChurn(*store), 0);
      }
      const auto stats = CollectGarbage({.directory = directory_.path(), .budget_bytes = kBudget});
      EXPECT_TRUE(stats.ok()) << stats.status().message();
      if (HasFailure()) return;
    }
  }
}

// Flips a bit in each copy of a record of an object; old pages have some.
std::string FlipUsage(std::string bytes, const ObjectId& id, std::size_t size, std::size_t field,
                      int bit) {
  const std::string name(reinterpret_cast<const char*>(&id), sizeof(id));
  int found = 0;
  for (std::size_t at = bytes.find(name); at != std::string::npos; at = bytes.find(name, at + 1)) {
    const std::size_t record = at + name.size();
    const bool is_envelope = bytes.compare(record, 8, "kvobj001") == 0;  // it has a size there, too
    if (is_envelope || NumberAt(bytes, record + 8) != size) continue;
    bytes[record + field] = static_cast<char>(bytes[record + field] ^ (1 << bit));
    ++found;
  }
  EXPECT_GT(found, 0);
  return bytes;
}

TEST_F(DiskStoreRepair, TurnsAndSizesOfObjects) {
  const std::string whole = Bytes();
  std::mt19937 random(4);
  for (int round = 0; round < 16; ++round) {
    const std::uint64_t number = random() % kObjects;
    SetBytes(FlipUsage(whole, TestId(number), SizeOfObject(number), random() % 16,
                       static_cast<int>(random() % 8)));
    const auto store = Open(directory_.path());
    EXPECT_NE(store->Stats()->repair.find("made anew"), std::string::npos);
    EXPECT_EQ(CountWhole(*store), static_cast<int>(kObjects));
    EXPECT_EQ(LeftAfterChurn(*store), 0) << "round " << round;
    if (HasFailure()) return;
  }
}

// A repair that cannot be written now is made later. Nothing is lost by it.
TEST_F(DiskStoreRepair, ARepairThatCannotBeWrittenWaits) {
  const std::string whole = Bytes();
  for (const int error : {ENOSPC, EFBIG, EDQUOT, EIO, EROFS}) {
    SetBytes(FlipUsage(whole, TestId(4), SizeOfObject(4), 0, 2));
    const bool is_filtered = WithFailingCalls(
        {{.number = SYS_pwrite64, .error = error}, {.number = SYS_pwritev, .error = error}}, [&] {
          const auto store =
              OpenDiskStore({.directory = directory_.path(), .budget_bytes = kBudget});
          if (!store.ok()) {
            EXPECT_EQ(store.status().code(), StatusCode::kIo);
            return;
          }
          EXPECT_NE((*store)->Stats()->repair.find("could not be made anew"), std::string::npos);
          EXPECT_EQ(CountWhole(**store), static_cast<int>(kObjects));
        });
    if (!is_filtered) GTEST_SKIP() << "the system has no filters of calls";
    const auto store = Open(directory_.path());
    EXPECT_NE(store->Stats()->repair.find("were made anew"), std::string::npos)
        << store->Stats()->repair;
    EXPECT_EQ(CountWhole(*store), static_cast<int>(kObjects)) << "error " << error;
    EXPECT_EQ(LeftAfterChurn(*store), 0);
    if (HasFailure()) return;
  }
}

TEST_F(DiskStoreRepair, ARepairBesideAWriterThatIsStoppedWaits) {
  SetBytes(FlipUsage(Bytes(), TestId(4), SizeOfObject(4), 0, 2));
  const int lock = open((directory_.path() + "/write-lock").c_str(), O_RDWR);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  {
    const auto store = Open(directory_.path());
    EXPECT_NE(store->Stats()->repair.find("could not be made anew"), std::string::npos);
    EXPECT_EQ(CountWhole(*store), static_cast<int>(kObjects));
  }
  close(lock);
  const auto store = Open(directory_.path());
  EXPECT_NE(store->Stats()->repair.find("were made anew"), std::string::npos);
  EXPECT_EQ(CountWhole(*store), static_cast<int>(kObjects));
}

// The order names another object: this one would never be evicted.
TEST_F(DiskStoreRepair, ObjectsThatAreInNoOrder) {
  const std::string whole = Bytes();
  std::mt19937 random(5);
  for (int round = 0; round < 8; ++round) {
    std::string bytes = whole;
    const ObjectId id = TestId(random() % kObjects);
    const std::string name(reinterpret_cast<const char*>(&id), sizeof(id));
    const std::size_t flip = random() % 64;
    for (std::size_t at = bytes.find(name); at != std::string::npos;
         at = bytes.find(name, at + 1)) {
      // A node: four bytes of sizes and flags each, a key of eight bytes, and this value.
      if (at < 16 || bytes[at - 10] != 8 || bytes[at - 16] != 64) continue;
      bytes[at + flip] = static_cast<char>(bytes[at + flip] ^ 16);
    }
    ASSERT_NE(bytes, whole);
    SetBytes(bytes);
    const auto store = Open(directory_.path());
    EXPECT_NE(store->Stats()->repair.find("made anew"), std::string::npos);
    EXPECT_EQ(CountWhole(*store), static_cast<int>(kObjects));
    EXPECT_EQ(LeftAfterChurn(*store), 0) << "round " << round;
    if (HasFailure()) return;
  }
}

TEST_F(DiskStoreRepair, SaysThatAFileWasDiscarded) {
  std::string bytes = Bytes();
  for (std::size_t at = 0; at < bytes.size(); at += 500)
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
  SetBytes(bytes);
  const auto store = Open(directory_.path());
  EXPECT_NE(store->Stats()->repair.find("the file was discarded"), std::string::npos);
}

// A sound file needs no repair, whatever was stored and removed.
TEST_F(DiskStoreRepair, NothingAfterChurn) {
  std::mt19937 random(6);
  for (int round = 0; round < 10; ++round) {
    const auto store = Open(directory_.path());
    EXPECT_EQ(store->Stats()->repair, "") << "round " << round;
    for (int i = 0; i < 150; ++i) {
      const std::uint64_t number = random() % 200;
      if (random() % 3 == 0) {
        EXPECT_TRUE(store->Remove(TestId(number)).ok());
      } else {
        const std::size_t size = random() % 4 == 0 ? random() % 100'000 : random() % 3000;
        EXPECT_TRUE(store->Put(TestId(number), TestPayload(number, size)).ok());
      }
    }
  }
}

TEST_F(DiskStoreRepair, RemovesTheCopyOfACollectionThatWasKilled) {
  const std::string copy = directory_.file() + ".new";
  for (int round = 0; round < 12; ++round) {
    const SharedWithChildren<std::atomic<int>> rounds;
    ChildProcess collector([&] {
      for (;; ++*rounds) {
        (void)CollectGarbage({.directory = directory_.path(), .budget_bytes = kBudget}).ok();
      }
      return 0;
    });
    while (*rounds == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(500 * round));
    collector.Kill();
    std::ofstream(copy, std::ios::app) << "what is left of a copy";
    const auto store = Open(directory_.path());
    EXPECT_FALSE(fs::exists(copy));
    EXPECT_EQ(CountWhole(*store), static_cast<int>(kObjects)) << "round " << round;
    EXPECT_EQ(store->Stats()->repair, "");
  }
}

TEST_F(DiskStoreRepair, FinishesAReplacementThatWasKilled) {
  fs::rename(directory_.file(), directory_.file() + ".new");
  const auto store = Open(directory_.path());
  EXPECT_EQ(CountWhole(*store), static_cast<int>(kObjects));
  EXPECT_FALSE(fs::exists(directory_.file() + ".new"));
}

TEST_F(DiskStoreRepair, LeavesTheCopyOfACollectionThatRuns) {
  const std::string copy = directory_.file() + ".new";
  const int lock = open((directory_.path() + "/lock").c_str(), O_RDWR);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  std::ofstream(copy) << "x";
  EXPECT_FALSE(OpenDiskStore({.directory = directory_.path(), .max_wait_ms = 20}).ok());
  EXPECT_TRUE(fs::exists(copy));
  close(lock);
  EXPECT_TRUE(OpenDiskStore({.directory = directory_.path(), .max_wait_ms = 20}).ok());
  EXPECT_FALSE(fs::exists(copy));
}

// While one process reads the meta pages, another one commits twice: they have another state then.
TEST_F(DiskStoreRepair, CommitsOfAnotherProcessAreNoDamage) {
  const SharedWithChildren<std::atomic<int>> asked, done;
  const SharedWithChildren<std::atomic<bool>> is_open;
  ChildProcess writer([&] {
    const auto store = Open(directory_.path());
    if (store == nullptr) return 1;
    *is_open = true;
    for (;;) {
      while (*done == *asked) std::this_thread::yield();
      for (int i = 0; i < 2; ++i) (void)store->Put(TestId(500), TestPayload(500, 1000)).ok();
      ++*done;
    }
    return 0;
  });
  const auto is_gone = [&] { return writer.WaitFor(std::chrono::seconds(0)) != -1; };
  while (!*is_open && !is_gone()) std::this_thread::yield();
  ASSERT_TRUE(*is_open);
  int reads = 0;
  std::unique_ptr<Store> store;
  const bool is_watched = WithSlowCalls(
      SYS_pread64,
      [&] {
        if (++reads > 12) return;
        ++*asked;
        while (*done < *asked && !is_gone()) std::this_thread::yield();
      },
      [&] { store = Open(directory_.path()); });
  if (!is_watched) GTEST_SKIP() << "the system does not tell of calls";
  ASSERT_NE(store, nullptr);
  EXPECT_GT(reads, 4);
  EXPECT_EQ(store->Stats()->repair, "");
  EXPECT_EQ(CountWhole(*store), static_cast<int>(kObjects));
}

// The same without help from the system: processes open a store that others write to.
TEST_F(DiskStoreRepair, WritersBesideAnOpeningAreNoDamage) {
  const int rounds = std::getenv("KVCACHE_SLOW_TESTS") != nullptr ? 3000 : 200;
  ChildProcess writer([&] {
    const auto store = Open(directory_.path());
    for (std::uint64_t i = 0;; ++i) {
      (void)store->Put(TestId(500 + i % 3), TestPayload(500, 100 + i % 3000)).ok();
    }
    return 0;
  });
  for (int round = 0; round < rounds; ++round) {
    const auto store = Open(directory_.path());
    ASSERT_EQ(store->Stats()->repair, "") << "round " << round;
    ASSERT_EQ(CountWhole(*store), static_cast<int>(kObjects)) << "round " << round;
  }
}

}  // namespace
}  // namespace kvcache::store::disk_store_repair_test
