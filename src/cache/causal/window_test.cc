// Windows, retained tokens and chunks: masks that can be checked by hand, evictions, and refused
// options.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cache/causal/causal_cache_impl.h"
#include "support/cache_harness.h"
#include "support/reference_backend.h"

namespace kvcache::window_test {
namespace {

using testing::MaskRows;
using testing::PutContents;
using testing::ReferenceBackend;
using testing::StartForward;
using testing::TestToken;
using Rows = std::vector<std::string>;
using Tokens = std::vector<TestToken>;

constexpr KvShape kShape{.kv_heads = 1, .k_dim = 2, .v_dim = 2};

class WindowTest : public ::testing::Test {
 protected:
  void Open(CausalOptions causal, int sequences, int capacity, int max_batch,
            const CacheConfig& config = {}) {
    causal.shift_keys = [](int, const LayerKv&, std::span<const CellRun>, Position) {
      return Status::Ok();
    };
    cache_ = std::make_unique<CausalCache>(std::move(causal));
    CacheOptions options{DType::kF32, DType::kF32, sequences, capacity, max_batch};
    options.config = config;
    const Status status = cache_->Init(backend_, options);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // Runs a pass over one layer. Returns the mask, or the error.
  Rows Forward(const Tokens& tokens, const std::vector<std::int32_t>& except = {}) {
    Status status = StartForward(*cache_, tokens);
    if (status.ok() && !except.empty()) status = cache_->SetCausal(except);
    if (status.ok()) status = PutContents(*cache_, tokens, 0, kShape);
    if (!status.ok()) return {status.message()};
    return Mask();
  }
  Rows Mask() {
    auto history = cache_->Get();
    return history.ok() ? MaskRows(history->mask) : Rows{history.status().message()};
  }
  // Evaluates tokens of sequence 0, one per pass.
  void Decode(Position begin, Position end) {
    for (Position p = begin; p < end; ++p) ASSERT_TRUE(StartForward(*cache_, {{0, p}}).ok()) << p;
  }
  // Returns the cells of a sequence as "position@cell".
  std::string Cells(int sequence) const {
    return testing::CellsText(cache_->cells().history(SequenceId{sequence}).runs());
  }

  ReferenceBackend backend_;
  std::unique_ptr<CausalCache> cache_;
};

TEST_F(WindowTest, AQuerySeesItsWindowItselfIncluded) {
  Open({.window = 3}, 1, 16, 6);
  EXPECT_EQ(Forward({{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}}), (Rows{"0....",  //
                                                                     "00...",  //
                                                                     "000..",  //
                                                                     ".000.",  //
                                                                     "..000"}));
  // Position 5 sees 3 and 4; positions up to 5 - 3 = 2 are evicted.
  EXPECT_EQ(Forward({{0, 5}}), (Rows{"000"}));
  EXPECT_EQ(Cells(0), "3@3 4@4 5@5");
}

TEST_F(WindowTest, ARingKeepsWindowAndBatch) {
  Open({.window = 3}, 1, 1000, 2);
  EXPECT_EQ(cache_->cells().cells(), 3 + 2);
  Decode(0, 7);
  // The ring has wrapped around: position 5 has cell 0, the former cell of position 0.
  EXPECT_EQ(Cells(0), "4@4 5@0 6@1");
  // 7 sees 5, 6, 7; 8 sees 6, 7, 8; 4 is evicted.
  EXPECT_EQ(Forward({{0, 7}, {0, 8}}), (Rows{"000.",  //
                                             ".000"}));
  EXPECT_EQ(Cells(0), "5@0 6@1 7@2 8@3");
  Decode(9, 500);
  EXPECT_EQ(cache_->cells().free_cells(), 2);
}

TEST_F(WindowTest, RetainedTokensAreKeptButNotSeen) {
  Open({.window = 2, .retained_tokens = 4}, 1, 100, 1);
  EXPECT_EQ(cache_->cells().cells(), 4 + 1);
  Decode(0, 6);
  EXPECT_EQ(Cells(0), "2@2 3@3 4@4 5@0");
  PutContents(*cache_, {{0, 5}}, 0, kShape).ok();
  EXPECT_EQ(Mask(), (Rows{"0...0"}));  // 5 is in cell 0, 4 in cell 4
  // 6 needs 5; 4 needs 3; 3 needs 2; 2 needs 1, which was evicted.
  const struct {
    Position position;
    bool expected;
  } kCases[] = {{6, true}, {7, false}, {4, true}, {3, true}, {2, false}, {0, false}, {-1, false}};
  for (const auto& c : kCases) {
    EXPECT_EQ(cache_->CanResume(SequenceId{0}, c.position), c.expected) << c.position;
  }
  EXPECT_EQ(*cache_->PrepareRestore(SequenceId{0}, 4), 4);
  EXPECT_EQ(*cache_->PrepareRestore(SequenceId{0}, 9), 6);
  EXPECT_EQ(*cache_->PrepareRestore(SequenceId{0}, 1), 0);
}

TEST_F(WindowTest, AnotherSequenceIsMeasuredFromItsEnd) {
  // With two sequences, window + 1 tokens are retained, the next one included.
  Open({.window = 2}, 2, 100, 4);
  EXPECT_EQ(cache_->cells().cells(), 2 * 3 + 4);
  ASSERT_TRUE(StartForward(*cache_, {{0, 0}, {0, 1}, {0, 2}, {0, 3}}).ok());
  EXPECT_EQ(Cells(0), "0@0 1@1 2@2 3@3");
  ASSERT_TRUE(StartForward(*cache_, {{1, 0}}).ok());  // 0 ends at 4: 2 and 3 stay
  EXPECT_EQ(Cells(0), "2@2 3@3");
  // A sequence can go back over its stop token.
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 3, kEndOfSequence).ok());
  EXPECT_TRUE(cache_->CanResume(SequenceId{0}, 3));
}

TEST_F(WindowTest, ASharedCellStaysForWhoStillSeesIt) {
  Open({.window = 2, .retained_tokens = 3}, 2, 100, 4);
  ASSERT_TRUE(StartForward(*cache_, {{0, 0}, {0, 1}, {0, 2}}).ok());
  ASSERT_TRUE(cache_->CopyPrefix(SequenceId{0}, SequenceId{1}, 3).ok());
  for (Position p = 3; p < 6; ++p) ASSERT_TRUE(StartForward(*cache_, {{0, p}}).ok());
  EXPECT_EQ(Cells(1), "1@1 2@2");
  EXPECT_EQ(cache_->cells().ref_count(1), 1);
  EXPECT_EQ(Forward({{1, 3}}), (Rows{"0.....0"}));  // 2 in cell 2, and itself at its preferred cell
}

TEST_F(WindowTest, EvictionMakesRoomBeforeTheClaim) {
  Open({.window = 2}, 1, 100, 3);
  ASSERT_TRUE(StartForward(*cache_, {{0, 0}, {0, 1}, {0, 2}}).ok());
  EXPECT_EQ(cache_->cells().free_cells(), 2);
  ASSERT_TRUE(StartForward(*cache_, {{0, 3}, {0, 4}, {0, 5}}).ok());  // evicts 0 and 1
  EXPECT_EQ(cache_->cells().free_cells(), 1);
  // A batch at lower positions evicts nothing, and the cells do not suffice. Nothing changes.
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 5, kEndOfSequence).ok());
  const std::string before = Cells(0);
  const Status status = StartForward(*cache_, {{0, 0}, {0, 1}, {0, 7}});
  EXPECT_EQ(status.code(), StatusCode::kCacheFull);
  EXPECT_EQ(status.message(),
            "the batch needs 3 cells; 2 of 5 are free (max_sequences 1 x retained_tokens 2 + "
            "max_batch 3)");
  EXPECT_EQ(Cells(0), before);
}

