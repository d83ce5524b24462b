// Processes that may not map as much as the budget: the map begins small, and grows with the file.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>

#include "store/disk/child_process_testing.h"
#include "store/disk/disk_store.h"
#include "store/store_testing.h"

namespace kvcache::store::disk_store_map_test {
namespace {

constexpr std::int64_t kBudget = std::int64_t{10} << 30;  // the default
constexpr std::size_t kObject = std::size_t{1} << 20;
constexpr std::chrono::seconds kLong{120};

// Lets this process map so much more than it has mapped. Returns false where it cannot, as under sanitizers.
bool LimitAddressSpace(std::int64_t more) {
  std::ifstream statm("/proc/self/statm");
  std::int64_t pages = 0;
  statm >> pages;
  const auto max = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + more);
  const rlimit limit{max, max};
  return max < rlim_t{1} << 40 && setrlimit(RLIMIT_AS, &limit) == 0;
}

constexpr int kSkipped = 77;

bool HasAll(Store& store, std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t i = from; i < to; ++i) {
    const auto found = ReadObject(store, TestId(i));
    if (!found.ok() || *found != TestPayload(i, kObject)) return false;
  }
  return true;
}

bool PutAll(Store& store, std::uint64_t from, std::uint64_t to) {
  for (std::uint64_t i = from; i < to; ++i) {
    if (!store.Put(TestId(i), TestPayload(i, kObject)).ok()) return false;
  }
  return true;
}

TEST(DiskStoreMapTest, GrowsWithTheFile) {
  const TestDirectory directory;
  ChildProcess child([&] {
    if (!LimitAddressSpace(std::int64_t{400} << 20)) return kSkipped;
    auto store = OpenDiskStore({.directory = directory.path(), .budget_bytes = kBudget});
    if (!store.ok()) return 1;
    if (!PutAll(**store, 0, 120)) return 2;  // the first map has 64 MiB
    if (!HasAll(**store, 0, 120)) return 3;
    return (*store)->Stats()->evicted == 0 ? 0 : 4;
  });
  const int status = child.WaitFor(kLong);
  if (status == kSkipped) GTEST_SKIP() << "the address space has no limit here";
  EXPECT_EQ(status, 0);
}

// What does not fit into the map goes; the store does not take all of the address space.
TEST(DiskStoreMapTest, EvictsWhereItCannotGrow) {
  const TestDirectory directory;
  ChildProcess child([&] {
    if (!LimitAddressSpace(std::int64_t{96} << 20)) return kSkipped;
    auto store = OpenDiskStore({.directory = directory.path(), .budget_bytes = kBudget});
    if (!store.ok()) return 1;
    if (!PutAll(**store, 0, 120)) return 2;
    if (!HasAll(**store, 115, 120)) return 3;
    const std::unique_ptr<std::byte[]> others(new (std::nothrow) std::byte[16 << 20]);
    return others != nullptr && (*store)->Stats()->evicted > 0 ? 0 : 4;
  });
  const int status = child.WaitFor(kLong);
  if (status == kSkipped) GTEST_SKIP() << "the address space has no limit here";
  EXPECT_EQ(status, 0);
}

TEST(DiskStoreMapTest, FollowsAnotherProcessThatHasNoLimit) {
  const TestDirectory directory;
  const SharedWithChildren<std::atomic<int>> step;
  ChildProcess child([&] {
    if (!LimitAddressSpace(std::int64_t{600} << 20)) return kSkipped;
    auto store = OpenDiskStore({.directory = directory.path(), .budget_bytes = kBudget});
    if (!store.ok() || !PutAll(**store, 0, 5)) return 1;
    *step = 1;
    while (*step != 2) std::this_thread::yield();
    if (!HasAll(**store, 0, 100)) return 2;
    return PutAll(**store, 100, 110) && HasAll(**store, 0, 110) ? 0 : 3;
  });
  while (*step == 0 && child.WaitFor(std::chrono::seconds(0)) == -1) std::this_thread::yield();
  {
    auto store = OpenDiskStore({.directory = directory.path(), .budget_bytes = kBudget});
    ASSERT_TRUE(store.ok());
    ASSERT_TRUE(PutAll(**store, 5, 100));
  }
  *step = 2;
  const int status = child.WaitFor(kLong);
  if (status == kSkipped) GTEST_SKIP() << "the address space has no limit here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace kvcache::store::disk_store_map_test
