// Checks the segments of recurrent layers: uneven batches, and drafts with their acceptance.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/strings.h"
#include "cache/recurrent/recurrent_batch.h"
#include "kvcache/recurrent_cache.h"
#include "support/cache_harness.h"
#include "support/reference_backend.h"

namespace kvcache::recurrent_segments_test {
namespace {

using testing::ReferenceBackend;
using testing::StartBatch;
using testing::TestBatch;
using testing::TestToken;

constexpr SequenceId kFirst{0};
constexpr SequenceId kSecond{1};
constexpr int kLayer = 2;

// ---- The division into segments

std::string PlaceText(const StatePlace& place) {
  constexpr const char* kNames[] = {"b", "a", "s", "c"};
  return StrCat(kNames[static_cast<int>(place.kind)], place.index);
}

// "0-2:b0>s1 | …": the segment of tokens 0 to 2 reads state b0 and writes s1; "|" ends a strand.
std::string PlanText(const SegmentPlan& plan) {
  std::string text;
  for (std::size_t strand = 0; strand + 1 < plan.strands.size(); ++strand) {
    if (strand > 0) text += "| ";
    for (int i = plan.strands[strand]; i < plan.strands[strand + 1]; ++i) {
      const PlannedSegment& s = plan.segments[i];
      text += StrCat(s.first, s.tokens > 1 ? StrCat("-", s.first + s.tokens - 1) : "", ":",
                     PlaceText(s.before), ">", PlaceText(s.after), " ");
    }
  }
  if (!text.empty()) text.pop_back();
  return text;
}

struct PlanCase {
  const char* name;
  std::vector<int> sequences;
  std::vector<std::int32_t> parents;  // empty: no drafts
  std::string plan;
  int scratch_states = 0;
};

TEST(RecurrentBatchTest, DividesBatches) {
  const PlanCase kCases[] = {
      {"one token each", {2, 0}, {}, "0:b0>a0 | 1:b1>a1", 0},
      {"uneven", {0, 0, 0, 2, 1, 1}, {}, "0-2:b0>a0 | 3:b1>a1 | 4-5:b2>a2", 0},
      {"a chain", {1, 1, 1}, {-1, 0, 1}, "0-2:b0>s0", 1},
      {"alternatives", {0, 0, 0, 0}, {-1, 0, 1, 0}, "0:b0>s0 1-2:s0>s1 3:s0>s0", 2},
      {"roots", {0, 0, 0}, {-1, -1, 1}, "0:b0>s0 | 1-2:b0>s1", 2},
      {"the tree of the header",
       {0, 0, 0, 0, 0, 0, 0},
       {-1, 0, 1, 2, 2, 1, 5},
       "0-1:b0>s0 2:s0>s1 3:s1>s2 4:s1>s1 5-6:s0>s0",
       3},
      {"breadth first", {0, 0, 0, 0}, {-1, -1, 0, 1}, "0:b0>s0 2:s0>s0 | 1:b0>s1 3:s1>s1", 2},
      {"sequences in turn", {0, 1, 0, 1}, {-1, -1, 0, 1}, "0:b0>s0 2:s0>s0 | 1:b1>s1 3:s1>s1", 2},
      {"leaves give their memory back",
       {0, 0, 0, 0, 0},
       {-1, 0, 0, 0, 0},
       "0:b0>s0 1:s0>s1 2:s0>s1 3:s0>s1 4:s0>s0",
       2},
  };
  for (const PlanCase& c : kCases) {
    SCOPED_TRACE(c.name);
    RecurrentBatch batch;
    batch.Reset(3, 3, 8);
    std::vector<SequenceId> sequences;
    std::vector<Position> positions;
    std::vector<int> next(3);
    for (std::size_t i = 0; i < c.sequences.size(); ++i) {
      sequences.push_back(SequenceId{c.sequences[i]});
      const bool drafts = !c.parents.empty();
      if (!drafts) positions.push_back(next[c.sequences[i]]++);
      if (drafts) positions.push_back(c.parents[i] < 0 ? 0 : positions[c.parents[i]] + 1);
    }
    for (int round = 0; round < 2; ++round) {  // the second uses memory again
      ASSERT_TRUE(
          batch.Prepare({.positions = positions, .sequences = sequences, .parents = c.parents})
              .ok());
      batch.Begin();
      EXPECT_EQ(PlanText(batch.plan()), c.plan);
      EXPECT_EQ(batch.plan().scratch_states, c.scratch_states);
    }
  }
}

TEST(RecurrentBatchTest, PlansAcceptedPaths) {
  RecurrentBatch batch;
  batch.Reset(2, 2, 8);
  const std::vector<SequenceId> sequences(7, kFirst);
  const std::vector<Position> positions = {0, 1, 2, 3, 3, 2, 3};
  const std::vector<std::int32_t> parents = {-1, 0, 1, 2, 2, 1, 5};
  ASSERT_TRUE(
      batch.Prepare({.positions = positions, .sequences = sequences, .parents = parents}).ok());
  batch.Begin();
  const std::int32_t kEnd[] = {6}, kFork[] = {4}, kRoot[] = {0};
  EXPECT_EQ(PlanText(batch.PlanAccepted(kEnd, {})), "0-1:b0>a0 5-6:a0>a0");
  EXPECT_EQ(PlanText(batch.PlanAccepted(kFork, {})), "0-2:b0>a0 4:a0>a0");
  EXPECT_EQ(PlanText(batch.PlanAccepted(kRoot, {})), "0:b0>a0");
  EXPECT_EQ(PlanText(batch.PlanAccepted({}, {})), "");
}

TEST(RecurrentBatchTest, CapturesDivideSequencesAndPaths) {
  RecurrentBatch batch;
  batch.Reset(2, 2, 8);
  const std::vector<SequenceId> sequences = {kFirst, kFirst, kFirst, kFirst, kSecond, kSecond};
  const std::vector<Position> positions = {4, 5, 6, 7, 0, 1};
  ASSERT_TRUE(batch.Prepare({.positions = positions, .sequences = sequences}).ok());
  const std::vector<StateCut> cuts = {{0, 1}, {0, 3}, {1, 1}};
  batch.Divide(cuts);
  batch.Begin();
  EXPECT_TRUE(batch.divided());
  EXPECT_EQ(PlanText(batch.plan()), "0:b0>c0 1-2:c0>c1 3:c1>a0 | 4:b1>c2 5:c2>a1");
  ASSERT_TRUE(batch.Prepare({.positions = positions, .sequences = sequences}).ok());
  batch.Begin();
  EXPECT_FALSE(batch.divided()) << "captures are of one pass";

  const std::vector<SequenceId> one(5, kFirst);
  const std::vector<Position> drafts = {0, 1, 1, 2, 3};
  const std::vector<std::int32_t> parents = {-1, 0, 0, 2, 3};
  ASSERT_TRUE(batch.Prepare({.positions = drafts, .sequences = one, .parents = parents}).ok());
  batch.Begin();
  const std::int32_t kEnd[] = {4};
  const std::vector<StateCut> inside = {{0, 2}, {0, 3}};
  EXPECT_EQ(PlanText(batch.PlanAccepted(kEnd, inside)), "0:b0>c0 2:c0>c0 3:c0>c1 4:c1>a0");
}

// ---- States

// The first value of a state is the sum of the contents of all its tokens.
class RecurrentSegmentsTest : public ::testing::Test {
 protected:
  void Open(RecurrentOptions options = {}) {
    options.layers = {kLayer};
    options.state_size = 4;
    options.draft_inputs = 1;
    options.replay_drafts = [this](const DraftReplay& replay) {
      if (fails_) return Status(StatusCode::kInvalidArgument, "no");
      for (const StateSegment& segment : replay.recurrent.segments) {
        float sum = *reinterpret_cast<const float*>(segment.before);
        for (int i = segment.first; i < segment.first + segment.tokens; ++i) {
          sum += replay.inputs.as<float>()[i];
        }
        *reinterpret_cast<float*>(segment.after) = sum;
      }
      return Status::Ok();
    };
    cache_ = MakeRecurrentCache(std::move(options));
    ASSERT_TRUE(cache_->Init(backend_, {DType::kF32, DType::kF32, 3, 1000, 64}).ok());
  }