TEST_F(WindowTest, RetainingTheCapacityKeepsEverythingBehindTheSameMask) {
  Open({.window = 2, .retained_tokens = 8}, 1, 8, 4);
  EXPECT_EQ(cache_->cells().cells(), 8);
  Decode(0, 5);
  EXPECT_EQ(Forward({{0, 5}}), (Rows{"00"}));
  EXPECT_EQ(Cells(0), "0@0 1@1 2@2 3@3 4@4 5@5");
  for (Position p = 0; p <= 6; ++p) EXPECT_TRUE(cache_->CanResume(SequenceId{0}, p)) << p;
}

TEST_F(WindowTest, ChunksBeginAnew) {
  Open({.chunk = 3}, 1, 16, 8);
  EXPECT_EQ(Forward({{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 5}, {0, 6}}), (Rows{"0......",  //
                                                                                     "00.....",  //
                                                                                     "000....",  //
                                                                                     "...0...",  //
                                                                                     "...00..",  //
                                                                                     "...000.",  //
                                                                                     "......0"}));
  EXPECT_TRUE(cache_->CanResume(SequenceId{0}, 2));  // everything is kept
}

TEST_F(WindowTest, ChunkAndWindowBothHold) {
  Open({.window = 2, .chunk = 4}, 1, 5, 5);
  EXPECT_EQ(Forward({{0, 2}, {0, 3}, {0, 4}, {0, 5}}), (Rows{"0...",  //
                                                             "00..",  //
                                                             "..0.",  //
                                                             "..00"}));
}

