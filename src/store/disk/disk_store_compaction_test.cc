// A file is copied while other processes store: what they were told is stored is in the copy, and a file that was
// replaced meanwhile is not replaced by an older one.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "store/disk/child_process_testing.h"
#include "store/disk/disk_store.h"
#include "store/disk/slow_calls_testing.h"
#include "store/store_testing.h"

namespace kvcache::store::disk_store_compaction_test {
namespace {

constexpr std::int64_t kBudget = std::int64_t{16} << 20;
constexpr std::uint64_t kObjects = 20;

DiskStoreOptions OptionsOf(const TestDirectory& directory) {
  return {.directory = directory.path(), .budget_bytes = kBudget, .max_wait_ms = 200};
}

// Two calls at a time are beside somebody else's.
const int kStep = std::getenv("KVCACHE_SLOW_TESTS") != nullptr ? 1 : 2;

std::vector<std::byte> PayloadOf(std::uint64_t number) {
  return TestPayload(number, 10'000);
}

void Fill(const TestDirectory& directory) {
  const auto store = std::move(*OpenDiskStore(OptionsOf(directory)));
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    ASSERT_TRUE(store->Put(TestId(i), PayloadOf(i)).ok());
  }
}

// A process that stores an object when it is asked, and says whether it was told that it is stored.
class Writer {
 public:
  Writer(const TestDirectory& directory, bool collects)
      : child_([&directory, collects, this] {
          const auto store = std::move(*OpenDiskStore(OptionsOf(directory)));
          for (;;) {
            while (*done_ == *asked_) std::this_thread::yield();
            const auto number = static_cast<std::uint64_t>(100 + *done_);
            if (collects) (void)CollectGarbage(OptionsOf(directory)).ok();
            if (store->Put(TestId(number), PayloadOf(number)).ok()) *stored_ |= 1U << *done_;
            ++*done_;
          }
          return 0;
        }) {}
  // Asks, and returns when it was done. At most 31 times.
  void Store() {
    const int number = ++*asked_;
    while (*done_ < number && child_.WaitFor(std::chrono::seconds(0)) == -1) {
      std::this_thread::yield();
    }
  }
  int asked() const { return *asked_; }
  bool HasStored(int number) const { return (*stored_ >> number & 1U) != 0; }

 private:
  const SharedWithChildren<std::atomic<int>> asked_, done_;
  const SharedWithChildren<std::atomic<unsigned>> stored_;
  ChildProcess child_;
};

// Collects garbage, and another process stores before the calls number `first` and after of a kind.
void CollectBeside(long call, int first, bool other_collects) {
  const TestDirectory directory;
  Fill(directory);
  Writer writer(directory, other_collects);
  writer.Store();
  ASSERT_TRUE(writer.HasStored(0));
  int calls = 0;
  const bool is_watched = WithSlowCalls(
      call,
      [&] {
        ++calls;
        if (calls >= first && calls < first + 2) writer.Store();
      },
      [&] { (void)CollectGarbage(OptionsOf(directory)).ok(); });
  if (!is_watched) GTEST_SKIP() << "the system does not tell of calls";
  const auto store = std::move(*OpenDiskStore(OptionsOf(directory)));
  EXPECT_EQ(store->Stats()->repair, "");
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    EXPECT_TRUE(ReadObject(*store, TestId(i)).ok()) << "object " << i << ", call " << first;
  }
  for (int i = 0; i < writer.asked(); ++i) {
    if (!writer.HasStored(i)) continue;
    EXPECT_TRUE(ReadObject(*store, TestId(static_cast<std::uint64_t>(100 + i))).ok())
        << "stored before call " << first;
  }
  EXPECT_FALSE(std::filesystem::exists(directory.file() + ".new"));
}

// Each object is read with two calls, once to verify it and once to copy it.
TEST(DiskStoreCompaction, HasWhatOthersStoreWhileItCopies) {
  for (int first = 1; first < 160; first += 4 * kStep) {
    CollectBeside(SYS_pread64, first, false);
    if (::testing::Test::HasFailure() || ::testing::Test::IsSkipped()) return;
  }
}

TEST(DiskStoreCompaction, HasWhatOthersStoreBesideItsLocks) {
  for (int first = 1; first < 20; first += kStep) {
    CollectBeside(SYS_flock, first, false);
    if (::testing::Test::HasFailure() || ::testing::Test::IsSkipped()) return;
  }
}

TEST(DiskStoreCompaction, KeepsTheFileOfAnotherCollection) {
  for (int first = 1; first < 20; first += kStep) {
    CollectBeside(SYS_flock, first, true);
    if (::testing::Test::HasFailure() || ::testing::Test::IsSkipped()) return;
  }
}

}  // namespace
}  // namespace kvcache::store::disk_store_compaction_test
