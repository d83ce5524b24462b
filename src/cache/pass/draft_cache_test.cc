// Passes of drafts, on caches small enough to check by hand.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/two_phase.h"
#include "cache/wrapper/outside_kind_testing.h"
#include "kvcache/causal_cache.h"
#include "kvcache/encoder_cache.h"
#include "kvcache/recurrent_cache.h"
#include "kvcache/wrapper_cache.h"
#include "support/cache_harness.h"
#include "support/reference_backend.h"

namespace kvcache::draft_cache_test {
namespace {

using testing::KeyContent;
using testing::MaskRows;
using testing::PutContents;
using testing::ReadKey;
using testing::ReferenceBackend;
using testing::StartBatch;
using testing::TestBatch;
using testing::TestToken;
using Rows = std::vector<std::string>;

constexpr KvShape kShape{.kv_heads = 2, .k_dim = 4, .v_dim = 3};

constexpr const char* kNoPass =
    "AcceptDrafts outside a pass of drafts; another call may have ended it";

// Behind three tokens of sequence 0:  a ─ c ─ f
//                                     │ └ d
//                                     └ b ─ e
const TestBatch kTree{{{0, 3, 30}, {0, 3, 31}, {0, 4, 32}, {0, 4, 33}, {0, 4, 34}, {0, 5, 35}},
                      {},
                      {-1, -1, 0, 0, 1, 2}};

class DraftCacheTest : public ::testing::Test {
 protected:
  void Open(std::unique_ptr<Cache> cache, int sequences = 2, int capacity = 16, int max_batch = 8) {
    cache_ = std::move(cache);
    ASSERT_TRUE(
        cache_->Init(backend_, {DType::kF32, DType::kF32, sequences, capacity, max_batch}).ok());
  }

  // Runs a pass over layers 0 and 1. Returns the error message, or "".
  std::string Forward(const TestBatch& batch) {
    Status status = StartBatch(*cache_, batch);
    for (int layer = 0; layer < 2 && status.ok(); ++layer) {
      status = PutContents(*cache_, batch.tokens, layer, kShape);
    }
    return status.message();
  }
  std::string Begin() { return Forward({{{0, 0, 20}, {0, 1, 21}, {0, 2, 22}}}); }

  Rows Mask() {
    auto history = cache_->Get();
    return history.ok() ? MaskRows(history->mask) : Rows{history.status().message()};
  }

  std::string Keep(std::vector<std::int32_t> last) { return cache_->AcceptDrafts(last).message(); }

  // Evaluates the sequence's next token, with content 99. Returns the position, cell and content of
  // each key that it sees.
  std::string Next(int sequence, Position position) {
    const std::string error = Forward({{{sequence, position, 99}}});
    if (!error.empty()) return error;
    std::string text;
    for (const HistoryRun& run : cache_->Visible().histories[0]) {
      for (int i = 0; i < run.length; ++i) {
        text += std::to_string(run.position + i) + "@" + std::to_string(run.cell + i) + "=" +
                ContentOf(run.cell + i) + " ";
      }
    }
    return text;
  }

  std::string ContentOf(std::int32_t cell) {
    const LayerKv storage = *cache_->Storage();
    for (std::uint32_t content = 20; content < 100; ++content) {
      if (ReadKey(storage, cell) == KeyContent(content, 1, kShape)) return std::to_string(content);
    }
    return "?";
  }

