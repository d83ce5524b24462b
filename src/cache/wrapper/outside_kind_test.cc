// Composites with one cache of a kind outside the library: they stay atomic.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache/wrapper/outside_kind_testing.h"
#include "kvcache/encoder_cache.h"
#include "kvcache/wrapper_cache.h"
#include "support/cache_harness.h"
#include "support/reference_backend.h"

namespace kvcache::outside_kind_test {
namespace {

using testing::CellsText;
using testing::PutContents;
using testing::ReferenceBackend;
using testing::StartForward;
using testing::TestToken;

constexpr SequenceId kFirst{0};
constexpr SequenceId kSecond{1};
constexpr KvShape kShape{.kv_heads = 1, .k_dim = 2, .v_dim = 2};
const Status kRefusal(StatusCode::kCacheFull, "no");

CacheOptions Sizes() {
  return {.k_type = DType::kF32,
          .v_type = DType::kF32,
          .max_sequences = 2,
          .capacity = 8,
          .max_batch = 8};
}

class OutsideKindTest : public ::testing::TestWithParam<bool> {
 protected:
  // The kind outside comes before the library's, or after it.
  void SetUp() override {
    auto outside = std::make_unique<OutsideKind>();
    outside_ = outside.get();
    auto causal = MakeCausalCache();
    causal_ = causal.get();
    WrapperOptions options;
    options.caches.push_back(std::move(causal));
    options.caches.insert(GetParam() ? options.caches.begin() : options.caches.end(),
                          std::move(outside));
    cache_ = MakeWrapperCache(std::move(options));
    ASSERT_TRUE(cache_->Init(backend_, Sizes()).ok());
  }

  Status Forward(const std::vector<TestToken>& tokens) {
    KVCACHE_RETURN_IF_ERROR(StartForward(*cache_, tokens));
    for (const int type : {0, 1}) {
      cache_->SetLayerType(type);
      KVCACHE_RETURN_IF_ERROR(PutContents(*cache_, tokens, type, kShape));
    }
    return Status::Ok();
  }

  // Returns the lengths of a sequence in the library's cache and outside.
  std::string Lengths(SequenceId id) const {
    return std::to_string(causal_->Length(id)) + " " + std::to_string(outside_->Length(id));
  }