TEST_F(WindowTest, ExemptQueriesSeeLaterTokensOfTheirWindow) {
  Open({.window = 3}, 1, 16, 6);
  const Tokens image{{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}};
  EXPECT_EQ(Forward(image, {1, 3}), (Rows{"0....",  //
                                          "00000",  // all later ones
                                          "000..",  //
                                          ".0000",  // from 1 on: the window still applies
                                          "..000"}));
  // Another call in the same pass rebuilds the mask; the next pass has none.
  ASSERT_TRUE(cache_->SetCausal(std::vector<std::int32_t>{0}).ok());
  EXPECT_EQ(Mask(), (Rows{"00000", "00...", "000..", ".000.", "..000"}));
  ASSERT_TRUE(cache_->SetCausal({}).ok());
  EXPECT_EQ(Mask(), (Rows{"0....", "00...", "000..", ".000.", "..000"}));
  EXPECT_EQ(Forward({{0, 5}}), (Rows{"000"}));
}

TEST_F(WindowTest, RefusedExemptions) {
  Open({}, 1, 16, 6);
  EXPECT_EQ(cache_->SetCausal({}).message(),
            "SetCausal outside a forward pass; call StartForward first");
  ASSERT_TRUE(StartForward(*cache_, {{0, 0}, {0, 1}}).ok());
  EXPECT_EQ(cache_->SetCausal(std::vector<std::int32_t>{2}).message(),
            "query 2 is not in the batch of 2");
  EXPECT_EQ(cache_->SetCausal(std::vector<std::int32_t>{-1}).message(),
            "query -1 is not in the batch of 2");
}

TEST_F(WindowTest, PaddingRoundsTheRingUp) {
  CacheConfig config;
  config.cell_padding = 4;
  config.batch_padding = 2;
  Open({.window = 3}, 1, 100, 2, config);
  EXPECT_EQ(cache_->cells().cells(), 8);  // 3 + 2, rounded up
  EXPECT_EQ(Forward({{0, 0}}), (Rows{"0...", "...."}));
}

// Removing a middle range moves the kept tokens down. Evicted tokens do not come back.
TEST_F(WindowTest, MiddleRemovalAndTheWindow) {
  Open({.window = 3, .retained_tokens = 6}, 1, 100, 1);
  Decode(0, 10);
  EXPECT_EQ(Cells(0).substr(0, 3), "4@4");
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 1, 3).ok());  // evicted already: everything moves down
  EXPECT_EQ(cache_->cells().history(SequenceId{0}).runs().front().position, 2);
  EXPECT_TRUE(cache_->CanResume(SequenceId{0}, 8));
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 3, 7).ok());  // 2 and 7 → 3 stay
  EXPECT_FALSE(cache_->CanResume(SequenceId{0}, 3)) << "1 is needed";
  EXPECT_TRUE(cache_->CanResume(SequenceId{0}, 4));
}

TEST_F(WindowTest, BytesAreThoseOfTheWindow) {
  constexpr int kContext = 4096;
  Open({.window = 128}, 1, kContext, 32);
  ASSERT_TRUE(StartForward(*cache_, {{0, 0, 1}}).ok());
  ASSERT_TRUE(PutContents(*cache_, {{0, 0, 1}}, 0, kShape).ok());
  EXPECT_EQ(cache_->memory()->AllocatedBytes(), (128 + 32) * 4 * 4);
  Open({}, 1, kContext, 32);
  ASSERT_TRUE(StartForward(*cache_, {{0, 0, 1}}).ok());
  ASSERT_TRUE(PutContents(*cache_, {{0, 0, 1}}, 0, kShape).ok());
  EXPECT_EQ(cache_->memory()->AllocatedBytes(), kContext * 4 * 4);
}

