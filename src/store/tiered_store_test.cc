// Several stores as one.
#include <gtest/gtest.h>

#include "store/store_testing.h"

namespace kvcache {
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

TEST_F(TieredStoreTest, NoStoreIsAnError) {
  EXPECT_EQ(MakeTieredStore({}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvcache
