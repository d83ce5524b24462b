// The causal cache: sequences, the cells they take, and the ranges that they lose.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/causal/causal_cache_testing.h"

namespace kvcache::causal_cache_test {
namespace {

TEST_F(CausalCacheTest, PrefillAndDecodeOfOneSequence) {
  Open(F32Options(1, 8));
  EXPECT_EQ(Forward({{0, 0, 10}, {0, 1, 11}, {0, 2, 12}}), (Rows{"0..",  //
                                                                 "00.",  //
                                                                 "000"}));
  EXPECT_EQ(Forward({{0, 3, 13}}), (Rows{"0000"}));
  EXPECT_EQ(Forward({{0, 4, 14}, {0, 5, 15}}), (Rows{"00000.",  //
                                                     "000000"}));
  EXPECT_EQ(Cells(), "0@0 1@1 2@2 3@3 4@4 5@5");
}

TEST_F(CausalCacheTest, SequencesGrowFromTheirPreferredCellsAndSeeThemselvesOnly) {
  Open(F32Options(2, 4));
  EXPECT_EQ(Forward({{0, 0, 1}, {1, 0, 2}, {0, 1, 3}, {1, 1, 4}}), (Rows{"0.....",  //
                                                                         "....0.",  //
                                                                         "00....",  //
                                                                         "....00"}));
  EXPECT_EQ(Cells(0), "0@0 1@1");
  EXPECT_EQ(Cells(1), "0@4 1@5");
  // The history begins at the first visible cell.
  EXPECT_EQ(Forward({{1, 2, 5}}), (Rows{"000"}));
  EXPECT_EQ(Cells(), "0@4 1@5 2@6");
}

TEST_F(CausalCacheTest, PositionsInAnyOrderSeeByPosition) {
  Open(F32Options(1, 8));
  EXPECT_EQ(Forward({{0, 2, 1}, {0, 0, 2}, {0, 1, 3}}), (Rows{"000",  //
                                                              "0..",  //
                                                              "00."}));
  // A gap is filled later: position 4 comes before 3, and 3 does not see it.
  EXPECT_EQ(Forward({{0, 4, 4}}), (Rows{"000.0"}));
  EXPECT_EQ(Forward({{0, 3, 5}}), (Rows{"0000"}));
  EXPECT_EQ(Forward({{0, 5, 6}}), (Rows{"000000"}));
}

TEST_F(CausalCacheTest, PaddingIsHidden) {
  CacheConfig config;
  config.cell_padding = 4;
  config.batch_padding = 3;
  Open(F32Options(2, 7), config);                                  // 14 cells become 16
  EXPECT_EQ(Forward({{1, 0, 1}, {1, 1, 2}}), (Rows{"...0....",     // cell 7 is the first one seen,
                                                   "...00...",     // 4 the multiple below,
                                                   "........"}));  // a row of padding
  EXPECT_EQ(Forward({{0, 0, 3}}), (Rows{"0...", "....", "...."}));
}

TEST_F(CausalCacheTest, PrefixIsSharedAndGrowsApart) {
  Open(F32Options(2, 4));
  Forward({{0, 0, 1}, {0, 1, 2}, {0, 2, 3}});
  ASSERT_TRUE(cache_->CopyPrefix(SequenceId{0}, SequenceId{1}, 2).ok());
  // Sequence 1 sees cells 0 and 1, not 2; its own token goes to its preferred cell, 4 + 2.
  EXPECT_EQ(Forward({{1, 2, 9}, {0, 3, 4}}), (Rows{"00....0",  //
                                                   "0000..."}));
  // Either sequence may be removed without the other.
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 0, kEndOfSequence).ok());
  EXPECT_EQ(Forward({{1, 3, 10}}), (Rows{"00....00"}));
  EXPECT_EQ(Forward({{0, 0, 11}}),
            (Rows{"0"}));  // the preferred cell 0 is taken, 2 is the next free one
  EXPECT_EQ(Cells(), "0@2");
}

TEST_F(CausalCacheTest, TruncationFreesCells) {
  Open(F32Options(1, 4));
  Forward({{0, 0, 1}, {0, 1, 2}, {0, 2, 3}, {0, 3, 4}});
  EXPECT_EQ(Forward({{0, 4, 5}}), (Rows{"cache full"}));
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 2, kEndOfSequence).ok());
  EXPECT_EQ(Forward({{0, 2, 6}}), (Rows{"000"}));
  // An end past the last token truncates, too.
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 1, 3).ok());
  EXPECT_EQ(Forward({{0, 1, 7}}), (Rows{"00"}));
  // So is a copy onto itself.
  ASSERT_TRUE(cache_->CopyPrefix(SequenceId{0}, SequenceId{0}, 1).ok());
  EXPECT_EQ(Forward({{0, 1, 8}}), (Rows{"00"}));
}

TEST_F(CausalCacheTest, MiddleRemovalMovesPositionsDownAndRotatesKeys) {
  Open(F32Options(1, 8));
  Forward({{0, 0, 10}, {0, 1, 11}, {0, 2, 12}, {0, 3, 13}, {0, 4, 14}});
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 1, 3).ok());
  EXPECT_EQ(Forward({{0, 3, 15}}), (Rows{"0..000"}));
  EXPECT_EQ(Cells(), "0@0 1@3 2@4 3@5");
  auto history = cache_->Get();
  ASSERT_TRUE(history.ok());
  std::vector<float> turned = KeyContent(13, 0, kShape);
  testing::RotateKey(std::span(turned).first(4), -2, kRope);
  for (int d = 0; d < 4; ++d) {
    EXPECT_EQ(KeyAt(*history, 3, 0, d), turned[d]);
    EXPECT_EQ(KeyAt(*history, 0, 0, d), KeyContent(10, 0, kShape)[d]);
  }
  for (int d = 0; d < 3; ++d) {
    EXPECT_EQ(ValueAt(*history, false, 3, 0, d), ValueContent(13, 0, kShape)[d]);
  }
}

TEST_F(CausalCacheTest, MiddleRemovalCopiesWhatOthersSee) {
  Open(F32Options(2, 4));
  Forward({{0, 0, 10}, {0, 1, 11}, {0, 2, 12}});
  ASSERT_TRUE(cache_->CopyPrefix(SequenceId{0}, SequenceId{1}, 3).ok());
  ASSERT_TRUE(cache_->Remove(SequenceId{1}, 0, 1).ok());
  // Sequence 1's tokens were copied to its preferred cells; sequence 0 keeps its cells and bytes.
  EXPECT_EQ(Forward({{1, 2, 13}, {0, 3, 14}}), (Rows{"....000",  //
                                                     "0000..."}));
  auto history = cache_->Get();
  ASSERT_TRUE(history.ok());
  std::vector<float> turned = KeyContent(11, 0, kShape);
  testing::RotateKey(std::span(turned).first(4), -1, kRope);
  for (int d = 0; d < 4; ++d) {
    EXPECT_EQ(KeyAt(*history, 4, 0, d), turned[d]);
    EXPECT_EQ(KeyAt(*history, 1, 0, d), KeyContent(11, 0, kShape)[d]);
  }
}

TEST_F(CausalCacheTest, MiddleRemovalWithoutRoomForCopiesChangesNothing) {
  Open(F32Options(2, 2));
  Forward({{0, 0, 1}, {0, 1, 2}, {0, 2, 3}, {0, 3, 4}});
  ASSERT_TRUE(cache_->CopyPrefix(SequenceId{0}, SequenceId{1}, 4).ok());
  const Status status = cache_->Remove(SequenceId{1}, 0, 1);
  EXPECT_EQ(status.code(), StatusCode::kCacheFull);
  EXPECT_EQ(status.message(),
            "removing a middle range copies 3 shared cells; 0 of 4 cells are free");
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 3, kEndOfSequence).ok());  // still shares 0 … 2
  ASSERT_TRUE(cache_->Remove(SequenceId{1}, 3, kEndOfSequence).ok());
  EXPECT_EQ(Forward({{1, 3, 5}}), (Rows{"0000"}));
}

TEST_F(CausalCacheTest, MiddleRemovalNeedsAShiftFunction) {
  auto cache = MakeCausalCache();
  ASSERT_TRUE(cache->Init(backend_, F32Options(1, 8)).ok());
  ASSERT_TRUE(StartForward(*cache, {{0, 0, 1}, {0, 1, 2}, {0, 2, 3}}).ok());
  const Status status = cache->Remove(SequenceId{0}, 0, 1);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(
      status.message(),
      "positions [0, 1) of 3 are a middle range; removing them needs CausalOptions::shift_keys");
  EXPECT_EQ(cache->Visible().positions.size(), 3u);  // the pass continues
  EXPECT_TRUE(cache->CanResume(SequenceId{0}, 3));
  EXPECT_TRUE(cache->Remove(SequenceId{0}, 1, 3).ok());  // reaches the end: a truncation
}

TEST_F(CausalCacheTest, CanResumeUpToTheEnd) {
  Open(F32Options(2, 8));
  Forward({{0, 0, 1}, {0, 1, 2}});
  const struct {
    int sequence;
    Position position;
    bool expected;
  } kCases[] = {{0, 0, true}, {0, 1, true},  {0, 2, true},  {0, 3, false}, {0, -1, false},
                {1, 0, true}, {1, 1, false}, {2, 0, false}, {-1, 0, false}};
  for (const auto& c : kCases) {
    EXPECT_EQ(cache_->CanResume(SequenceId{c.sequence}, c.position), c.expected)
        << c.sequence << " " << c.position;
  }
}

TEST_F(CausalCacheTest, RefusedBatchesChangeNothing) {
  Open(F32Options(2, 4, /*max_batch=*/3));
  ASSERT_EQ(Forward({{0, 0, 1}, {0, 1, 2}}), (Rows{"0.", "00"}));
  const struct {
    Tokens tokens;
    StatusCode code;
    std::string message;
  } kCases[] = {
      {{}, StatusCode::kInvalidArgument, "the batch is empty; must have at least 1 token"},
      {{{1, 0}, {1, 1}, {1, 2}, {1, 3}},
       StatusCode::kInvalidArgument,
       "the batch has 4 tokens; max_batch is 3"},
      {{{2, 0}}, StatusCode::kInvalidArgument, "sequence 2 is not in [0, 2)"},
      {{{-1, 0}}, StatusCode::kInvalidArgument, "sequence -1 is not in [0, 2)"},
      {{{0, -1}}, StatusCode::kInvalidArgument, "position is -1; must be in [0, 2147483647)"},
      {{{0, kEndOfSequence}},
       StatusCode::kInvalidArgument,
       "position is 2147483647; must be in [0, 2147483647)"},
      {{{0, 2}, {0, 1}},
       StatusCode::kInvalidArgument,
       "token 1 of the batch is at position 1, which sequence 0 already holds; Remove it first"},
      {{{0, 2}, {1, 0}, {0, 2}},
       StatusCode::kInvalidArgument,
       "tokens 0 and 2 of the batch are both at position 2 of sequence 0; give parents if they are "
       "alternatives"},
  };
  for (const auto& c : kCases) {
    const Status status = StartForward(*cache_, c.tokens);
    EXPECT_EQ(status.code(), c.code) << c.message;
    EXPECT_EQ(status.message(), c.message);
    EXPECT_EQ(Mask(), (Rows{"0.", "00"})) << "the pass in progress continues";
  }
  const Status twice = StartForward(*cache_, {{1, 5}, {0, 2}, {1, 5}});
  EXPECT_EQ(twice.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Forward({{0, 2, 3}}), (Rows{"000"}));
}

TEST_F(CausalCacheTest, FullCacheSaysTheNumbers) {
  Open(F32Options(2, 3));
  Forward({{0, 0, 1}, {0, 1, 2}, {0, 2, 3}, {0, 3, 4}});  // may use cells of the other's share
  const Status status = StartForward(*cache_, {{1, 0}, {1, 1}, {1, 2}});
  EXPECT_EQ(status.code(), StatusCode::kCacheFull);
  EXPECT_EQ(status.message(),
            "the batch needs 3 cells; 2 of 6 are free (max_sequences 2 x capacity 3)");
  EXPECT_EQ(Mask(), (Rows{"0...", "00..", "000.", "0000"}));
  EXPECT_EQ(Forward({{1, 0, 5}, {1, 1, 6}}), (Rows{"0.", "00"}));
}