  // Runs a pass. Returns the state after each token, or the error.
  std::string Forward(const std::vector<TestToken>& tokens, const std::vector<int>& parents = {}) {
    const Status status = StartBatch(*cache_, {tokens, {}, parents});
    if (!status.ok()) return status.message();
    const auto segments = cache_->Segments(kLayer, StateKind::kRecurrent);
    if (!segments.ok()) return segments.status().message();
    std::vector<int> sums(tokens.size());
    for (const StateSegment& segment : segments->segments) {
      float sum = *reinterpret_cast<const float*>(segment.before);
      for (int i = segment.first; i < segment.first + segment.tokens; ++i) {
        sum += static_cast<float>(tokens[i].content);
        sums[i] = static_cast<int>(sum);
      }
      *reinterpret_cast<float*>(segment.after) = sum;
    }
    if (cache_->NeedsInputs()) {
      const auto inputs = cache_->DraftInputs(kLayer);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        inputs->as<float>()[i] = static_cast<float>(tokens[i].content);
      }
    }
    EXPECT_TRUE(cache_->MarkWritten(kLayer, StateKind::kRecurrent).ok());
    std::string text;
    for (const int sum : sums) text += StrCat(text.empty() ? "" : " ", sum);
    return text;
  }

  ReferenceBackend backend_;
  std::unique_ptr<RecurrentCache> cache_;
  bool fails_ = false;
};

TEST_F(RecurrentSegmentsTest, AChunkBesideDecodes) {
  Open();
  EXPECT_EQ(Forward({{0, 0, 1}, {0, 1, 2}, {0, 2, 4}, {1, 0, 10}}), "1 3 7 10");
  EXPECT_EQ(cache_->TokensPerSequence(), 0);
  EXPECT_EQ(cache_->RecurrentState(kLayer, {4}).status().message(),
            "a view of the states of a batch whose sequences have different numbers of tokens; use "
            "RecurrentCache::Segments");
  EXPECT_EQ(Forward({{1, 1, 20}, {2, 0, 5}, {2, 1, 5}, {0, 3, 8}}), "30 5 10 15");
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 3), 3) << "the state before the last pass";
}