  ReferenceBackend backend_;
  std::unique_ptr<Cache> cache_;
};

TEST_F(DraftCacheTest, ADraftSeesThePathThatLeadsToIt) {
  Open(MakeCausalCache());
  ASSERT_EQ(Begin(), "");
  ASSERT_EQ(Forward(kTree), "");
  EXPECT_EQ(Mask(),
            (Rows{"0000.....", "000.0....", "0000.0...", "0000..0..", "000.0..0.", "0000.0..0"}));
  // Three paths: a c f, b e and a d.
  EXPECT_EQ(cache_->Visible().histories.size(), 3u);
}

TEST_F(DraftCacheTest, ThePathThatIsKeptMovesTogether) {
  const std::vector<std::pair<std::int32_t, std::string>> kept = {
      {0, "0@0=20 1@1=21 2@2=22 3@3=30 4@4=99 "},
      {1, "0@0=20 1@1=21 2@2=22 3@3=31 4@4=99 "},
      {3, "0@0=20 1@1=21 2@2=22 3@3=30 4@4=33 5@5=99 "},
      {4, "0@0=20 1@1=21 2@2=22 3@3=31 4@4=34 5@5=99 "},
      {5, "0@0=20 1@1=21 2@2=22 3@3=30 4@4=32 5@5=35 6@6=99 "},
  };
  for (const auto& [last, next] : kept) {
    Open(MakeCausalCache());
    ASSERT_EQ(Begin(), "");
    ASSERT_EQ(Forward(kTree), "");
    ASSERT_EQ(Keep({last}), "");
    EXPECT_TRUE(cache_->Visible().positions.empty()) << "the pass has ended";
    const Position position = kTree.tokens[static_cast<std::size_t>(last)].position + 1;
    EXPECT_EQ(Next(0, position), next);
    EXPECT_EQ(cache_->Visible().histories[0].size(), 1u);
  }
}

TEST_F(DraftCacheTest, WithoutAWordNothingIsKept) {
  const std::string next = "0@0=20 1@1=21 2@2=22 3@3=99 ";
  Open(MakeCausalCache());
  ASSERT_EQ(Begin(), "");
  ASSERT_EQ(Forward(kTree), "");
  EXPECT_EQ(Next(0, 3), next);
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 3, kEndOfSequence).ok());
  ASSERT_EQ(Forward(kTree), "");
  ASSERT_EQ(Keep({}), "");
  EXPECT_EQ(Next(0, 3), next);
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 3, kEndOfSequence).ok());
  ASSERT_EQ(Forward(kTree), "");
  ASSERT_TRUE(cache_->CopyPrefix(SequenceId{0}, SequenceId{1}, 9).ok());
  EXPECT_EQ(Next(1, 3), "0@0=20 1@1=21 2@2=22 3@3=99 ");
}

TEST_F(DraftCacheTest, SequencesChooseApart) {
  Open(MakeCausalCache());
  ASSERT_EQ(Forward({{{0, 0, 20}, {1, 0, 40}}}), "");
  const TestBatch drafts{
      {{1, 1, 41}, {0, 1, 21}, {1, 1, 42}, {0, 2, 22}, {1, 2, 43}}, {}, {-1, -1, -1, 1, 2}};
  ASSERT_EQ(Forward(drafts), "");
  ASSERT_EQ(Keep({4, 1}), "");
  EXPECT_EQ(Next(0, 2), "0@0=20 1@1=21 2@2=99 ");
  EXPECT_EQ(Next(1, 3), "0@16=40 1@17=42 2@18=43 3@19=99 ");
}

TEST_F(DraftCacheTest, DraftsOfTheLastPassTakeNoRoom) {
  Open(MakeCausalCache(), 1, 9);
  ASSERT_EQ(Begin(), "");
  ASSERT_EQ(Forward(kTree), "");
  ASSERT_EQ(Forward(kTree), "") << "the cells of the drafts before are free";
  EXPECT_EQ(Forward({{{0, 3, 1}, {0, 3, 1}, {0, 3, 1}, {0, 3, 1}, {0, 3, 1}, {0, 3, 1}, {0, 3, 1}},
                     {},
                     {-1, -1, -1, -1, -1, -1, -1}}),
            "the batch needs 7 cells; 6 of 9 are free (max_sequences 1 x capacity 9)");
  EXPECT_EQ(Mask().size(), 6u) << "the pass continues";
}

TEST_F(DraftCacheTest, RefusedDraftsSayWhy) {
  Open(MakeCausalCache());
  ASSERT_EQ(Begin(), "");
  const std::vector<std::pair<TestBatch, std::string>> refused = {
      {{{{0, 3}, {0, 4}}, {}, {-1}},
       "the batch has 2 tokens and 1 parents; must be as many, or none"},
      {{{{0, 3}, {0, 4}}, {0}, {-1, 0}},
       "a batch of drafts has multimodal items; pass them in a batch without parents"},
      {{{{0, 3}, {0, 4}}, {}, {-1, 1}},
       "the parent of draft 1 is 1; must be a lower batch index, or -1 for the sequence's end"},
      {{{{0, 3}, {0, 4}}, {}, {-2, 0}},
       "the parent of draft 0 is -2; must be a lower batch index, or -1 for the sequence's end"},
      {{{{0, 3}, {1, 4}}, {}, {-1, 0}},
       "draft 1 is of sequence 1, its parent 0 of sequence 0; must be the same"},
      {{{{0, 3}, {0, 5}}, {}, {-1, 0}},
       "draft 1 is at position 5; must be one after its parent, which is at 3"},
      {{{{0, 3}, {0, 4}}, {}, {-1, -1}},
       "draft 1 has no parent and is at position 4; must be at 3, the end of sequence 0"},
  };
  for (const auto& [batch, message] : refused) EXPECT_EQ(Forward(batch), message);
  EXPECT_EQ(Mask().size(), 3u) << "the pass continues";
}