TEST_F(WindowTest, RefusedOptions) {
  const struct {
    CausalOptions causal;
    std::string message;
  } kCases[] = {
      {{.window = 4, .retained_tokens = 3}, "retained_tokens is 3; must be at least the window, 4"},
      {{.retained_tokens = 3}, "retained_tokens is 3 without a window; must be 0, or set a window"},
      {{.window = -1}, "window is -1; must be at least 0"},
      {{.chunk = -2}, "chunk is -2; must be at least 0"},
  };
  for (const auto& c : kCases) {
    const auto cache = MakeCausalCache(c.causal);
    const Status status = cache->Init(backend_, {DType::kF32, DType::kF32, 1, 8, 2});
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), c.message);
  }
}

TEST_F(WindowTest, CompactionFillsHolesAndKeepsBytes) {
  Open({}, 3, 4, 4);
  ASSERT_TRUE(StartForward(*cache_, {{0, 0, 1}, {0, 1, 2}, {1, 0, 3}, {2, 0, 4}}).ok());
  ASSERT_TRUE(PutContents(*cache_, {{0, 0, 1}, {0, 1, 2}, {1, 0, 3}, {2, 0, 4}}, 0, kShape).ok());
  EXPECT_EQ(Cells(0) + ", " + Cells(1) + ", " + Cells(2), "0@0 1@1, 0@4, 0@8");
  ASSERT_TRUE(cache_->memory()->Compact().ok());
  EXPECT_EQ(Cells(0) + ", " + Cells(1) + ", " + Cells(2), "0@0 1@1, 0@2, 0@3");
  EXPECT_EQ(testing::ReadKey(*cache_->Storage(), 3), testing::KeyContent(4, 0, kShape));
  EXPECT_EQ(cache_->Get().status().message(),
            "Get outside a forward pass; call StartForward first");
  backend_.FailNth(ReferenceBackend::Call::kCopy, 1);
  ASSERT_TRUE(cache_->Remove(SequenceId{0}, 0, kEndOfSequence).ok());
  EXPECT_EQ(cache_->memory()->Compact().message(), "injected failure of a copy");
  EXPECT_EQ(Cells(1) + ", " + Cells(2), "0@2, 0@3");
}

TEST_F(WindowTest, EvictWindowEvictsWithoutAPass) {
  Open({.window = 3}, 2, 100, 8);
  const std::vector<SequenceLength> members = {{SequenceId{0}, 2}};
  Forward({{0, 0, 1}, {0, 1, 2}});
  Cache* const caches[] = {cache_.get()};
  auto round = Transaction::Begin(caches, members, {.max_tokens = 6});
  ASSERT_TRUE(round.ok());
  Forward({{0, 2, 3}, {0, 3, 4}, {0, 4, 5}, {0, 5, 6}});
  EXPECT_EQ(cache_->EvictWindow(SequenceId{0}).message(),
            "sequence 0 is in a transaction; commit it or roll it back first");
  ASSERT_TRUE(round->Commit({4}).ok());
  EXPECT_TRUE(cache_->CanResume(SequenceId{0}, 3)) << "the commit has evicted nothing";
  ASSERT_TRUE(cache_->EvictWindow(SequenceId{0}).ok());
  EXPECT_EQ(cache_->Length(SequenceId{0}), 6);
  EXPECT_TRUE(cache_->CanResume(SequenceId{0}, 6));
  EXPECT_TRUE(cache_->CanResume(SequenceId{0}, 5)) << "one goes back over a stop token";
  EXPECT_FALSE(cache_->CanResume(SequenceId{0}, 4));
  EXPECT_EQ(cache_->EvictWindow(SequenceId{2}).message(), "sequence 2 is not in [0, 2)");
}

// The newest token stays: the length is known from it.
TEST_F(WindowTest, EvictWindowKeepsTheLength) {
  Open({.window = 1}, 1, 100, 8);
  Forward({{0, 0, 1}, {0, 1, 2}});
  ASSERT_TRUE(cache_->EvictWindow(SequenceId{0}).ok());
  EXPECT_EQ(cache_->Length(SequenceId{0}), 2);
  EXPECT_EQ(Forward({{0, 2, 3}}), (Rows{"0"}));
}

}  // namespace
}  // namespace kvcache::window_test
