#include "kvcache/encoder_cache.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "support/cache_harness.h"
#include "support/reference_backend.h"

namespace kvcache::encoder_cache_test {
namespace {

using testing::KeyAt;
using testing::KeyContent;
using testing::PutContents;
using testing::ReferenceBackend;
using testing::StartBatch;
using testing::StartForward;
using testing::TestToken;

constexpr KvShape kShape{.kv_heads = 2, .k_dim = 2, .v_dim = 3};
constexpr SequenceId kFirst{0};
constexpr SequenceId kSecond{1};

class EncoderCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    cache_ = MakeEncoderCache({.max_tokens = 5});
    ASSERT_TRUE(cache_->Init(backend_, {DType::kF32, DType::kF32, 3, 8, 4}).ok());
  }

  // Puts an output of `tokens` tokens with contents first, first + 1, …
  Status Put(std::uint32_t first, int tokens, int layer = 0) {
    std::vector<TestToken> rows;
    for (int i = 0; i < tokens; ++i) rows.push_back({0, i, first + static_cast<std::uint32_t>(i)});
    return PutContents(*cache_, rows, layer, kShape);
  }

  // Returns the cells that each query of the pass sees, or "-".
  std::string Seen() {
    std::string text;
    const Visibility& visible = cache_->Visible();
    for (std::size_t i = 0; i < visible.positions.size(); ++i) {
      const auto runs = visible.histories[visible.history_of_query[i]];
      text += runs.empty()
                  ? "- "
                  : std::to_string(runs[0].cell) + "+" + std::to_string(runs[0].length) + " ";
    }
    return text;
  }

  ReferenceBackend backend_;
  std::unique_ptr<EncoderCache> cache_;
};

TEST_F(EncoderCacheTest, AnOutputIsSeenByAllQueriesOfItsSequence) {
  ASSERT_TRUE(StartForward(*cache_, {{0, 0}, {1, 0}, {0, 1}}).ok());
  EXPECT_FALSE(cache_->EncoderCached(kFirst));
  EXPECT_EQ(Seen(), "- - - ");
  ASSERT_TRUE(Put(10, 4).ok());
  EXPECT_TRUE(cache_->EncoderCached(kFirst));
  EXPECT_FALSE(cache_->EncoderCached(kSecond));
  EXPECT_EQ(Seen(), "0+4 - 0+4 ");
  EXPECT_EQ(cache_->Visible().bidirectional[0], 1) << "positions do not matter";
  auto history = cache_->Get();
  ASSERT_TRUE(history.ok());
  EXPECT_EQ(history->k.dims, (std::array<std::int64_t, 4>{2, 2, 4, 1}));
  EXPECT_EQ(history->mask.data, nullptr);
  EXPECT_EQ(KeyAt(*history, 3, 1, 0), KeyContent(13, 0, kShape)[2]);
  // The output stays for later passes at any position.
  ASSERT_TRUE(StartForward(*cache_, {{1, 1}, {0, 70}}).ok());
  EXPECT_EQ(Seen(), "- 0+4 ");
}

TEST_F(EncoderCacheTest, TheNewestItemChoosesAndGivesThePosition) {
  const testing::TestBatch batch{{{0, 3}, {1, 6}, {1, 7}, {0, 4}}, {0, 2}};
  ASSERT_TRUE(StartBatch(*cache_, batch).ok());
  ASSERT_TRUE(Put(20, 2).ok());  // sequence 1, which has the item at index 2
  EXPECT_TRUE(cache_->EncoderCached(kSecond));
  ASSERT_TRUE(cache_->SetSequence(kFirst).ok());
  ASSERT_TRUE(Put(30, 5).ok());
  // Removing over an item's position clears the mark: 3 for sequence 0, 7 for sequence 1.
  ASSERT_TRUE(cache_->Remove(kSecond, 0, 7).ok());  // and this moves it down to 0
  EXPECT_TRUE(cache_->EncoderCached(kSecond));
  ASSERT_TRUE(cache_->Remove(kSecond, 1, kEndOfSequence).ok());
  EXPECT_TRUE(cache_->EncoderCached(kSecond));
  ASSERT_TRUE(cache_->Remove(kSecond, 0, 1).ok());
  EXPECT_FALSE(cache_->EncoderCached(kSecond));
  ASSERT_TRUE(cache_->Remove(kFirst, 4, kEndOfSequence).ok());
  EXPECT_TRUE(cache_->EncoderCached(kFirst));
  ASSERT_TRUE(cache_->Remove(kFirst, 3, 4).ok());
  EXPECT_FALSE(cache_->EncoderCached(kFirst));
}

