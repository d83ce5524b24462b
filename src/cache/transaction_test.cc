// Transactions of single caches and of several. Random scripts with transactions are in tests/model,
// and recurrent layers in recurrent_transaction_test.cc.
#include "kvcache/transaction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/causal_cache.h"
#include "kvcache/encoder_cache.h"
#include "kvcache/wrapper_cache.h"
#include "support/cache_harness.h"
#include "support/failing_backend.h"
#include "support/reference_backend.h"

namespace kvcache::transaction_test {
namespace {

using testing::PutContents;
using testing::ReferenceBackend;
using testing::TestToken;

constexpr SequenceId kFirst{0};
constexpr SequenceId kSecond{1};
constexpr KvShape kShape{.kv_heads = 1, .k_dim = 4, .v_dim = 4};

// Evaluates positions [begin, end) of a sequence. The content of a token depends on `seed` and its
// position.
Status Fill(Cache& cache, SequenceId id, Position begin, Position end, std::uint32_t seed = 0) {
  std::vector<TestToken> tokens;
  for (Position p = begin; p < end; ++p) {
    tokens.push_back({Index(id), p, 1000 * seed + static_cast<std::uint32_t>(p) + 1});
  }
  KVCACHE_RETURN_IF_ERROR(testing::StartForward(cache, tokens));
  return PutContents(cache, tokens, 0, kShape);
}

// Returns the exported bytes of the sequence's first `length` tokens, or of its window.
std::vector<std::byte> BytesOf(Cache& cache, SequenceId id, Position length) {
  auto snapshot = cache.snapshots()->TakeSnapshot(id, 0, length);
  EXPECT_TRUE(snapshot.ok()) << snapshot.status().message();
  if (!snapshot.ok() || *snapshot == nullptr) return {};
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(*cache.snapshots()->ExportSize(**snapshot)));
  EXPECT_TRUE(cache.snapshots()->Export(**snapshot, bytes).ok());
  return bytes;
}

class TransactionTest : public ::testing::Test {
 protected:
  std::unique_ptr<Cache> Open(std::unique_ptr<Cache> cache, int capacity = 32, int max_batch = 8) {
    const Status status = cache->Init(backend_, {DType::kF32, DType::kF32, 2, capacity, max_batch});
    EXPECT_TRUE(status.ok()) << status.message();
    return cache;
  }
  std::unique_ptr<Cache> OpenWindow(int window, int capacity = 32) {
    return Open(MakeCausalCache({.window = window}), capacity);
  }
  static Transaction Begin(Cache& cache, std::initializer_list<SequenceLength> members,
                           Position max_tokens, bool isolated = false) {
    auto begun = Transaction::Begin({&cache}, members, {max_tokens, isolated});
    EXPECT_TRUE(begun.ok()) << begun.status().message();
    return std::move(*begun);
  }