TEST_F(CausalCacheTest, ReservePassSeesEverythingAndChangesNothing) {
  CacheConfig config;
  config.cell_padding = 4;
  config.batch_padding = 4;
  Open(F32Options(2, 3), config);
  Forward({{0, 0, 7}});
  const std::vector<float> before = testing::ReadKey(*cache_->Storage(), 0);
  const Tokens batch{{0, 0, 8}, {1, 0, 9}};  // a held position is no error here
  ASSERT_TRUE(StartForward(*cache_, batch, ForwardMode::kReserve).ok());
  ASSERT_TRUE(PutContents(*cache_, batch, 0, kShape).ok());
  EXPECT_EQ(Mask(), (Rows{"00000000", "00000000", "........", "........"}));
  EXPECT_EQ(testing::ReadKey(*cache_->Storage(), 0), before);
  // The reserving pass allocates the layer.
  EXPECT_EQ(cache_->memory()->AllocatedBytes(), 16 * 2 * (4 + 3) * 4);
  ASSERT_TRUE(PutContents(*cache_, batch, 1, kShape).ok());
  EXPECT_EQ(cache_->memory()->AllocatedBytes(), 2 * 16 * 2 * (4 + 3) * 4);
  EXPECT_TRUE(cache_->CanResume(SequenceId{0}, 1));
  EXPECT_FALSE(cache_->CanResume(SequenceId{1}, 1));
  EXPECT_EQ(Forward({{0, 1, 8}}), (Rows{"00..", "....", "....", "...."}));
}

TEST_F(CausalCacheTest, APoolOfItsOwnSizeIsSharedByAllSequences) {
  CacheOptions options = F32Options(2, 4);
  options.cells = 10;
  Open(options);
  EXPECT_EQ(cache_->memory()->FreeCells(), 10);
  Forward({{0, 0, 1}, {0, 1, 2}, {0, 2, 3}, {0, 3, 4}, {0, 4, 5}, {0, 5, 6}, {0, 6, 7}, {0, 7, 8}});
  EXPECT_EQ(cache_->memory()->FreeCells(), 2);
  auto kept = cache_->snapshots()->TakeSnapshot(SequenceId{0}, 0, 3);
  ASSERT_TRUE(kept.ok());
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 0, kEndOfSequence).ok());
  EXPECT_EQ(cache_->memory()->FreeCells(), 7);
  kept->reset();
  EXPECT_EQ(cache_->memory()->FreeCells(), 10);
  EXPECT_EQ(cache_->memory()->UsedBytes(), 0);
  options.cells = 7;
  const Status status = MakeCausalCache()->Init(backend_, options);
  EXPECT_EQ(status.message(), "cells is 7; must be 0, or at least max_batch, 8");
}

TEST_F(CausalCacheTest, RefusedRemovalsAndCopies) {
  Open(F32Options(2, 4));
  Forward({{0, 0, 1}, {0, 1, 2}});
  EXPECT_EQ(cache_->Remove(SequenceId{2}, 0, 1).message(), "sequence 2 is not in [0, 2)");
  EXPECT_EQ(cache_->Remove(SequenceId{0}, -1, 1).message(),
            "the range of positions is [-1, 1); begin must be at least 0, and end at least begin");
  EXPECT_EQ(cache_->Remove(SequenceId{0}, 2, 1).message(),
            "the range of positions is [2, 1); begin must be at least 0, and end at least begin");
  EXPECT_EQ(cache_->CopyPrefix(SequenceId{0}, SequenceId{5}, 1).message(),
            "sequence 5 is not in [0, 2)");
  EXPECT_EQ(cache_->CopyPrefix(SequenceId{-3}, SequenceId{0}, 1).message(),
            "sequence -3 is not in [0, 2)");
  EXPECT_EQ(cache_->CopyPrefix(SequenceId{0}, SequenceId{1}, -1).message(),
            "prefix length is -1; must be at least 0");
  EXPECT_EQ(Mask(), (Rows{"0.", "00"}));
}

TEST_F(CausalCacheTest, ChangingASequenceEndsThePass) {
  Open(F32Options(2, 4));
  const Tokens tokens{{0, 0, 1}, {0, 1, 2}};
  Forward(tokens);
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 1, kEndOfSequence).ok());
  EXPECT_TRUE(cache_->Visible().positions.empty());
  EXPECT_EQ(PutContents(*cache_, tokens, 0, kShape).message(),
            "Put outside a forward pass; call StartForward first");
  EXPECT_EQ(cache_->Get().status().message(),
            "Get outside a forward pass; call StartForward first");
  EXPECT_TRUE(cache_->Storage().ok());
}

TEST_F(CausalCacheTest, EndPassKeepsTokensAndDropsNothingElse) {
  Open(F32Options(1, 8));
  cache_->EndPass();  // outside a pass: no effect
  Forward({{0, 0, 1}, {0, 1, 2}});
  cache_->EndPass();
  EXPECT_TRUE(cache_->Visible().positions.empty());
  EXPECT_TRUE(cache_->CanResume(SequenceId{0}, 2));
}

}  // namespace
}  // namespace kvcache::causal_cache_test
