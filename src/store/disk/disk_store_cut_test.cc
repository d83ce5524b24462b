// Somebody cuts files of a store that is open. What is read then is a miss with a reason, nothing is wrong, and the
// store works again.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "platform/mapped_file_faults.h"
#include "store/disk/child_process_testing.h"
#include "store/disk/disk_store.h"
#include "store/store_testing.h"

namespace kvcache::store::disk_store_cut_test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kBudget = std::int64_t{16} << 20;
constexpr std::uint64_t kObjects = 40;
constexpr std::chrono::seconds kLong{120};

std::size_t SizeOfObject(std::uint64_t number) {
  return number % 5 == 0 ? 200 : 2000 + number * 7000;
}

std::unique_ptr<Store> OpenFull(const std::string& directory) {
  auto store =
      OpenDiskStore({.directory = directory, .budget_bytes = kBudget, .max_wait_ms = 1000});
  if (!store.ok()) return nullptr;
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    if (!(*store)->Put(TestId(i), TestPayload(i, SizeOfObject(i))).ok()) return nullptr;
  }
  return std::move(*store);
}

// Returns the objects that are there, or -1 after a wrong one.
int CountHits(Store& store) {
  int hits = 0;
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    const auto found = ReadObject(store, TestId(i));
    if (found.ok() && *found != TestPayload(i, SizeOfObject(i))) return -1;
    if (!found.ok() && found.status().message().empty()) return -1;
    hits += found.ok() ? 1 : 0;
  }
  return hits;
}

// Returns whether the store takes and gives an object: after one error, or after the pause that follows when the file
// was cut again while it was opened.
bool StoresAgain(Store& store) {
  const auto payload = TestPayload(77, 50'000);
  Status status = store.Put(TestId(77), payload);
  for (int i = 0; i < 100 && !status.ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    status = store.Put(TestId(77), payload);
  }
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  const auto found = ReadObject(store, TestId(77));
  return found.ok() && *found == payload;
}

// Opens a store, cuts a file, and does something first.
int UseCut(const std::string& name, double share, const std::function<void(Store&)>& first) {
  ReportCutFiles();
  const TestDirectory directory;
  const auto store = OpenFull(directory.path());
  if (store == nullptr) return 2;
  const std::string path = directory.path() + name;
  fs::resize_file(path,
                  static_cast<std::uintmax_t>(static_cast<double>(fs::file_size(path)) * share));
  first(*store);
  if (CountHits(*store) < 0) return 3;
  if (!StoresAgain(*store)) return 4;
  return CountHits(*store) < 0 ? 5 : 0;
}

struct CutCase {
  std::string name;
  std::function<void(Store&)> first;
};

class DiskStoreCut : public ::testing::TestWithParam<CutCase> {};

TEST_P(DiskStoreCut, IsAMissAndWorksAgain) {
  for (const char* file : {"/objects.mdb", "/objects.mdb-lock"}) {
    for (const double share : {0.0, 0.001, 0.2, 0.5, 0.9, 0.999}) {
      ChildProcess child([&] { return UseCut(file, share, GetParam().first); });
      EXPECT_EQ(child.WaitFor(kLong), 0) << file << " " << share;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Calls, DiskStoreCut,
    ::testing::Values(
        CutCase{"Get", [](Store& store) { (void)ReadObject(store, TestId(39)).ok(); }},
        CutCase{"List", [](Store& store) { (void)store.List().ok(); }},
        CutCase{"Put", [](Store& store) { (void)store.Put(TestId(1), TestPayload(1, 9000)).ok(); }},
        CutCase{"Remove", [](Store& store) { (void)store.Remove(TestId(3)).ok(); }},
        CutCase{"Contains", [](Store& store) { (void)store.Contains(TestId(3)).ok(); }}),
    [](const auto& test) { return test.param.name; });

// The file is cut at any moment, while threads read and write.
int UseWhileCut(unsigned seed) {
  ReportCutFiles();
  const TestDirectory directory;
  const auto store = OpenFull(directory.path());
  if (store == nullptr) return 2;
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = thread; !stop; ++i) {
        const std::uint64_t number = i % kObjects;
        const auto payload = TestPayload(number, SizeOfObject(number));
        if (i % 3 == 0) (void)store->Put(TestId(number), payload).ok();
        if (i % 7 == 0) (void)store->List().ok();
        const auto found = ReadObject(*store, TestId(number));
        wrong += found.ok() && *found != payload;
      }
    });
  }
  std::mt19937 random(seed);
  for (int cut = 0; cut < 5; ++cut) {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    std::error_code gone;
    const auto size = fs::file_size(directory.file(), gone);
    if (!gone) fs::resize_file(directory.file(), random() % (size + 1), gone);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (wrong != 0) return 3;
  return StoresAgain(*store) ? 0 : 4;
}

TEST(DiskStoreCutTest, AtAnyMoment) {
  const unsigned rounds = std::getenv("KVCACHE_SLOW_TESTS") != nullptr ? 300 : 15;
  for (unsigned round = 0; round < rounds; ++round) {
    ChildProcess child([&] { return UseWhileCut(round); });
    ASSERT_EQ(child.WaitFor(kLong), 0) << "round " << round;
  }
}

// Another process cuts the file and writes to it: its size says nothing.
TEST(DiskStoreCutTest, ByAnotherProcessThatContinuesStoring) {
  for (const double share : {0.1, 0.4, 0.7}) {
    const TestDirectory directory;
    ChildProcess child([&] {
      ReportCutFiles();
      const auto store = OpenFull(directory.path());
      if (store == nullptr) return 2;
      ChildProcess cutter([&] {
        auto other = OpenDiskStore({.directory = directory.path(), .budget_bytes = kBudget});
        if (!other.ok()) return 2;
        const auto size = static_cast<double>(fs::file_size(directory.file()));
        fs::resize_file(directory.file(), static_cast<std::uintmax_t>(size * share));
        for (std::uint64_t i = 50; i < 90; ++i) {
          (void)(*other)->Put(TestId(i), TestPayload(i, 90'000)).ok();
        }
        return StoresAgain(**other) ? 0 : 4;
      });
      if (cutter.WaitFor(kLong) != 0) return 6;
      if (CountHits(*store) < 0) return 3;
      return StoresAgain(*store) ? 0 : 4;
    });
    EXPECT_EQ(child.WaitFor(kLong), 0) << share;
  }
}

}  // namespace
}  // namespace kvcache::store::disk_store_cut_test