  ReferenceBackend backend_;
};

TEST_F(TransactionTest, CommitKeepsTheFirstTokens) {
  auto cache = Open(MakeCausalCache());
  auto plain = Open(MakeCausalCache());
  ASSERT_TRUE(Fill(*cache, kFirst, 0, 5).ok());
  ASSERT_TRUE(Fill(*plain, kFirst, 0, 5).ok());
  ASSERT_TRUE(Fill(*plain, kFirst, 5, 7).ok());
  Transaction round = Begin(*cache, {{kFirst, 5}}, 4);
  ASSERT_TRUE(Fill(*cache, kFirst, 5, 9).ok());
  ASSERT_TRUE(round.Commit({2}).ok());
  EXPECT_FALSE(round.open());
  EXPECT_TRUE(cache->CanResume(kFirst, 7));
  EXPECT_FALSE(cache->CanResume(kFirst, 8));
  EXPECT_EQ(BytesOf(*cache, kFirst, 7), BytesOf(*plain, kFirst, 7));
}

TEST_F(TransactionTest, DestructionRollsBackAlsoAfterAPassThatFailed) {
  auto cache = Open(MakeCausalCache());
  ASSERT_TRUE(Fill(*cache, kFirst, 0, 5).ok());
  const auto before = BytesOf(*cache, kFirst, 5);
  {
    Transaction round = Begin(*cache, {{kFirst, 5}, {kSecond, 0}}, 4);
    ASSERT_TRUE(Fill(*cache, kSecond, 0, 2).ok());
    ASSERT_TRUE(Fill(*cache, kFirst, 5, 6).ok());
    backend_.FailNth(ReferenceBackend::Call::kStore, 1);
    EXPECT_FALSE(Fill(*cache, kFirst, 6, 8).ok());
  }
  EXPECT_FALSE(cache->CanResume(kFirst, 6));
  EXPECT_FALSE(cache->CanResume(kSecond, 1));
  EXPECT_EQ(BytesOf(*cache, kFirst, 5), before);
  EXPECT_TRUE(Fill(*cache, kFirst, 5, 6).ok());
}

// The window's first tokens would leave it in the transaction's passes.
TEST_F(TransactionTest, AWindowThatSlidIsWholeAfterARollBack) {
  auto cache = OpenWindow(4);
  for (Position p = 0; p < 12; p += 4) ASSERT_TRUE(Fill(*cache, kFirst, p, p + 4).ok());
  Transaction round = Begin(*cache, {{kFirst, 12}}, 8);
  const auto before = BytesOf(*cache, kFirst, 12);
  for (Position p = 12; p < 20; ++p) ASSERT_TRUE(Fill(*cache, kFirst, p, p + 1, 7).ok());
  round.RollBack();
  EXPECT_TRUE(cache->CanResume(kFirst, 12));
  EXPECT_EQ(BytesOf(*cache, kFirst, 12), before);
  // What stayed for the transaction is evicted by the next pass.
  for (int i = 0; i < 5; ++i) {
    Transaction again = Begin(*cache, {{kFirst, 12 + i}}, 8);
    ASSERT_TRUE(Fill(*cache, kFirst, 12 + i, 20 + i, 8).ok());
    ASSERT_TRUE(again.Commit({1}).ok());
  }
  EXPECT_TRUE(cache->CanResume(kFirst, 17));
  EXPECT_FALSE(cache->CanResume(kFirst, 7));
}

TEST_F(TransactionTest, AnIsolatedTransactionIsOnlyRolledBack) {
  auto cache = Open(MakeCausalCache());
  ASSERT_TRUE(Fill(*cache, kFirst, 0, 3).ok());
  Transaction look = Begin(*cache, {{kFirst, 3}}, 2, true);
  ASSERT_TRUE(Fill(*cache, kFirst, 3, 5).ok());
  EXPECT_EQ(cache->Visible().histories[0].back().length, 5);
  const Status status = look.Commit({1});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(look.open());
  look.RollBack();
  EXPECT_FALSE(cache->CanResume(kFirst, 4));
}

TEST_F(TransactionTest, AMovedTransactionEndsOnce) {
  auto cache = Open(MakeCausalCache());
  std::optional<Transaction> kept;
  {
    Transaction round = Begin(*cache, {{kFirst, 0}}, 2);
    ASSERT_TRUE(Fill(*cache, kFirst, 0, 2).ok());
    kept = std::move(round);
    EXPECT_FALSE(round.open());  // NOLINT(bugprone-use-after-move): it has ended
  }
  EXPECT_TRUE(cache->CanResume(kFirst, 2));
  EXPECT_TRUE(kept->Commit({2}).ok());
  EXPECT_TRUE(cache->CanResume(kFirst, 2));
  EXPECT_EQ(kept->Commit({0}).code(), StatusCode::kInvalidArgument);
}

TEST_F(TransactionTest, ChangesOfItsSequencesAreRefused) {
  auto cache = Open(MakeCausalCache());
  ASSERT_TRUE(Fill(*cache, kFirst, 0, 4).ok());
  ASSERT_TRUE(Fill(*cache, kSecond, 0, 2).ok());
  Transaction round = Begin(*cache, {{kFirst, 4}}, 2);
  const std::string why = "sequence 0 is in a transaction; commit it or roll it back first";
  EXPECT_EQ(cache->Remove(kFirst, 0, kEndOfSequence).message(), why);
  EXPECT_EQ(cache->CopyPrefix(kSecond, kFirst, 1).message(), why);
  EXPECT_EQ(cache->snapshots()->Restore(kFirst, nullptr, 2).message(), why);
  EXPECT_EQ(Transaction::Begin({cache.get()}, {{kFirst, 4}}, {}).status().message(), why);
  EXPECT_EQ(Fill(*cache, kFirst, 5, 7).message(),
            "token 1 of the batch is at position 6 of sequence 0, whose transaction has room for 2 "
            "tokens from 4 on");
  EXPECT_TRUE(cache->CopyPrefix(kFirst, kSecond, 4).ok());
  ASSERT_TRUE(Fill(*cache, kFirst, 4, 5).ok());
  EXPECT_EQ(round.Commit({2}).message(),
            "Commit of 2 tokens of sequence 0; must be at most 1, which were written");
  EXPECT_EQ(round.Commit({-1}).message(), "Commit of -1 tokens of sequence 0; must be at least 0");
  EXPECT_EQ(round.Commit({1, 1}).message(),
            "Commit with 2 numbers of tokens; must be 1, one for each sequence");
  EXPECT_TRUE(round.Commit({1}).ok());
  EXPECT_TRUE(cache->Remove(kFirst, 2, kEndOfSequence).ok());
}

TEST_F(TransactionTest, BeginSaysWhatIsWrong) {
  auto cache = Open(MakeCausalCache(), 4, 4);
  ASSERT_TRUE(Fill(*cache, kFirst, 0, 4).ok());
  const auto refusal = [&](std::initializer_list<SequenceLength> members, Position max_tokens) {
    return Transaction::Begin({cache.get()}, members, {max_tokens, false}).status();
  };
  EXPECT_EQ(refusal({{kFirst, 4}}, 0).message(), "max_tokens is 0; must be at least 1");
  EXPECT_EQ(refusal({{kFirst, 3}}, 1).message(),
            "a transaction of sequence 0 from 3 tokens on; it has 4");
  EXPECT_EQ(refusal({{kFirst, 4}, {kFirst, 4}}, 1).message(),
            "sequence 0 is named twice in a transaction");
  EXPECT_EQ(refusal({{SequenceId{2}, 0}}, 1).code(), StatusCode::kInvalidArgument);
  const Status full = refusal({{kFirst, 4}, {kSecond, 0}}, 3);
  EXPECT_EQ(full.code(), StatusCode::kCacheFull);
  EXPECT_EQ(full.message(),
            "a transaction of 3 tokens of each of 2 sequences needs 6 cells; 4 of 8 are free "
            "(max_sequences 2 x capacity 4)");
  EXPECT_EQ(Transaction::Begin({cache.get(), cache.get()}, {{kFirst, 4}}, {}).status().message(),
            "cache 1 of the transaction is named twice");
  EXPECT_EQ(Transaction::Begin({}, {{kFirst, 4}}, {}).status().message(),
            "a transaction without a cache");
  EXPECT_TRUE(refusal({{kFirst, 4}}, 4).ok());  // nothing of the above has begun
}

TEST_F(TransactionTest, SeveralCachesBeginAllOrNone) {
  auto target = Open(MakeCausalCache());
  auto draft = Open(MakeCausalCache(), 2, 2);
  ASSERT_TRUE(Fill(*draft, kFirst, 0, 2).ok());
  ASSERT_TRUE(Fill(*draft, kSecond, 0, 2).ok());
  ASSERT_TRUE(Fill(*target, kFirst, 0, 2).ok());
  EXPECT_EQ(
      Transaction::Begin({target.get(), draft.get()}, {{kFirst, 2}}, {2, false}).status().code(),
      StatusCode::kCacheFull);
  EXPECT_TRUE(target->Remove(kFirst, 1, kEndOfSequence).ok());
  ASSERT_TRUE(draft->Remove(kSecond, 0, kEndOfSequence).ok());
  auto round = Transaction::Begin({target.get(), draft.get()}, {{kFirst, 2}}, {2, false});
  ASSERT_TRUE(round.ok());
  ASSERT_TRUE(Fill(*target, kFirst, 2, 4).ok());
  ASSERT_TRUE(Fill(*draft, kFirst, 2, 3).ok());
  EXPECT_EQ(round->Commit({2}).message(),
            "Commit of 2 tokens of sequence 0; must be at most 1, which were written");
  ASSERT_TRUE(round->Commit({1}).ok());
  EXPECT_FALSE(target->CanResume(kFirst, 4));
  EXPECT_TRUE(target->CanResume(kFirst, 3));
  EXPECT_TRUE(draft->CanResume(kFirst, 3));
}

// A capture that fired in the transaction goes with the tokens that are taken back.
TEST_F(TransactionTest, CapturesFollowWhatRemains) {
  auto cache = Open(MakeCausalCache());
  ASSERT_TRUE(Fill(*cache, kFirst, 0, 2).ok());
  const Position lengths[] = {3, 5};
  ASSERT_TRUE(cache->snapshots()->ScheduleCaptures(kFirst, 2, lengths).ok());
  Transaction round = Begin(*cache, {{kFirst, 2}}, 4);
  ASSERT_TRUE(Fill(*cache, kFirst, 2, 6).ok());
  ASSERT_TRUE(round.Commit({2}).ok());
  auto taken = cache->snapshots()->TakeCaptures(kFirst);
  ASSERT_TRUE(taken.ok());
  ASSERT_EQ(taken->size(), 2u);
  EXPECT_NE((*taken)[0], nullptr);
  EXPECT_EQ((*taken)[1], nullptr);
}

TEST_F(TransactionTest, AcceptedDraftsAreWhatItHasWritten) {
  auto cache = Open(MakeCausalCache());
  ASSERT_TRUE(Fill(*cache, kFirst, 0, 3).ok());
  Transaction round = Begin(*cache, {{kFirst, 3}}, 4);
  testing::TestBatch tree{{{0, 3, 50}, {0, 4, 51}, {0, 4, 52}}, {}, {-1, 0, 0}};
  ASSERT_TRUE(testing::StartBatch(*cache, tree).ok());
  ASSERT_TRUE(PutContents(*cache, tree.tokens, 0, kShape).ok());
  ASSERT_TRUE(cache->AcceptDrafts({2}).ok());
  EXPECT_EQ(round.Commit({3}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(round.Commit({2}).ok());
  auto plain = Open(MakeCausalCache());
  ASSERT_TRUE(Fill(*plain, kFirst, 0, 3).ok());
  const std::vector<TestToken> path = {{0, 3, 50}, {0, 4, 52}};
  ASSERT_TRUE(testing::StartForward(*plain, path).ok());
  ASSERT_TRUE(PutContents(*plain, path, 0, kShape).ok());
  EXPECT_EQ(BytesOf(*cache, kFirst, 5), BytesOf(*plain, kFirst, 5));
}

TEST_F(TransactionTest, AnEncoderOutputIsRefused) {
  auto cache = MakeEncoderCache({.max_tokens = 4});
  ASSERT_TRUE(cache->Init(backend_, {DType::kF32, DType::kF32, 2, 8, 4}).ok());
  Transaction round = Begin(*cache, {{kFirst, 0}}, 4);
  ASSERT_TRUE(testing::StartForward(*cache, {{0, 0, 1}, {1, 0, 1}}).ok());
  const Status status = PutContents(*cache, {{0, 0, 9}}, 0, kShape);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "Put of an encoder output for sequence 0, which is in a transaction; commit it or roll "
            "it back first");
  ASSERT_TRUE(cache->SetSequence(kSecond).ok());
  EXPECT_TRUE(PutContents(*cache, {{1, 0, 9}}, 0, kShape).ok());
  EXPECT_TRUE(round.Commit({1}).ok());
}

TEST_F(TransactionTest, ACacheThatWasClosedIsLeftAlone) {
  auto cache = Open(MakeCausalCache());
  Transaction round = Begin(*cache, {{kFirst, 0}}, 2);
  cache->Close();
  EXPECT_EQ(round.Commit({0}).code(), StatusCode::kInvalidArgument);
  round.RollBack();
}

}  // namespace
}  // namespace kvcache::transaction_test