TEST_F(DraftCacheTest, RefusedChoicesSayWhyAndChangeNothing) {
  Open(MakeCausalCache());
  EXPECT_EQ(Keep({0}), kNoPass);
  ASSERT_EQ(Begin(), "");
  EXPECT_EQ(Keep({0}), kNoPass);
  ASSERT_EQ(Forward(kTree), "");
  EXPECT_EQ(Keep({6}), "draft 6 is not in the batch of 6");
  EXPECT_EQ(Keep({-1}), "draft -1 is not in the batch of 6");
  EXPECT_EQ(Keep({0, 4}),
            "drafts 0 and 4 are both of sequence 0; name only the last token of its path");
  const std::vector<std::int32_t> first = {0};
  EXPECT_EQ(cache_->SetCausal(first).code(), StatusCode::kUnsupported);
  EXPECT_EQ(Mask().size(), 6u);
  EXPECT_EQ(Keep({5}), "");
}

TEST_F(DraftCacheTest, AfterAFailedMoveNothingIsKept) {
  for (const bool wrapped : {false, true}) {
    if (wrapped) {
      WrapperOptions options;
      for (int i = 0; i < 2; ++i) options.caches.push_back(MakeCausalCache());
      options.cache_of_layer = {0, 1};
      Open(MakeWrapperCache(std::move(options)));
    } else {
      Open(MakeCausalCache());
    }
    ASSERT_EQ(Begin(), "");
    ASSERT_EQ(Forward(kTree), "");
    // The second copy is of the second layer, or of the wrapper's second cache.
    backend_.FailNth(ReferenceBackend::Call::kCopy, 2);
    EXPECT_FALSE(cache_->AcceptDrafts(std::vector<std::int32_t>{3}).ok());
    EXPECT_TRUE(cache_->Visible().positions.empty());
    EXPECT_EQ(Next(0, 3), "0@0=20 1@1=21 2@2=22 3@3=99 ");
    cache_->SetLayer(0);
    EXPECT_EQ(cache_->Visible().positions.size(), 1u);
  }
}

TEST_F(DraftCacheTest, AWrapperKeepsNothingWhereOneCacheCannot) {
  WrapperOptions options;
  options.caches.push_back(MakeCausalCache());
  options.caches.push_back(std::make_unique<OutsideKind>());
  options.cache_of_layer = {0, 1};
  Open(MakeWrapperCache(std::move(options)));
  ASSERT_EQ(Begin(), "");
  ASSERT_EQ(Forward(kTree), "");
  const Status status = cache_->AcceptDrafts(std::vector<std::int32_t>{3});
  EXPECT_EQ(status.message(), "this kind of cache takes no drafts");
  EXPECT_EQ(status.code(), StatusCode::kInternal) << "no refusal: the pass is over";
  EXPECT_EQ(Keep({3}), kNoPass);
  EXPECT_EQ(Next(0, 3), "0@0=20 1@1=21 2@2=22 3@3=99 ");
}

TEST_F(DraftCacheTest, WithoutTheSecondHalfNothingIsKept) {
  const std::vector<std::int32_t> last = {3};
  Open(MakeCausalCache());
  ASSERT_EQ(Begin(), "");
  ASSERT_EQ(Forward(kTree), "");
  auto& halves = dynamic_cast<TwoPhaseCache&>(*cache_);
  ASSERT_TRUE(halves.PrepareAccept(last).ok());
  EXPECT_EQ(halves.PrepareAccept(last).message(), kNoPass);
  EXPECT_TRUE(cache_->Visible().positions.empty());
  EXPECT_FALSE(cache_->Get().ok());
  EXPECT_EQ(Next(0, 3), "0@0=20 1@1=21 2@2=22 3@3=99 ");
}

