#include "kvcache/wrapper_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/causal_cache.h"
#include "kvcache/encoder_cache.h"
#include "kvcache/recurrent_cache.h"
#include "support/cache_harness.h"
#include "support/reference_backend.h"

namespace kvcache::wrapper_cache_test {
namespace {

using testing::MaskRows;
using testing::PutContents;
using testing::ReferenceBackend;
using testing::StartForward;
using Rows = std::vector<std::string>;

constexpr KvShape kShape{.kv_heads = 1, .k_dim = 2, .v_dim = 2};
constexpr SequenceId kFirst{0};

class WrapperCacheTest : public ::testing::Test {
 protected:
  // Layer 0 has a window of 2, layer 1 full attention.
  void OpenSliding(int sequences = 1) {
    WrapperOptions options;
    options.caches.push_back(MakeCausalCache({.window = 2}));
    options.caches.push_back(MakeCausalCache());
    options.cache_of_layer = {0, 1};
    Open(std::move(options), sequences);
  }
  void Open(WrapperOptions options, int sequences, int capacity = 6) {
    cache_ = MakeWrapperCache(std::move(options));
    ASSERT_TRUE(cache_->Init(backend_, {DType::kF32, DType::kF32, sequences, capacity, 4}).ok());
  }
  Rows MaskOf(int layer) {
    cache_->SetLayer(layer);
    auto history = cache_->Get();
    return history.ok() ? MaskRows(history->mask) : Rows{history.status().message()};
  }
  Status Forward(const std::vector<testing::TestToken>& tokens) {
    KVCACHE_RETURN_IF_ERROR(StartForward(*cache_, tokens));
    KVCACHE_RETURN_IF_ERROR(PutContents(*cache_, tokens, 0, kShape));
    return PutContents(*cache_, tokens, 1, kShape);
  }

  ReferenceBackend backend_;
  std::unique_ptr<Cache> cache_;
};

TEST_F(WrapperCacheTest, TheLayerChooses) {
  OpenSliding();
  ASSERT_TRUE(Forward({{0, 0, 1}, {0, 1, 2}, {0, 2, 3}}).ok());
  EXPECT_EQ(MaskOf(0), (Rows{"0..", "00.", ".00"}));
  EXPECT_EQ(MaskOf(1), (Rows{"0..", "00.", "000"}));
  // 2 + 4 cells and 6 cells, each rounded up to a tile of 16.
  EXPECT_EQ(cache_->memory()->AllocatedBytes(), 2 * 16 * (2 + 2) * 4);
}

TEST_F(WrapperCacheTest, APassBeginsInAllOrInNone) {
  OpenSliding();
  for (Position p = 0; p < 6; ++p) ASSERT_TRUE(Forward({{0, p, 1}}).ok());
  const Rows sliding = MaskOf(0);
  const Rows full = MaskOf(1);
  // The window has free cells, the full cache has none. Neither changes, and the pass continues.
  const Status status = StartForward(*cache_, {{0, 6, 1}});
  EXPECT_EQ(status.code(), StatusCode::kCacheFull);
  EXPECT_EQ(status.message(),
            "the batch needs 1 cells; 0 of 6 are free (max_sequences 1 x capacity 6)");
  EXPECT_EQ(MaskOf(0), sliding);
  EXPECT_EQ(MaskOf(1), full);
  ASSERT_TRUE(cache_->Remove(kFirst, 5, kEndOfSequence).ok());
  EXPECT_TRUE(Forward({{0, 5, 1}}).ok());
  EXPECT_EQ(MaskOf(1), (Rows{"000000"}));
}

TEST_F(WrapperCacheTest, ResumingIsPossibleWhereAllCan) {
  OpenSliding();
  for (Position p = 0; p < 5; ++p) ASSERT_TRUE(Forward({{0, p, 1}}).ok());
  // The window keeps 3 and 4: position 4 needs 3 and itself, position 3 needs 2.
  EXPECT_TRUE(cache_->CanResume(kFirst, 5));
  EXPECT_TRUE(cache_->CanResume(kFirst, 4));
  EXPECT_FALSE(cache_->CanResume(kFirst, 3));
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 4), 4);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 3), 0);
}

TEST_F(WrapperCacheTest, RestoresAreLevelled) {
  WrapperOptions options;
  options.caches.push_back(MakeCausalCache());
  RecurrentOptions recurrent{.layers = {0}, .state_size = 2};
  recurrent.checkpoints = {.count = 4, .spacing = 3, .minimum = 1};
  options.caches.push_back(MakeRecurrentCache(recurrent));
  Open(std::move(options), 1, 20);
  ASSERT_NE(cache_->Recurrent(), nullptr);
  EXPECT_EQ(cache_->Encoder(), nullptr);
  float state[2] = {1.0f, 2.0f};
  for (Position p = 0; p < 9; ++p) {
    ASSERT_TRUE(StartForward(*cache_, {{0, p, 1}}).ok());
    ASSERT_TRUE(cache_->Recurrent()
                    ->UpdateRecurrentState(0, TensorView::Dense(state, DType::kF32, 2))
                    .ok());
  }
  // Attention could go back to 7, the states only to the checkpoint after 5.
  EXPECT_EQ(cache_->Remove(kFirst, 7, kEndOfSequence).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(cache_->CanResume(kFirst, 9)) << "and nothing was removed anywhere";
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 7), 5);
  ASSERT_TRUE(cache_->Remove(kFirst, 5, kEndOfSequence).ok());
  EXPECT_TRUE(StartForward(*cache_, {{0, 5, 1}}).ok());
}

