// Several stores as one.
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <thread>

#include "store/store_testing.h"

namespace kvcache::store::tiered_store_test {
namespace {

using Fault = FaultyStore::Fault;

class TieredStoreTest : public ::testing::Test {
 protected:
  const std::shared_ptr<Store> memory_ = std::move(*MakeMemoryStore());
  TestDirectory directory_;
  const std::shared_ptr<Store> disk_ = std::move(*OpenDiskStore({.directory = directory_.path()}));
  const std::shared_ptr<FaultyStore> first_ =
      std::make_shared<FaultyStore>(memory_, Fault::kErrors);
  const std::unique_ptr<Store> both_ = std::move(*MakeTieredStore({first_, disk_}));
};

TEST_F(TieredStoreTest, TakesTheFirstThatHasIt) {
  ASSERT_TRUE(both_->Put(TestId(1), TestPayload(1, 100)).ok());
  EXPECT_TRUE(*memory_->Contains(TestId(1)));
  EXPECT_TRUE(*disk_->Contains(TestId(1)));
  ASSERT_TRUE(disk_->Put(TestId(2), TestPayload(2, 100)).ok());
  ASSERT_TRUE(disk_->Put(TestId(3), TestPayload(3, 100)).ok());
  ASSERT_TRUE(memory_->Put(TestId(4), TestPayload(4, 100)).ok());
  std::vector<StoreTier> tiers;
  const ObjectId ids[] = {TestId(1), TestId(2), TestId(3), TestId(4), TestId(5)};
  const Status status = both_->GetEach(
      ids, [&](std::size_t index, std::span<const std::byte> payload, StoreTier tier) {
        EXPECT_EQ(index, tiers.size());
        tiers.push_back(tier);
        const auto expected = TestPayload(index + 1, 100);
        EXPECT_TRUE(std::equal(payload.begin(), payload.end(), expected.begin(), expected.end()));
        return Status::Ok();
      });
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(tiers, (std::vector{StoreTier::kMemory, StoreTier::kDisk, StoreTier::kDisk,
                                StoreTier::kMemory}));
  ASSERT_TRUE(both_->Remove(TestId(1)).ok());
  EXPECT_FALSE(*both_->Contains(TestId(1)));
}

TEST_F(TieredStoreTest, OneStoreThatFailsDoesNotKeepTheOthers) {
  ASSERT_TRUE(disk_->Put(TestId(1), TestPayload(1, 100)).ok());
  first_->is_broken = true;
  EXPECT_EQ(*ReadObject(*both_, TestId(1)), TestPayload(1, 100));
  EXPECT_TRUE(*both_->Contains(TestId(1)));
  EXPECT_EQ(both_->Put(TestId(2), TestPayload(2, 100)).message(), "the store is away");
  EXPECT_EQ(*ReadObject(*disk_, TestId(2)), TestPayload(2, 100));
  EXPECT_EQ(ReadObject(*both_, TestId(3)).status().message(), "the store is away");
  EXPECT_EQ(both_->Contains(TestId(3)).status().message(), "the store is away");
}

TEST_F(TieredStoreTest, HitsAreCopiedToEarlierStores) {
  ASSERT_TRUE(disk_->Put(TestId(1), TestPayload(1, 100)).ok());
  ASSERT_TRUE(disk_->Put(TestId(2), TestPayload(2, 100)).ok());
  EXPECT_EQ(*ReadObject(*both_, TestId(1)), TestPayload(1, 100));
  const ObjectId ids[] = {TestId(2)};
  const auto ignore = [](std::size_t, std::span<const std::byte>, StoreTier) {
    return Status::Ok();
  };
  EXPECT_TRUE(both_->GetEach(ids, ignore).ok());
  both_->Flush();
  EXPECT_EQ(*ReadObject(*memory_, TestId(1)), TestPayload(1, 100));
  EXPECT_EQ(*ReadObject(*memory_, TestId(2)), TestPayload(2, 100));
  // Nothing is written below, and what an earlier store has is not written again.
  EXPECT_EQ(memory_->Stats()->objects, 2);
  EXPECT_EQ(disk_->Stats()->objects, 2);
  const std::int64_t writes = first_->puts;
  EXPECT_EQ(*ReadObject(*both_, TestId(1)), TestPayload(1, 100));
  both_->Flush();
  EXPECT_EQ(first_->puts, writes);
}

TEST_F(TieredStoreTest, WhatTheReaderRefusesIsNotCopied) {
  ASSERT_TRUE(disk_->Put(TestId(1), TestPayload(1, 100)).ok());
  const Status status = both_->Get(TestId(1), [](std::span<const std::byte>) {
    return Status(StatusCode::kCorrupt, "not what it should be");
  });
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  both_->Flush();
  EXPECT_FALSE(*memory_->Contains(TestId(1)));
}

// The first copy is being written when the objects are removed; the others wait.
TEST_F(TieredStoreTest, WhatIsRemovedIsNotCopied) {
  std::promise<void> go_on;
  first_->before_put = [wait = go_on.get_future().share()] { wait.wait(); };
  for (std::uint64_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(disk_->Put(TestId(i), TestPayload(i, 100)).ok());
    EXPECT_EQ(*ReadObject(*both_, TestId(i)), TestPayload(i, 100));
  }
  for (std::uint64_t i = 3; i >= 2; --i) ASSERT_TRUE(both_->Remove(TestId(i)).ok());
  std::thread last([&] { EXPECT_TRUE(both_->Remove(TestId(1)).ok()); });
  go_on.set_value();
  last.join();
  both_->Flush();
  for (std::uint64_t i = 1; i <= 3; ++i) {
    EXPECT_FALSE(*memory_->Contains(TestId(i))) << i;
    EXPECT_FALSE(*disk_->Contains(TestId(i))) << i;
  }
}

// A store in front that fails, throws or does not come back keeps no hit from its reader.
TEST_F(TieredStoreTest, NoFaultOfAnEarlierStoreReachesAHit) {
  ASSERT_TRUE(disk_->Put(TestId(1), TestPayload(1, 100)).ok());
  first_->is_broken = true;
  EXPECT_EQ(*ReadObject(*both_, TestId(1)), TestPayload(1, 100));
  both_->Flush();
  EXPECT_FALSE(*memory_->Contains(TestId(1)));
  first_->is_broken = false;

  std::promise<void> go_on;
  first_->before_put = [wait = go_on.get_future().share()] { wait.wait(); };
  EXPECT_EQ(*ReadObject(*both_, TestId(1)), TestPayload(1, 100));
  EXPECT_EQ(*ReadObject(*both_, TestId(1)), TestPayload(1, 100));
  go_on.set_value();
  both_->Flush();
  EXPECT_EQ(*ReadObject(*memory_, TestId(1)), TestPayload(1, 100));

  first_->before_put = [] { throw std::runtime_error("the store is on fire"); };
  ASSERT_TRUE(disk_->Put(TestId(2), TestPayload(2, 100)).ok());
  EXPECT_EQ(*ReadObject(*both_, TestId(2)), TestPayload(2, 100));
  both_->Flush();
  EXPECT_FALSE(*memory_->Contains(TestId(2)));
}

// The queue holds two of the objects while the first one is being written. All are read.
TEST_F(TieredStoreTest, CopiesAreBounded) {
  constexpr std::size_t kLarge = std::size_t{30} << 20;
  std::promise<void> go_on;
  first_->before_put = [wait = go_on.get_future().share()] { wait.wait(); };
  for (std::uint64_t i = 1; i <= 4; ++i) {
    ASSERT_TRUE(disk_->Put(TestId(i), TestPayload(i, kLarge)).ok());
  }
  for (std::uint64_t i = 1; i <= 4; ++i) EXPECT_TRUE(ReadObject(*both_, TestId(i)).ok());
  go_on.set_value();
  both_->Flush();
  EXPECT_EQ(memory_->Stats()->objects, 2);
}

TEST_F(TieredStoreTest, WhatIsEvictedGoesToTheNextStoreIfNoneHasIt) {
  const std::shared_ptr<Store> small = std::move(*MakeMemoryStore(2000));
  const std::shared_ptr<Store> second = std::move(*MakeMemoryStore());
  const auto last = std::make_shared<FaultyStore>(std::move(*MakeMemoryStore()), Fault::kErrors);
  const auto all = std::move(*MakeTieredStore({small, second, last}));
  ASSERT_TRUE(last->Put(TestId(1), TestPayload(1, 1000)).ok());
  ASSERT_TRUE(small->Put(TestId(1), TestPayload(1, 1000)).ok());
  ASSERT_TRUE(small->Put(TestId(2), TestPayload(2, 1000)).ok());  // 1 goes
  ASSERT_TRUE(small->Put(TestId(3), TestPayload(3, 1000)).ok());  // 2 goes
  all->Flush();
  EXPECT_FALSE(*second->Contains(TestId(1))) << "the last store has it";
  EXPECT_EQ(*ReadObject(*second, TestId(2)), TestPayload(2, 1000));
  last->is_broken = true;  // nobody knows what it has
  ASSERT_TRUE(small->Put(TestId(4), TestPayload(4, 1000)).ok());
  all->Flush();
  EXPECT_EQ(*ReadObject(*second, TestId(3)), TestPayload(3, 1000));
}

TEST_F(TieredStoreTest, WhatADiskEvictsGoesToTheNextStore) {
  TestDirectory directory;
  const std::shared_ptr<Store> disk =
      std::move(*OpenDiskStore({.directory = directory.path(), .budget_bytes = 2 << 20}));
  const std::shared_ptr<Store> last = std::move(*MakeMemoryStore());
  constexpr std::uint64_t kObjects = 12;
  {
    const auto both = std::move(*MakeTieredStore({disk, last}));
    for (std::uint64_t i = 0; i < kObjects; ++i) {
      ASSERT_TRUE(disk->Put(TestId(i), TestPayload(i, 300'000)).ok());
    }
  }  // waits for the moves
  EXPECT_GT(disk->Stats()->evicted, 0);
  for (std::uint64_t i = 0; i < kObjects; ++i) {
    const bool is_here = *disk->Contains(TestId(i));
    EXPECT_EQ(*ReadObject(is_here ? *disk : *last, TestId(i)), TestPayload(i, 300'000)) << i;
  }
}

TEST_F(TieredStoreTest, NoStoreIsAnError) {
  EXPECT_EQ(MakeTieredStore({}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvcache::store::tiered_store_test
