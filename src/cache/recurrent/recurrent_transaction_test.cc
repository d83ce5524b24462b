// Transactions over recurrent layers: which states a commit keeps, and what it refuses. Random scripts
// with them are in tests/model, and logits of whole models in tests/exactness.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/recurrent_cache.h"
#include "kvcache/transaction.h"
#include "support/reference_backend.h"

namespace kvcache::recurrent_transaction_test {
namespace {

using testing::ReferenceBackend;

constexpr SequenceId kFirst{0};
constexpr SequenceId kSecond{1};
constexpr int kLayer = 0;

// A model with one recurrent layer, whose state is the digits of the tokens so far.
class RecurrentTransactionTest : public ::testing::Test {
 protected:
  void Open(int max_batch = 8) {
    RecurrentOptions options{.layers = {kLayer}, .state_size = 1, .draft_inputs = 1};
    options.replay_drafts = [this](const DraftReplay& replay) {
      ++replays_;
      if (!replay_status_.ok()) return replay_status_;
      for (const StateSegment& segment : replay.recurrent.segments) {
        Run(segment, replay.inputs.as<float>() + segment.first);
      }
      return Status::Ok();
    };
    cache_ = MakeRecurrentCache(std::move(options));
    const Status status = cache_->Init(backend_, {DType::kF32, DType::kF32, 2, 32, max_batch});
    ASSERT_TRUE(status.ok()) << status.message();
  }

  static void Run(const StateSegment& segment, const float* tokens) {
    float state = *reinterpret_cast<const float*>(segment.before);
    for (int i = 0; i < segment.tokens; ++i) state = 10 * state + tokens[i];
    *reinterpret_cast<float*>(segment.after) = state;
  }

  // Evaluates tokens of a sequence from `position` on.
  Status Forward(SequenceId id, Position position, const std::vector<float>& tokens,
                 bool keep_inputs = true) {
    BatchBuilder batch;
    batch.Add(id, position, static_cast<std::int32_t>(tokens.size()));
    KVCACHE_RETURN_IF_ERROR(cache_->StartForward(batch.view(), ForwardMode::kCompute));
    KVCACHE_ASSIGN_OR_RETURN(const StateSegments segments,
                             cache_->Segments(kLayer, StateKind::kRecurrent));
    for (const StateSegment& segment : segments.segments) {
      Run(segment, tokens.data() + segment.first);
    }
    if (cache_->NeedsInputs() && keep_inputs) {
      KVCACHE_ASSIGN_OR_RETURN(const TensorView inputs, cache_->DraftInputs(kLayer));
      std::copy(tokens.begin(), tokens.end(), inputs.as<float>());
    }
    return cache_->MarkWritten(kLayer, StateKind::kRecurrent);
  }

  // Returns the state that a token at `position` continues.
  float StateAt(SequenceId id, Position position) {
    BatchBuilder batch;
    batch.Add(id, position);
    const Status status = cache_->StartForward(batch.view(), ForwardMode::kCompute);
    EXPECT_TRUE(status.ok()) << status.message();
    const auto segments = cache_->Segments(kLayer, StateKind::kRecurrent);
    const float state = *reinterpret_cast<const float*>(segments->segments[0].before);
    cache_->EndPass();
    EXPECT_TRUE(cache_->Remove(id, position, kEndOfSequence).ok());
    return state;
  }

  Transaction Begin(SequenceId id, Position length, Position max_tokens) {
    auto begun = Transaction::Begin({cache_.get()}, {{id, length}}, {.max_tokens = max_tokens});
    EXPECT_TRUE(begun.ok()) << begun.status().message();
    return std::move(*begun);
  }

