// What every store promises, for each of them.
#include "kvcache/store.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>

#include "platform/wall_clock.h"
#include "store/store_testing.h"

namespace kvcache::store::store_test {
namespace {

enum class Kind { kMemory, kDisk };

class StoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Store> Open(std::int64_t budget = std::int64_t{8} << 20) {
    if (GetParam() == Kind::kMemory) return std::move(*MakeMemoryStore(budget));
    auto store = OpenDiskStore({.directory = directory_.path(), .budget_bytes = budget});
    EXPECT_TRUE(store.ok()) << store.status().message();
    return std::move(store).value();
  }

  TestDirectory directory_;
};

TEST_P(StoreTest, KeepsWhatWasPut) {
  const auto store = Open();
  EXPECT_EQ(ReadObject(*store, TestId(1)).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(*store->Contains(TestId(1)));
  for (const std::size_t size : {0, 1, 1000, 4096, 100000}) {
    const auto payload = TestPayload(1, size);
    ASSERT_TRUE(store->Put(TestId(1), payload).ok());
    EXPECT_EQ(*ReadObject(*store, TestId(1)), payload);
  }
  EXPECT_TRUE(*store->Contains(TestId(1)));
  EXPECT_EQ(store->Stats()->objects, 1);
  EXPECT_EQ(store->Stats()->payload_bytes, 100000);
  EXPECT_GE(store->Usage()->held_bytes, 100000);
  EXPECT_EQ(store->Usage()->held_bytes, store->Stats()->held_bytes);
  EXPECT_EQ(store->Usage()->budget_bytes, store->Stats()->budget_bytes);
  ASSERT_TRUE(store->Remove(TestId(1)).ok());
  ASSERT_TRUE(store->Remove(TestId(1)).ok());
  EXPECT_FALSE(*store->Contains(TestId(1)));
}

TEST_P(StoreTest, ReadsSeveralInOrder) {
  const auto store = Open();
  std::vector<ObjectId> ids;
  const auto size = [](std::size_t i) { return i % 3 == 0 ? std::size_t{700'000} + i : 10 * i; };
  for (std::size_t i = 0; i < 8; ++i) {
    ids.push_back(TestId(i));
    ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, size(i))).ok());
  }
  std::size_t next = 0;
  const auto read = [&](std::size_t index, std::span<const std::byte> payload, StoreTier tier) {
    EXPECT_EQ(index, next++);
    EXPECT_EQ(tier, store->tier());
    const auto expected = TestPayload(index, size(index));
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), expected.begin(), expected.end()));
    return index == 6 ? Status(StatusCode::kCancelled, "enough") : Status::Ok();
  };
  EXPECT_EQ(store->GetEach(ids, read).message(), "enough");
  EXPECT_EQ(next, 7U);
  ASSERT_TRUE(store->Remove(TestId(3)).ok());
  next = 0;
  EXPECT_EQ(store->GetEach(ids, read).code(), StatusCode::kNotFound);
  EXPECT_EQ(next, 3U);
  EXPECT_TRUE(store->GetEach({}, read).ok());
  EXPECT_THROW((void)store->GetEach(ids,
                                    [](std::size_t, std::span<const std::byte>,
                                       StoreTier) -> Status { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_EQ(*ReadObject(*store, TestId(7)), TestPayload(7, size(7)));
}

TEST_P(StoreTest, SeparatesFingerprints) {
  const auto store = Open();
  ASSERT_TRUE(store->Put(TestId(1, 1), TestPayload(1, 10)).ok());
  EXPECT_EQ(ReadObject(*store, TestId(1, 2)).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(store->Put(TestId(1, 2), TestPayload(2, 10)).ok());
  EXPECT_EQ(*ReadObject(*store, TestId(1, 1)), TestPayload(1, 10));
}

TEST_P(StoreTest, PassesTheReadersErrorOn) {
  const auto store = Open();
  ASSERT_TRUE(store->Put(TestId(1), TestPayload(1, 10)).ok());
  const Status status = store->Get(TestId(1), [](std::span<const std::byte>) {
    return Status(StatusCode::kInvalidArgument, "not mine");
  });
  EXPECT_EQ(status.message(), "not mine");
  EXPECT_TRUE(*store->Contains(TestId(1)));
}

TEST_P(StoreTest, SurvivesAReaderThatThrows) {
  const auto store = Open();
  ASSERT_TRUE(store->Put(TestId(1), TestPayload(1, 10000)).ok());
  for (int i = 0; i < 1000; ++i) {  // more than there may be readers at once
    EXPECT_THROW((void)store
                     ->Get(TestId(1),
                           [](std::span<const std::byte>) -> Status {
                             throw std::runtime_error("no memory");
                           })
                     .ok(),
                 std::runtime_error);
  }
  EXPECT_EQ(*ReadObject(*store, TestId(1)), TestPayload(1, 10000));
}

TEST_P(StoreTest, ListsTheLeastRecentlyUsedFirst) {
  const auto store = Open();
  for (std::uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, 9)).ok());
  (void)ReadObject(*store, TestId(1));
  const ObjectId used[] = {TestId(3), TestId(0)};
  store->Touch(used);
  const auto all = store->List();
  ASSERT_TRUE(all.ok());
  std::vector<ObjectId> ids;
  for (const StoredObject& object : *all) {
    ids.push_back(object.id);
    EXPECT_EQ(object.payload_bytes, 9);
    EXPECT_GT(object.last_used_s, 1600000000);
  }
  EXPECT_EQ(ids, (std::vector{TestId(2), TestId(4), TestId(1), TestId(3), TestId(0)}));
}

// The order of use is a number of its own. The clock's jumps show in the times that people see, and
// nowhere else.
TEST_P(StoreTest, AClockThatJumpsChangesNoOrder) {
  static std::int64_t calls;
  calls = 0;
  constexpr std::int64_t kDayNs = std::int64_t{86'400} * 1'000'000'000;
  const WallClockForTests jumps([]() -> std::int64_t {
    const std::int64_t days = calls++ % 2 == 0 ? 40'000 - calls : calls;
    return days * kDayNs;
  });
  const auto store = Open(std::int64_t{1} << 20);
  constexpr std::uint64_t kObjects = 40;
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, 60'000)).ok());
    if (i == 0) continue;
    ASSERT_TRUE(ReadObject(*store, TestId(0)).ok()) << i;
  }
  const auto all = store->List();
  ASSERT_TRUE(all.ok());
  ASSERT_GT(all->size(), 8U);
  // The newest ones are there, in order, and then the one that was always used.
  for (std::size_t i = 0; i + 1 < all->size(); ++i) {
    EXPECT_EQ((*all)[i].id, TestId(kObjects - all->size() + 1 + i)) << i;
  }
  EXPECT_EQ(all->back().id, TestId(0));
}

// Objects of all sizes, against a map: what is there is right, and the budget holds at every moment.
TEST_P(StoreTest, HoldsItsBudget) {
  constexpr std::int64_t kBudget = std::int64_t{4} << 20;
  const auto store = Open(kBudget);
  std::mt19937 random(3);
  std::map<std::uint64_t, std::size_t> sizes;
  int hits = 0;
  for (int i = 0; i < 600; ++i) {
    const std::uint64_t number = random() % 100;
    const std::size_t size = random() % 5 == 0 ? random() % 600000 : random() % 30000;
    const Status status = store->Put(TestId(number), TestPayload(number, size));
    ASSERT_TRUE(status.ok()) << i << ": " << status.message();
    sizes[number] = size;
    EXPECT_TRUE(*store->Contains(TestId(number)));
    const std::uint64_t other = random() % 100;
    const auto found = ReadObject(*store, TestId(other));
    if (found.ok()) {
      ++hits;
      ASSERT_EQ(*found, TestPayload(other, sizes.at(other)));
    } else {
      EXPECT_EQ(found.status().code(), StatusCode::kNotFound);
    }
    EXPECT_LE(store->Stats()->held_bytes, kBudget);
  }
  EXPECT_GT(hits, 100);
  EXPECT_GT(store->Stats()->evicted, 0);
  EXPECT_EQ(store->Stats()->damaged, 0);
}

TEST_P(StoreTest, UsesMostOfItsBudget) {
  constexpr std::int64_t kBudget = std::int64_t{16} << 20;
  const auto store = Open(kBudget);
  for (std::uint64_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(store->Put(TestId(i), TestPayload(i, 256 << 10)).ok()) << i;
  }
  EXPECT_GT(store->Stats()->payload_bytes, kBudget * 3 / 4);
}

TEST_P(StoreTest, RefusesWhatIsLargerThanItsBudget) {
  const auto store = Open(std::int64_t{1} << 20);
  ASSERT_TRUE(store->Put(TestId(1), TestPayload(1, 1000)).ok());
  const Status status = store->Put(TestId(2), TestPayload(2, 2 << 20));
  EXPECT_EQ(status.code(), StatusCode::kCacheFull) << status.message();
  EXPECT_EQ(*ReadObject(*store, TestId(1)), TestPayload(1, 1000));
}

TEST_P(StoreTest, ServesThreads) {
  const auto store = Open(std::int64_t{2} << 20);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 150; ++i) {
        const std::uint64_t number = random() % 40;
        const auto payload = TestPayload(number, 20000 + number * 500);
        if (random() % 2 == 0) {
          if (!store->Put(TestId(number), payload).ok()) ++wrong;
        } else if (const auto found = ReadObject(*store, TestId(number)); found.ok()) {
          if (*found != payload) ++wrong;
        } else if (found.status().code() != StatusCode::kNotFound) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(store->Stats()->held_bytes, std::int64_t{2} << 20);
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreTest, ::testing::Values(Kind::kMemory, Kind::kDisk),
                         [](const auto& test) {
                           return test.param == Kind::kMemory ? "Memory" : "Disk";
                         });

}  // namespace
}  // namespace kvcache::store::store_test