TEST_F(DraftCacheTest, AWrapperEndsThePassInAllWithTheFirstHalf) {
  WrapperOptions options;
  options.caches.push_back(MakeEncoderCache({.max_tokens = 4}));
  options.caches.push_back(MakeCausalCache());
  options.cache_of_layer = {1, 1};
  Open(MakeWrapperCache(std::move(options)));
  ASSERT_EQ(Begin(), "");
  ASSERT_EQ(Forward(kTree), "");
  const std::vector<std::int32_t> last = {3};
  auto& halves = dynamic_cast<TwoPhaseCache&>(*cache_);
  ASSERT_TRUE(halves.PrepareAccept(last).ok());
  for (const int type : {0, 1}) {
    cache_->Wrapper()->SetLayerType(type);
    EXPECT_TRUE(cache_->Visible().positions.empty());
  }
  EXPECT_EQ(halves.PrepareAccept(last).code(), StatusCode::kInvalidArgument);
  halves.FinishAccept();
  EXPECT_EQ(Next(0, 5), "0@0=20 1@1=21 2@2=22 3@3=30 4@4=33 5@5=99 ");
}

// Many rounds, past the end of the ring: histories do not fragment if a sequence's share of
// max_batch suffices for its drafts.
TEST_F(DraftCacheTest, RingsOfAWindowStayTogether) {
  for (const int sequences : {1, 3}) {
    Open(MakeCausalCache({.window = 20}), sequences, 64, 30);
    Position length = 0;
    for (int round = 0; round < 60; ++round) {
      for (int s = 0; s < sequences; ++s) {
        const auto at = [&](Position after, std::uint32_t content) {
          return TestToken{s, length + after, content};
        };
        const TestBatch tree{
            {at(0, 30), at(0, 31), at(1, 32), at(1, 33), at(2, 34)}, {}, {-1, -1, 0, 1, 3}};
        ASSERT_EQ(Forward(tree), "");
        ASSERT_EQ(Keep({round % 3 == 0 ? 2 : 4}), "");
      }
      length += round % 3 == 0 ? 2 : 3;
      for (int s = 0; s < sequences; ++s) {
        const std::string next = Next(s, length);
        EXPECT_NE(next.find(round % 3 == 0 ? "=30" : "=31"), std::string::npos) << next;
        EXPECT_NE(next.find(round % 3 == 0 ? "=32" : "=33"), std::string::npos) << next;
        EXPECT_LE(cache_->Visible().histories[0].size(), 2u) << next << "round " << round;
        ASSERT_TRUE(cache_->Remove(SequenceId{s}, length, kEndOfSequence).ok());
      }
    }
  }
}

TEST_F(DraftCacheTest, AWindowSlidesOverPaths) {
  Open(MakeCausalCache({.window = 2}), 1);
  ASSERT_EQ(Begin(), "");
  ASSERT_EQ(Forward(kTree), "");
  const Visibility& visible = cache_->Visible();
  // On the path a c f the query f sees c and itself.
  EXPECT_EQ(visible.window, 2);
  EXPECT_EQ(visible.positions[5], 5);
  ASSERT_EQ(Keep({5}), "");
  EXPECT_TRUE(cache_->CanResume(SequenceId{0}, 6));
  EXPECT_EQ(Next(0, 6).substr(0, 2), "5@");
}

TEST_F(DraftCacheTest, RecurrentLayersNeedAReplay) {
  Open(MakeRecurrentCache({.layers = {0}, .state_size = 1}));
  const Status status = StartBatch(*cache_, {{{0, 0, 1}}, {}, {-1}});
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "a batch of drafts in recurrent layers; it needs RecurrentOptions::replay_drafts");
  EXPECT_EQ(cache_->AcceptDrafts({}).code(), StatusCode::kInvalidArgument);
}

TEST_F(DraftCacheTest, EncoderOutputsAreNoDrafts) {
  Open(MakeEncoderCache({.max_tokens = 4}));
  ASSERT_TRUE(StartBatch(*cache_, kTree).ok());
  const Status status = PutContents(*cache_, {{0, 0, 1}}, 0, kShape);
  EXPECT_EQ(status.message(),
            "Put of an encoder output in a pass of drafts; use a batch without parents");
  EXPECT_EQ(Keep({0, 1}),
            "drafts 0 and 1 are both of sequence 0; name only the last token of its path");
  EXPECT_EQ(Keep({3}), "");
}

}  // namespace
}  // namespace kvcache::draft_cache_test