  ReferenceBackend backend_;
  std::unique_ptr<RecurrentCache> cache_;
  int replays_ = 0;
  Status replay_status_;
};

TEST_F(RecurrentTransactionTest, APartOfAPassIsComputedAgain) {
  Open();
  ASSERT_TRUE(Forward(kFirst, 0, {1, 2}).ok());
  Transaction round = Begin(kFirst, 2, 4);
  ASSERT_TRUE(Forward(kFirst, 2, {3, 4, 5, 6}).ok());
  ASSERT_TRUE(round.Commit({2}).ok());
  EXPECT_EQ(replays_, 1);
  EXPECT_EQ(StateAt(kFirst, 4), 1234.0f);
}

TEST_F(RecurrentTransactionTest, WholePassesCostNothing) {
  Open();
  for (const Position kept : {4, 3, 1, 0}) {
    Transaction round = Begin(kFirst, 0, 4);
    ASSERT_TRUE(Forward(kFirst, 0, {1}).ok());
    ASSERT_TRUE(Forward(kFirst, 1, {2, 3}).ok());
    ASSERT_TRUE(Forward(kFirst, 3, {4}).ok());
    EXPECT_EQ(round.Commit({2}).code(), StatusCode::kUnsupported) << "in the middle of the second";
    ASSERT_TRUE(round.Commit({kept}).ok());
    const float expected[] = {0, 1, 0, 123, 1234};
    EXPECT_EQ(StateAt(kFirst, kept), expected[kept]);
    ASSERT_TRUE(cache_->Remove(kFirst, 0, kEndOfSequence).ok());
  }
  EXPECT_EQ(replays_, 0);
}

TEST_F(RecurrentTransactionTest, InputsOfAnotherPassAreNotMistaken) {
  Open();
  for (const bool reserve : {false, true}) {
    ASSERT_TRUE(cache_->Remove(kFirst, 0, kEndOfSequence).ok());
    ASSERT_TRUE(cache_->Remove(kSecond, 0, kEndOfSequence).ok());
    Transaction first = Begin(kFirst, 0, 3);
    Transaction second = Begin(kSecond, 0, 3);
    ASSERT_TRUE(Forward(kFirst, 0, {1, 2, 3}).ok());
    if (reserve) {
      const std::vector<Position> positions = {3, 4};
      const std::vector<SequenceId> sequences = {kFirst, kFirst};
      const std::vector<std::int32_t> parents = {-1, 0};
      ASSERT_TRUE(
          cache_->StartForward({positions, sequences, {}, parents}, ForwardMode::kReserve).ok());
      auto inputs = cache_->DraftInputs(kLayer);
      ASSERT_TRUE(inputs.ok());
      inputs->as<float>()[0] = 9;
    } else {
      ASSERT_TRUE(Forward(kSecond, 0, {7, 8, 9}).ok());
    }
    const Status status = first.Commit({2});
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << reserve;
    EXPECT_TRUE(first.open());
    ASSERT_TRUE(first.Commit({3}).ok());
    EXPECT_EQ(StateAt(kFirst, 3), 123.0f);
  }
}

TEST_F(RecurrentTransactionTest, AModelThatKeepsNoInputsCommitsWholePasses) {
  Open();
  Transaction round = Begin(kFirst, 0, 3);
  ASSERT_TRUE(Forward(kFirst, 0, {1, 2, 3}, false).ok());
  EXPECT_EQ(round.Commit({2}).code(), StatusCode::kUnsupported);
  ASSERT_TRUE(round.Commit({3}).ok());
  EXPECT_EQ(StateAt(kFirst, 3), 123.0f);
}

TEST_F(RecurrentTransactionTest, AFailingReplayRollsBack) {
  Open();
  ASSERT_TRUE(Forward(kFirst, 0, {1}).ok());
  for (const StatusCode code : {StatusCode::kInvalidArgument, StatusCode::kIo}) {
    replay_status_ = {code, "injected"};
    Transaction round = Begin(kFirst, 1, 3);
    ASSERT_TRUE(Forward(kFirst, 1, {2, 3, 4}).ok());
    const Status status = round.Commit({1});
    EXPECT_EQ(status.code(), code == StatusCode::kIo ? code : StatusCode::kInternal);
    EXPECT_FALSE(round.open());
    EXPECT_EQ(StateAt(kFirst, 1), 1.0f);
  }
}

TEST_F(RecurrentTransactionTest, SaysHowManyPassesItKeeps) {
  Open(1);
  Transaction round = Begin(kFirst, 0, 20);
  for (Position p = 0; p < 17; ++p) ASSERT_TRUE(Forward(kFirst, p, {1}).ok());
  const Status status = Forward(kFirst, 17, {1});
  EXPECT_EQ(status.code(), StatusCode::kCacheFull);
  EXPECT_EQ(
      status.message(),
      "the open transactions would keep 18 recurrent states, one for each pass of a sequence; "
      "must be at most max_batch + 8 x max_sequences, 17");
}

// Without attention layers a snapshot has no keys and values.
TEST_F(RecurrentTransactionTest, StatesAloneAreExportedAndImported) {
  Open();
  ASSERT_TRUE(Forward(kFirst, 0, {1, 2, 3}).ok());
  auto snapshot = cache_->snapshots()->TakeSnapshot(kFirst, 0, 3);
  ASSERT_TRUE(snapshot.ok());
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(*cache_->snapshots()->ExportSize(**snapshot)));
  ASSERT_TRUE(cache_->snapshots()->Export(**snapshot, bytes).ok());
  auto imported = cache_->snapshots()->Import(bytes);
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  ASSERT_TRUE(cache_->snapshots()->Restore(kSecond, imported->get(), 3).ok());
  EXPECT_EQ(StateAt(kSecond, 3), 123.0f);
}

}  // namespace
}  // namespace kvcache::recurrent_transaction_test
