// What only the store in memory has: a budget that changes, and memory that is counted as long as it is held.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "store/store_testing.h"

namespace kvcache::store::memory_store_test {
namespace {

class MemoryStoreTest : public ::testing::Test {
 protected:
  void Put(std::uint64_t number, std::size_t size) {
    const Status status = store_->Put(TestId(number), TestPayload(number, size));
    ASSERT_TRUE(status.ok()) << status.message();
  }
  std::vector<bool> Has(std::uint64_t count) {
    std::vector<bool> has;
    for (std::uint64_t i = 0; i < count; ++i) has.push_back(*store_->Contains(TestId(i)));
    return has;
  }

  const std::unique_ptr<MemoryStore> store_ = std::move(*MakeMemoryStore(std::int64_t{1} << 20));
};

TEST_F(MemoryStoreTest, RefusesNoBudget) {
  EXPECT_EQ(MakeMemoryStore(0).status().message(),
            "the store's budget is 0 bytes; must be at least 1");
}

TEST_F(MemoryStoreTest, ASmallerBudgetEvictsWhatWasUsedLongestAgo) {
  for (std::uint64_t i = 0; i < 4; ++i) Put(i, 100'000);
  const std::int64_t all = store_->held_bytes();
  EXPECT_GE(all, 400'000);
  EXPECT_LE(all, 420'000);
  const ObjectId first[] = {TestId(0)};
  store_->Touch(first);
  EXPECT_LE(store_->SetBudget(250'000), 250'000);
  EXPECT_EQ(Has(4), (std::vector{true, false, false, true}));
  EXPECT_EQ(store_->Put(TestId(9), TestPayload(9, 260'000)).code(), StatusCode::kCacheFull);
  EXPECT_FALSE(store_->HasRoomFor(250'000));
  EXPECT_TRUE(store_->HasRoomFor(200'000));
  EXPECT_EQ(store_->SetBudget(0), 0);
  EXPECT_EQ(store_->held_bytes(), 0);
  EXPECT_EQ(store_->Put(TestId(9), {}).code(), StatusCode::kCacheFull);
  EXPECT_EQ(store_->SetBudget(1 << 20), 0);
  Put(9, 100'000);
  EXPECT_EQ(*ReadObject(*store_, TestId(9)), TestPayload(9, 100'000));
}

TEST_F(MemoryStoreTest, WhatIsReadIsCountedUntilTheEnd) {
  Put(1, 300'000);
  const std::int64_t held = store_->held_bytes();
  EXPECT_TRUE(store_
                  ->Get(TestId(1),
                        [&](std::span<const std::byte> payload) {
                          std::thread([&] { EXPECT_EQ(store_->SetBudget(0), held); }).join();
                          EXPECT_FALSE(*store_->Contains(TestId(1)));
                          const auto expected = TestPayload(1, 300'000);
                          EXPECT_TRUE(std::equal(payload.begin(), payload.end(), expected.begin()));
                          return Status::Ok();
                        })
                  .ok());
  EXPECT_EQ(store_->held_bytes(), 0);
}

TEST_F(MemoryStoreTest, AFillerWritesWhatIsKept) {
  const auto payload = TestPayload(3, 70'000);
  ASSERT_TRUE(store_
                  ->PutFilled(TestId(3), payload.size(),
                              [&](std::span<std::byte> bytes) {
                                EXPECT_GE(store_->held_bytes(), 70'000);
                                std::copy(payload.begin(), payload.end(), bytes.begin());
                                return Status::Ok();
                              })
                  .ok());
  EXPECT_EQ(*ReadObject(*store_, TestId(3)), payload);
  const std::int64_t held = store_->held_bytes();
  const Status status = store_->PutFilled(TestId(4), 1000, [](std::span<std::byte>) {
    return Status(StatusCode::kIo, "the device is gone");
  });
  EXPECT_EQ(status.message(), "the device is gone");
  EXPECT_FALSE(*store_->Contains(TestId(4)));
  EXPECT_EQ(store_->held_bytes(), held);
  // The budget shrinks while the payload is written.
  EXPECT_EQ(store_
                ->PutFilled(TestId(5), 1000,
                            [&](std::span<std::byte>) {
                              store_->SetBudget(0);
                              return Status::Ok();
                            })
                .code(),
            StatusCode::kCacheFull);
  EXPECT_EQ(store_->held_bytes(), 0);
}

// What cannot have room beside the objects in use evicts nothing.
TEST_F(MemoryStoreTest, APutWithoutRoomEvictsNothing) {
  store_->SetBudget(300'000);
  ASSERT_TRUE(store_->Put(TestId(1), TestPayload(1, 200'000)).ok());
  ASSERT_TRUE(store_->Put(TestId(2), TestPayload(2, 20'000)).ok());
  const Status read = store_->Get(TestId(1), [&](std::span<const std::byte>) {
    EXPECT_EQ(store_->Put(TestId(3), TestPayload(3, 150'000)).code(), StatusCode::kCacheFull);
    EXPECT_TRUE(*store_->Contains(TestId(1)));
    EXPECT_TRUE(*store_->Contains(TestId(2)));
    return Status::Ok();
  });
  EXPECT_TRUE(read.ok());
  EXPECT_TRUE(store_->Put(TestId(3), TestPayload(3, 150'000)).ok());
  EXPECT_FALSE(*store_->Contains(TestId(1)));
}

// A slow hook holds up nobody who reads.
TEST_F(MemoryStoreTest, ReadersDoNotWaitForAnEviction) {
  store_->SetBudget(300'000);
  ASSERT_TRUE(store_->Put(TestId(1), TestPayload(1, 200'000)).ok());
  ASSERT_TRUE(store_->Put(TestId(2), TestPayload(2, 20'000)).ok());
  std::promise<void> evicting, continues;
  std::vector<ObjectId> evicted;
  store_->SetEvictionHook([&](const ObjectId& id, std::span<const std::byte> payload) {
    evicted.push_back(id);
    EXPECT_EQ(payload.size(), 200'000u);
    evicting.set_value();
    continues.get_future().wait();
  });
  std::thread writer([&] { EXPECT_TRUE(store_->Put(TestId(3), TestPayload(3, 150'000)).ok()); });
  evicting.get_future().wait();
  EXPECT_EQ(*ReadObject(*store_, TestId(2)), TestPayload(2, 20'000));
  EXPECT_FALSE(*store_->Contains(TestId(1)));
  // The bytes of the first object count as room for others, who wait for them, as a removal does for the hook.
  std::atomic<bool> has_put = false;
  std::atomic<bool> has_removed = false;
  std::thread second([&] {
    EXPECT_TRUE(store_->Put(TestId(4), TestPayload(4, 30'000)).ok());
    has_put = true;
  });
  std::thread remover([&] {
    EXPECT_TRUE(store_->Remove(TestId(1)).ok());
    has_removed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has_removed);
  continues.set_value();
  for (std::thread* thread : {&writer, &second, &remover}) thread->join();
  store_->SetEvictionHook(nullptr);
  EXPECT_EQ(evicted, std::vector<ObjectId>{TestId(1)});
  EXPECT_TRUE(has_put && has_removed);
  for (const std::uint64_t number : {2, 3, 4}) EXPECT_TRUE(*store_->Contains(TestId(number)));
}

// Readers and writers on other threads: nothing is ever wrong, and at the end all is counted.
TEST_F(MemoryStoreTest, ManyThreadsAndAChangingBudget) {
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 300; ++i) {
        const std::uint64_t number = random() % 20;
        const std::size_t size = number * 7'000;
        if (random() % 2 == 0) {
          (void)store_->Put(TestId(number), TestPayload(number, size)).ok();
        } else if (const auto read = ReadObject(*store_, TestId(number)); read.ok()) {
          EXPECT_EQ(*read, TestPayload(number, size));
        }
      }
    });
  }
  std::mt19937 random(9);
  for (int i = 0; i < 300; ++i) store_->SetBudget(random() % 1'000'000);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(store_->SetBudget(100'000), 100'000);
  EXPECT_EQ(store_->Stats()->damaged, 0);
  store_->SetBudget(0);
  EXPECT_EQ(store_->held_bytes(), 0);
}

}  // namespace
}  // namespace kvcache::store::memory_store_test