TEST_F(EncoderCacheTest, ForksShareUntilOneIsReplaced) {
  ASSERT_TRUE(StartForward(*cache_, {{0, 2}}).ok());
  ASSERT_TRUE(Put(10, 3).ok());
  const std::int64_t bytes = cache_->memory()->AllocatedBytes();
  ASSERT_TRUE(cache_->CopyPrefix(kFirst, kSecond, 3).ok());
  ASSERT_TRUE(cache_->CopyPrefix(kFirst, SequenceId{2}, 2).ok());  // ends before the item
  EXPECT_TRUE(cache_->EncoderCached(kSecond));
  EXPECT_FALSE(cache_->EncoderCached(SequenceId{2}));
  EXPECT_EQ(cache_->memory()->AllocatedBytes(), bytes);
  ASSERT_TRUE(StartForward(*cache_, {{1, 3}, {0, 3}}).ok());
  EXPECT_EQ(Seen(), "0+3 0+3 ");
  ASSERT_TRUE(Put(50, 2).ok());
  EXPECT_EQ(Seen(), "16+2 0+3 ");
}

TEST_F(EncoderCacheTest, AReservePassAllocatesAndMarksNothing) {
  const std::vector<TestToken> tokens{{0, 0}, {1, 0}};
  ASSERT_TRUE(StartForward(*cache_, tokens, ForwardMode::kReserve).ok());
  ASSERT_TRUE(Put(10, 5).ok());
  EXPECT_EQ(cache_->memory()->AllocatedBytes(), 3 * 16 * (2 * 2 + 2 * 3) * 4);
  EXPECT_FALSE(cache_->EncoderCached(kFirst));
  EXPECT_EQ(Seen(), "0+5 0+5 ") << "the worst case";
}

TEST_F(EncoderCacheTest, ResumingIsPossibleWhateverIsThere) {
  EXPECT_TRUE(cache_->CanResume(kFirst, 0));
  EXPECT_TRUE(cache_->CanResume(kFirst, 1000));
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 17), 17);
  EXPECT_FALSE(cache_->CanResume(SequenceId{3}, 0));
  EXPECT_EQ(cache_->PrepareRestore(SequenceId{3}, 5).status().code(), StatusCode::kInvalidArgument);
}

// Tokens between two outputs have seen one that was replaced.
TEST_F(EncoderCacheTest, NothingContinuesFromWhatSawAReplacedOutput) {
  ASSERT_TRUE(StartForward(*cache_, {{0, 2}}).ok());
  ASSERT_TRUE(Put(10, 3).ok());
  ASSERT_TRUE(StartForward(*cache_, {{0, 7}}).ok());
  ASSERT_TRUE(Put(20, 3).ok());
  EXPECT_TRUE(cache_->CanResume(kFirst, 8));
  EXPECT_FALSE(cache_->CanResume(kFirst, 7));
  EXPECT_FALSE(cache_->CanResume(kFirst, 3));
  EXPECT_TRUE(cache_->CanResume(kFirst, 2)) << "where the first one can be given again";
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 6), 2);
  // A fork that ends there has neither output.
  ASSERT_TRUE(cache_->CopyPrefix(kFirst, kSecond, 5).ok());
  EXPECT_FALSE(cache_->EncoderCached(kSecond));
  EXPECT_FALSE(cache_->CanResume(kSecond, 5));
  ASSERT_TRUE(cache_->Remove(kSecond, 2, kEndOfSequence).ok());
  EXPECT_TRUE(cache_->CanResume(kSecond, 5));
  // Removing an earlier range moves the positions.
  ASSERT_TRUE(cache_->Remove(kFirst, 0, 1).ok());
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 6), 1);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 7), 7);
}

TEST_F(EncoderCacheTest, AFailedPutLeavesNoOutput) {
  ASSERT_TRUE(StartForward(*cache_, {{0, 0}}).ok());
  ASSERT_TRUE(Put(10, 3).ok());
  backend_.FailNth(ReferenceBackend::Call::kStore, 1);
  EXPECT_EQ(Put(10, 3, 1).message(), "injected failure of a store");
  EXPECT_FALSE(cache_->EncoderCached(kFirst));
  EXPECT_EQ(Seen(), "- ");
  ASSERT_TRUE(Put(40, 1).ok());
  EXPECT_TRUE(cache_->EncoderCached(kFirst));
}

TEST_F(EncoderCacheTest, AnOutputIsCheckedForTokensAndLayers) {
  ASSERT_TRUE(StartForward(*cache_, {{0, 0}}).ok());
  ASSERT_TRUE(Put(10, 3).ok());
  auto snapshot = cache_->snapshots()->TakeSnapshot(kFirst, 0, 1);
  ASSERT_TRUE(snapshot.ok());
  const KvShape one[] = {kShape}, two[] = {kShape, kShape}, other[] = {{1, 2, 3}};
  // Shared with the sequence, and then copied.
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(cache_->CheckOutput(**snapshot, 3, one).ok());
    EXPECT_EQ(cache_->CheckOutput(**snapshot, 2, one).message(),
              "the snapshot's output has 3 tokens; must have 2");
    EXPECT_EQ(cache_->CheckOutput(**snapshot, 3, two).message(),
              "layer 1 of the snapshot's output has another shape than the model's");
    EXPECT_EQ(cache_->CheckOutput(**snapshot, 3, other).code(), StatusCode::kCorrupt);
    EXPECT_EQ(cache_->CheckOutput(**snapshot, 3, {}).code(), StatusCode::kCorrupt);
    ASSERT_TRUE(cache_->snapshots()->Materialize(**snapshot).ok());
  }
}