TEST_F(RecurrentSegmentsTest, AnAcceptedPathIsLikeAPlainPass) {
  Open({.checkpoints = {.spacing = 2, .minimum = 1}});
  EXPECT_EQ(Forward({{0, 0, 1}, {0, 1, 2}, {1, 0, 100}}), "1 3 100");
  // After 3: 4, then 8 or 16, and after 16 20. A second root, and a draft of the other sequence.
  EXPECT_EQ(Forward({{0, 2, 4}, {0, 3, 8}, {0, 3, 16}, {0, 4, 20}, {0, 2, 50}, {1, 1, 200}},
                    {-1, 0, 0, 2, -1, -1}),
            "7 15 23 43 53 300");
  EXPECT_EQ(cache_->RecurrentState(kLayer, {4}).status().message(),
            "a view of the states in a pass of drafts; use RecurrentCache::Segments");
  EXPECT_TRUE(cache_->Slots().empty());
  ASSERT_TRUE(cache_->AcceptDrafts({3}).ok());
  EXPECT_EQ(cache_->Segments(kLayer, StateKind::kRecurrent).status().message(),
            "a recurrent state outside a forward pass; call StartForward first");
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 5), 5);
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 4), 2) << "the state before the pass";
  EXPECT_EQ(Forward({{0, 5, 1}, {1, 1, 1}}), "44 101") << "the other sequence kept no draft";
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 5), 5) << "the checkpoint after the path";
}

TEST_F(RecurrentSegmentsTest, CapturesInsideAnAcceptedPath) {
  Open({.checkpoints = {.count = 0}});
  EXPECT_EQ(Forward({{0, 0, 1}}), "1");
  ASSERT_TRUE(
      cache_->snapshots()->ScheduleCaptures(kFirst, 1, std::vector<Position>{2, 3, 4}).ok());
  EXPECT_EQ(Forward({{0, 1, 2}, {0, 2, 4}, {0, 2, 50}, {0, 3, 8}}, {-1, 0, 0, 1}), "3 7 53 15");
  ASSERT_TRUE(cache_->AcceptDrafts({3}).ok());
  auto captures = cache_->snapshots()->TakeCaptures(kFirst);
  ASSERT_TRUE(captures.ok());
  for (int i = 0; i < 3; ++i) {
    ASSERT_NE((*captures)[i], nullptr) << i;
    ASSERT_TRUE(cache_->snapshots()->Materialize(*(*captures)[i]).ok());
  }
  ASSERT_TRUE(cache_->CopyPrefix(kFirst, kSecond, 1).ok());
  ASSERT_TRUE(cache_->snapshots()->Restore(kSecond, (*captures)[0].get(), 2).ok());
  ASSERT_TRUE(cache_->snapshots()->Restore(kSecond, (*captures)[1].get(), 3).ok());
  EXPECT_EQ(Forward({{1, 3, 100}}), "107");
  EXPECT_EQ(Forward({{0, 4, 100}}), "115");
}