  ReferenceBackend backend_;
  std::unique_ptr<WrapperCache> cache_;
  Cache* causal_ = nullptr;
  OutsideKind* outside_ = nullptr;
};

TEST_P(OutsideKindTest, APassBeginsInAllOrInNone) {
  ASSERT_TRUE(Forward({{0, 0, 1}, {0, 1, 2}}).ok());
  outside_->refusal = kRefusal;
  EXPECT_EQ(Forward({{0, 2, 3}}).message(), "no");
  EXPECT_EQ(Lengths(kFirst), "2 2");
  EXPECT_EQ(causal_->Visible().positions.size(), 2u) << "the pass continues";
  outside_->refusal = Status::Ok();
  EXPECT_EQ(Forward({{1, -1, 3}}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(outside_->Visible().positions.size(), 2u);
  ASSERT_TRUE(Forward({{0, 2, 3}}).ok());
  EXPECT_EQ(Lengths(kFirst), "3 3");
  EXPECT_EQ(cache_->Length(kFirst), 3);
}

TEST_P(OutsideKindTest, ARestoreTakesPlaceInAllOrInNone) {
  ASSERT_TRUE(Forward({{0, 0, 1}, {0, 1, 2}, {0, 2, 3}}).ok());
  CacheSnapshots& snapshots = *cache_->snapshots();
  auto first = snapshots.TakeSnapshot(kFirst, 0, 2);
  auto second = snapshots.TakeSnapshot(kFirst, 2, 3);
  ASSERT_TRUE(first.ok() && second.ok());
  outside_->whole_snapshots().refusal = kRefusal;
  EXPECT_EQ(snapshots.Restore(kSecond, first->get(), 2).message(), "no");
  EXPECT_EQ(Lengths(kSecond), "0 0");
  EXPECT_EQ(snapshots.MergeSnapshots(*first, *second).status().message(), "no");
  ASSERT_TRUE(*first != nullptr && *second != nullptr) << "nothing is taken";
  outside_->whole_snapshots().refusal = Status::Ok();
  ASSERT_TRUE(snapshots.Restore(kSecond, first->get(), 2).ok());
  EXPECT_EQ(Lengths(kSecond), "2 2");
  auto whole = snapshots.MergeSnapshots(*first, *second);
  ASSERT_TRUE(whole.ok());
  ASSERT_TRUE(snapshots.Restore(kSecond, whole->get(), 3).ok());
  EXPECT_EQ(Lengths(kSecond), "3 3");
}

TEST_P(OutsideKindTest, ATransactionBeginsAndCommitsInAllOrInNone) {
  ASSERT_TRUE(Forward({{0, 0, 1}}).ok());
  WholeTransactions& whole = outside_->whole_transactions();
  whole.refusal = kRefusal;
  EXPECT_EQ(Transaction::Begin({cache_.get()}, {{kFirst, 1}}, {.max_tokens = 3}).status().message(),
            "no");
  ASSERT_TRUE(Forward({{0, 1, 2}}).ok()) << "the sequence is in no transaction";
  whole.refusal = Status::Ok();
  auto round = Transaction::Begin({cache_.get()}, {{kFirst, 2}}, {.max_tokens = 3});
  ASSERT_TRUE(round.ok());
  ASSERT_TRUE(Forward({{0, 2, 3}, {0, 3, 4}}).ok());
  ASSERT_TRUE(round->Commit({1}).ok());
  EXPECT_EQ(Lengths(kFirst), "3 3");
  round = Transaction::Begin({cache_.get()}, {{kFirst, 3}}, {.max_tokens = 3});
  ASSERT_TRUE(Forward({{0, 3, 4}}).ok());
  whole.refusal = kRefusal;
  EXPECT_EQ(round->Commit({1}).message(), "committing a transaction: no");
  EXPECT_EQ(Lengths(kFirst), "3 3") << "rolled back";
}

INSTANTIATE_TEST_SUITE_P(Orders, OutsideKindTest, ::testing::Bool());

TEST(OutsideKinds, TwoAreRefused) {
  ReferenceBackend backend;
  WrapperOptions options;
  for (int i = 0; i < 2; ++i) options.caches.push_back(std::make_unique<OutsideKind>());
  auto cache = MakeWrapperCache(std::move(options));
  const Status status = cache->Init(backend, Sizes());
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "2 of the wrapper's caches are of kinds outside the library; must be at most 1");

  OutsideKind first;
  OutsideKind second;
  ASSERT_TRUE(first.Init(backend, Sizes()).ok() && second.Init(backend, Sizes()).ok());
  const auto round = Transaction::Begin({&first, &second}, {{kFirst, 0}}, {.max_tokens = 1});
  EXPECT_EQ(round.status().message(),
            "2 caches of the transaction are of kinds outside the library; must be at most 1");
}

// A wrapper with such a cache has no halves itself.
TEST(OutsideKinds, OneInsideANestedWrapperCounts) {
  ReferenceBackend backend;
  WrapperOptions inner;
  inner.caches.push_back(MakeCausalCache());
  inner.caches.push_back(std::make_unique<OutsideKind>());
  WrapperOptions outer;
  outer.caches.push_back(MakeWrapperCache(std::move(inner)));
  outer.caches.push_back(std::make_unique<OutsideKind>());
  EXPECT_EQ(MakeWrapperCache(std::move(outer))->Init(backend, Sizes()).code(),
            StatusCode::kUnsupported);
}

TEST(OutsideKinds, AWrapperHasWhatAllItsCachesHave) {
  class Bare final : public Cache {
   public:
    Status Init(KvBackend&, const CacheOptions&) override { return Status::Ok(); }
    void Close() override {}
    Status StartForward(const Batch&, ForwardMode) override { return Status::Ok(); }
    void EndPass() override {}
    void SetLayer(int) override {}
    Status SetCausal(std::span<const std::int32_t>) override { return Status::Ok(); }
    Status Put(const TensorView&, const TensorView&) override { return Status::Ok(); }
    Result<DenseKv> Get() override { return DenseKv(); }
    Result<LayerKv> Storage() override { return LayerKv(); }
    const Visibility& Visible() const override { return nothing_; }
    Position Length(SequenceId) const override { return 0; }
    Status CopyPrefix(SequenceId, SequenceId, Position) override { return Status::Ok(); }
    bool CanResume(SequenceId, Position) const override { return false; }
    Result<Position> PrepareRestore(SequenceId, Position) override { return 0; }
    Status Remove(SequenceId, Position, Position) override { return Status::Ok(); }
    Status CheckRemove(SequenceId, Position, Position) const override { return Status::Ok(); }
    Status EvictWindow(SequenceId) override { return Status::Ok(); }

   private:
    Visibility nothing_;
  };
  ReferenceBackend backend;
  WrapperOptions options;
  options.caches.push_back(MakeEncoderCache({.max_tokens = 2}));
  options.caches.push_back(std::make_unique<Bare>());
  const auto cache = MakeWrapperCache(std::move(options));
  ASSERT_TRUE(cache->Init(backend, Sizes()).ok());
  EXPECT_EQ(cache->snapshots(), nullptr);
  EXPECT_EQ(cache->transactions(), nullptr);
  EXPECT_EQ(cache->memory(), nullptr);
  EXPECT_NE(cache->Encoder(), nullptr);
  EXPECT_EQ(cache->Recurrent(), nullptr);
  EXPECT_EQ(cache->Wrapper(), cache.get());
  const auto round = Transaction::Begin({cache.get()}, {{kFirst, 0}}, {.max_tokens = 1});
  EXPECT_EQ(round.status().message(), "this kind of cache has no transactions");
  ASSERT_TRUE(StartForward(*cache, {{0, 0, 1}}).ok());
  EXPECT_TRUE(cache->Remove(kFirst, 0, kEndOfSequence).ok());
}

}  // namespace
}  // namespace kvcache::outside_kind_test