TEST_F(WrapperCacheTest, TypesChooseWhereALayerHasTwo) {
  WrapperOptions options;
  options.caches.push_back(MakeCausalCache());
  options.caches.push_back(MakeEncoderCache({.max_tokens = 3}));
  Open(std::move(options), 1);
  ASSERT_NE(cache_->Encoder(), nullptr);
  ASSERT_TRUE(StartForward(*cache_, {{0, 0, 1}}).ok());
  ASSERT_TRUE(PutContents(*cache_, {{0, 0, 1}}, 0, kShape).ok());
  cache_->Wrapper()->SetLayerType(1);
  ASSERT_TRUE(PutContents(*cache_, {{0, 0, 7}, {0, 1, 8}}, 0, kShape).ok());
  EXPECT_TRUE(cache_->Encoder()->EncoderCached(kFirst));
  EXPECT_EQ(cache_->Get()->k.dims[2], 2);
  cache_->Wrapper()->SetLayerType(0);
  EXPECT_EQ(cache_->Get()->k.dims[2], 1);
  for (const int type : {2, -1}) {
    cache_->Wrapper()->SetLayerType(type);
    EXPECT_EQ(cache_->Get().status().message(),
              "no cache is selected; SetLayerType must be in [0, 2)");
    EXPECT_EQ(cache_->Storage().status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(PutContents(*cache_, {{0, 0, 1}}, 0, kShape).code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(cache_->Visible().positions.empty());
  }
}

TEST_F(WrapperCacheTest, ARefusedInitCloses) {
  WrapperOptions options;
  options.caches.push_back(MakeCausalCache());
  options.caches.push_back(MakeCausalCache({.window = 4, .retained_tokens = 1}));
  const auto cache = MakeWrapperCache(std::move(options));
  EXPECT_EQ(cache->Init(backend_, {DType::kF32, DType::kF32, 1, 8, 2}).message(),
            "retained_tokens is 1; must be at least the window, 4");
  EXPECT_EQ(StartForward(*cache, {{0, 0}}).message(), "the cache is closed; make a new one");
}

TEST_F(WrapperCacheTest, CopyingOntoItselfTruncates) {
  OpenSliding(2);
  ASSERT_TRUE(Forward({{0, 0, 1}, {0, 1, 2}, {0, 2, 3}}).ok());
  ASSERT_TRUE(cache_->CopyPrefix(kFirst, kFirst, 2).ok());
  ASSERT_TRUE(Forward({{0, 2, 4}}).ok());
  EXPECT_EQ(cache_->CopyPrefix(kFirst, SequenceId{2}, 1).message(), "sequence 2 is not in [0, 2)");
  EXPECT_EQ(cache_->CopyPrefix(kFirst, SequenceId{1}, -1).message(),
            "prefix length is -1; must be at least 0");
  EXPECT_EQ(MaskOf(1), (Rows{"000"}));
}

// The first part of a split snapshot has no window. Merged behind another one, it leaves the whole
// without a window, too: the earlier window is not what a token at the end sees.
TEST_F(WrapperCacheTest, AMergedSnapshotHasNoEarlierWindow) {
  OpenSliding(2);
  ASSERT_TRUE(Forward({{0, 0, 1}, {0, 1, 2}}).ok());
  auto earlier = cache_->snapshots()->TakeSnapshot(kFirst, 0, 2);
  ASSERT_TRUE(Forward({{0, 2, 3}, {0, 3, 4}, {0, 4, 5}}).ok());
  auto later = cache_->snapshots()->TakeSnapshot(kFirst, 2, 5);
  ASSERT_TRUE(earlier.ok() && later.ok());
  auto parts = cache_->snapshots()->SplitSnapshot(*later, 3);
  ASSERT_TRUE(parts.ok());
  auto merged = cache_->snapshots()->MergeSnapshots(*earlier, parts->first);
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(cache_->snapshots()->Restore(SequenceId{1}, merged->get(), 3).message(),
            "the snapshot [0, 3) has no state of cache 0 after 0 tokens");
  auto whole = cache_->snapshots()->MergeSnapshots(*merged, parts->second);
  ASSERT_TRUE(whole.ok());
  ASSERT_TRUE(cache_->snapshots()->Restore(SequenceId{1}, whole->get(), 5).ok());
  EXPECT_TRUE(cache_->CanResume(SequenceId{1}, 5));
}

// If one cache reallocates its run lists before another cache fails, the pass must see the new
// lists.
TEST_F(WrapperCacheTest, ARefusedBatchLeavesWhatThePassSees) {
  WrapperOptions options;
  options.caches.push_back(MakeCausalCache());
  options.caches.push_back(MakeRecurrentCache({.layers = {1}, .state_size = 2}));
  options.cache_of_layer = {0, 1};
  cache_ = MakeWrapperCache(std::move(options));
  ASSERT_TRUE(cache_->Init(backend_, {DType::kF32, DType::kF32, 2, 200, 150}).ok());
  std::vector<testing::TestToken> tokens = {{0, 0, 1}};
  ASSERT_TRUE(StartForward(*cache_, tokens).ok());
  tokens.clear();
  for (Position p = 1; p < 120; ++p) tokens.push_back({0, p, 1});
  tokens.push_back({1, 0, 1});
  ASSERT_EQ(StartForward(*cache_, tokens).code(), StatusCode::kUnsupported) << "an uneven batch";
  cache_->SetLayer(0);
  const Visibility& visible = cache_->Visible();
  ASSERT_EQ(visible.histories.size(), 1u);
  ASSERT_EQ(visible.histories[0].size(), 1u);
  EXPECT_EQ(visible.histories[0][0], (HistoryRun{0, 0, 1}));
}

}  // namespace
}  // namespace kvcache::wrapper_cache_test