TEST_F(RecurrentSegmentsTest, RejectedDraftsLeaveEverythingAsBefore) {
  Open({.checkpoints = {.count = 0}});
  EXPECT_EQ(Forward({{0, 0, 1}}), "1");
  EXPECT_EQ(Forward({{0, 1, 2}}), "3");
  EXPECT_EQ(Forward({{0, 2, 9}, {0, 3, 9}}, {-1, 0}), "12 21");
  ASSERT_TRUE(cache_->AcceptDrafts(std::span<const std::int32_t>()).ok());
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 1), 1) << "the state before the last pass is kept";
  ASSERT_TRUE(cache_->Remove(kFirst, 1, kEndOfSequence).ok());
  EXPECT_EQ(Forward({{0, 1, 4}}), "5");
}

TEST_F(RecurrentSegmentsTest, AFailingReplayKeepsNoDraft) {
  Open();
  EXPECT_EQ(Forward({{0, 0, 1}}), "1");
  EXPECT_EQ(Forward({{0, 1, 2}}, {-1}), "3");
  EXPECT_EQ(cache_->AcceptDrafts({7}).message(), "draft 7 is not in the batch of 1");
  fails_ = true;
  const Status status = cache_->AcceptDrafts({0});
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "replay_drafts: no");
  fails_ = false;
  EXPECT_EQ(cache_->AcceptDrafts({0}).code(), StatusCode::kInvalidArgument) << "the pass has ended";
  EXPECT_EQ(Forward({{0, 1, 5}}), "6");
}

// The tokens are accepted, and have no state, as after a plain pass that broke off.
TEST_F(RecurrentSegmentsTest, DraftsOfAPassThatBrokeOff) {
  Open();
  EXPECT_EQ(Forward({{0, 0, 1}}), "1");
  ASSERT_TRUE(StartBatch(*cache_, {{{0, 1, 2}}, {}, {-1}}).ok());  // and nothing is written
  ASSERT_TRUE(cache_->AcceptDrafts({0}).ok());
  EXPECT_EQ(Forward({{0, 2, 1}}),
            "sequence 0 holds 2 tokens, its recurrent state 1; Remove the tokens of the pass that "
            "broke off");
  EXPECT_EQ(*cache_->PrepareRestore(kFirst, 1), 1);
  ASSERT_TRUE(cache_->Remove(kFirst, 1, kEndOfSequence).ok());
  EXPECT_EQ(Forward({{0, 1, 5}}), "6");
}

TEST_F(RecurrentSegmentsTest, AForkOfAnAcceptedPathSharesItsState) {
  Open();
  EXPECT_EQ(Forward({{0, 0, 1}, {0, 1, 2}}, {-1, 0}), "1 3");
  ASSERT_TRUE(cache_->AcceptDrafts({1}).ok());
  ASSERT_TRUE(cache_->CopyPrefix(kFirst, kSecond, 2).ok());
  EXPECT_EQ(Forward({{1, 2, 10}, {0, 2, 1}}), "13 4");
}

TEST_F(RecurrentSegmentsTest, Refusals) {
  Open();
  EXPECT_EQ(cache_->MarkWritten(kLayer, StateKind::kRecurrent).message(),
            "a recurrent state outside a forward pass; call StartForward first");
  EXPECT_EQ(Forward({{0, 0, 1}}), "1");
  EXPECT_EQ(cache_->DraftInputs(kLayer).status().message(),
            "DraftInputs in a pass without drafts, and of no transaction that needs them");
  EXPECT_EQ(cache_->Segments(0, StateKind::kRecurrent).status().message(),
            "layer 0 is not in RecurrentOptions::layers");
  EXPECT_EQ(cache_->Segments(kLayer, StateKind::kConvolution).status().message(),
            "the cache has no states of this kind");
  EXPECT_EQ(cache_->MarkWritten(kLayer, StateKind::kConvolution).code(),
            StatusCode::kInvalidArgument);

  const auto without = MakeRecurrentCache({.layers = {kLayer}, .state_size = 4});
  ASSERT_TRUE(without->Init(backend_, {DType::kF32, DType::kF32, 3, 1000, 64}).ok());
  const Status status = StartBatch(*without, {{{0, 0, 1}}, {}, {-1}});
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "a batch of drafts in recurrent layers; it needs RecurrentOptions::replay_drafts");
}

}  // namespace
}  // namespace kvcache::recurrent_segments_test