// A snapshot may be imported before the model's first pass says what its layers are.
TEST_F(EncoderCacheTest, ARestoreNeedsLayersOfTheSameShape) {
  ASSERT_TRUE(StartForward(*cache_, {{0, 0}}).ok());
  ASSERT_TRUE(Put(10, 3).ok());
  auto snapshot = cache_->snapshots()->TakeSnapshot(kFirst, 0, 1);
  ASSERT_TRUE(snapshot.ok());
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(*cache_->snapshots()->ExportSize(**snapshot)));
  ASSERT_TRUE(cache_->snapshots()->Export(**snapshot, bytes).ok());

  auto other = MakeEncoderCache({.max_tokens = 5});
  ASSERT_TRUE(other->Init(backend_, {DType::kF32, DType::kF32, 3, 8, 4}).ok());
  auto imported = other->snapshots()->Import(bytes);
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_TRUE(other->snapshots()->CheckRestore(kSecond, imported->get(), 1).ok());
  ASSERT_TRUE(StartForward(*other, {{0, 0}}).ok());
  ASSERT_TRUE(PutContents(*other, {{0, 0, 1}}, 0, {1, 2, 3}).ok());
  const Status refused = other->snapshots()->CheckRestore(kSecond, imported->get(), 1);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "layer 0 has 1 heads of 2 (K) and 3 (V) values; "
            "the snapshot has 2 heads of 2 (K) and 3 (V) values");
  EXPECT_EQ(other->snapshots()->Restore(kSecond, imported->get(), 1).message(), refused.message());
  EXPECT_FALSE(other->EncoderCached(kSecond));
}

TEST_F(EncoderCacheTest, Refusals) {
  EXPECT_EQ(Put(1, 1).message(), "Put outside a forward pass; call StartForward first");
  EXPECT_EQ(cache_->SetSequence(kFirst).message(),
            "SetSequence outside a forward pass; call StartForward first");
  EXPECT_EQ(cache_->SetCausal({}).message(),
            "SetCausal outside a forward pass; call StartForward first");
  ASSERT_TRUE(StartForward(*cache_, {{0, 0}}).ok());
  EXPECT_EQ(cache_->Get().status().message(), "layer 0 has no storage; call Put for it first");
  EXPECT_EQ(Put(1, 6).message(), "the output has 6 tokens; must have 1 to 5");
  ASSERT_TRUE(Put(1, 3).ok());
  EXPECT_EQ(Put(1, 2, 1).message(),
            "the output has 2 tokens; must have 3, as in the pass's earlier layers");
  EXPECT_EQ(cache_->SetSequence(kSecond).message(), "sequence 1 is not in the batch");
  EXPECT_EQ(cache_->SetSequence(SequenceId{9}).message(), "sequence 9 is not in [0, 3)");
  EXPECT_EQ(StartBatch(*cache_, {{{0, 0}}, {1}}).message(),
            "item index 1 is not in the batch of 1");
  EXPECT_EQ(StartForward(*cache_, {{7, 0}}).message(), "sequence 7 is not in [0, 3)");
  ASSERT_TRUE(StartForward(*cache_, {{1, 0}}).ok());
  EXPECT_EQ(cache_->Get().status().message(),
            "sequence 1 has no encoder output; call Put for it first");
  EXPECT_EQ(cache_->Remove(kFirst, 3, 2).message(),
            "the range of positions is [3, 2); begin must be at least 0, and end at least begin");
  EXPECT_EQ(cache_->CopyPrefix(kFirst, kSecond, -1).message(),
            "prefix length is -1; must be at least 0");
  cache_->Close();
  EXPECT_EQ(Put(1, 1).message(), "the cache is closed; make a new one");
  EXPECT_FALSE(cache_->EncoderCached(kFirst));
  EXPECT_EQ(backend_.live_bytes(), 0);

  auto negative = MakeEncoderCache({.max_tokens = -1});
  EXPECT_EQ(negative->Init(backend_, {DType::kF32, DType::kF32, 1, 8, 2}).message(),
            "max_tokens is -1; must be at least 0");
  EXPECT_TRUE(MakeEncoderCache()->Init(backend_, {DType::kF32, DType::kF32, 1, 8, 2}).ok());
}

}  // namespace
}  // namespace kvcache::encoder_cache_test
