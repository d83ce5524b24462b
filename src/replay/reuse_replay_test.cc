// Replays of small traces: what is reused, what is held, and that all tokens are accounted for.
#include "replay/reuse_replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>

#include "replay/block_baselines.h"
#include "replay/sample_trace.h"

namespace kvcache::reuse_replay_test {
namespace {

std::int64_t MissedTokens(const ReplayReport& report, std::string_view reason = "") {
  std::int64_t tokens = 0;
  for (const ReplayMiss& miss : report.missed) {
    if (reason.empty() || miss.reason == reason) tokens += miss.tokens;
  }
  return tokens;
}

ReplayReport Replay(const Trace& trace, std::int64_t budget, int slots = 1) {
  auto report =
      ReplayWithoutModel(trace, {.budget_tokens = budget, .slots = slots, .max_batch = 100});
  EXPECT_TRUE(report.ok()) << report.status().message();
  if (!report.ok()) return {};
  EXPECT_EQ(report->prompt_tokens, trace.PromptTokens());
  EXPECT_EQ(report->reused_tokens + MissedTokens(*report), report->prompt_tokens);
  EXPECT_LE(report->peak_tokens, budget);
  EXPECT_LE(report->prefixes.tokens, budget);
  return *std::move(report);
}

TEST(ReuseReplay, AmpleBudgetReusesWhatAnUnlimitedCacheReuses) {
  for (const int block_size : {16, 64, 512}) {
    const Trace trace = MakeSampleTrace(1, 600, block_size);
    const UnlimitedReuse unlimited = ReusedByUnlimited(trace);
    const ReplayReport report = Replay(trace, unlimited.held_tokens + 20000);
    EXPECT_GE(report.reused_tokens, unlimited.reused_tokens * 98 / 100);
    EXPECT_EQ(report.evicted_tokens, 0);
    EXPECT_EQ(MissedTokens(report, "evicted"), 0);
    EXPECT_GE(report.peak_tokens, report.prefixes.tokens);
    EXPECT_EQ(report.peak_bytes, 0) << "there is no memory for keys and values";
  }
}

// States of windows and recurrent layers restore at their own length only.
TEST(ReuseReplay, ExactStatesBoundWhatIsComputedAgain) {
  for (const int block_size : {100, 512, 3000}) {
    const Trace trace = MakeSampleTrace(6, 300, block_size);
    for (const int slots : {1, 5}) {
      const auto report = ReplayWithoutModel(
          trace, {.budget_tokens = 1 << 24, .slots = slots, .max_batch = 700, .divisible = false});
      ASSERT_TRUE(report.ok()) << report.status().message();
      EXPECT_LE(report->max_recomputed, 512);
      EXPECT_GT(report->reused_tokens, 0);
      EXPECT_EQ(report->reused_tokens + MissedTokens(*report), report->prompt_tokens);
      EXPECT_EQ(report->evicted_tokens, 0);
    }
  }
}

TEST(ReuseReplay, SmallBudgetsAreKept) {
  const Trace trace = MakeSampleTrace(2, 600, 64);
  std::int64_t before = -1;
  for (const std::int64_t budget : {2000, 8000, 32000}) {
    const ReplayReport report = Replay(trace, budget);
    EXPECT_GT(report.reused_tokens, before);
    EXPECT_GT(report.evicted_tokens, 0);
    if (budget == 2000) {
      EXPECT_GT(MissedTokens(report, "evicted"), 0);
    }
    before = report.reused_tokens;
  }
}

TEST(ReuseReplay, SlotsShareTheBudget) {
  const Trace trace = MakeSampleTrace(3, 400, 32);
  for (const int slots : {2, 7, 64}) {
    const ReplayReport ample = Replay(trace, 1 << 20, slots);
    EXPECT_GE(ample.reused_tokens, ReusedByUnlimited(trace).reused_tokens * 98 / 100);
    // Fewer tokens than the live requests would need together: they wait.
    const ReplayReport small = Replay(trace, 4000, slots);
    EXPECT_EQ(small.too_large, 0);
  }
}

TEST(ReuseReplay, RequestsLargerThanTheBudgetAreNotKept) {
  Trace trace{.block_size = 100, .distinct = 3};
  trace.requests = {{.seconds = 0, .input = 100, .output = 10, .blocks = {0}},
                    {.seconds = 1, .input = 250, .output = 0, .blocks = {0, 1, 2}},
                    {.seconds = 2, .input = 100, .output = 10, .blocks = {0}}};
  const ReplayReport report = Replay(trace, 200);
  EXPECT_EQ(report.too_large, 1);
  EXPECT_EQ(MissedTokens(report, "larger than the budget"), 250);
  EXPECT_EQ(report.reused_tokens, 99) << "all but the last token";
  EXPECT_EQ(MissedTokens(report, "last token"), 1);
  EXPECT_EQ(report.peak_tokens, 121) << "the last token of the prompt has two cells";
}

TEST(ReuseReplay, CanBeInterrupted) {
  const Trace trace = MakeSampleTrace(4, 10, 32);
  const std::atomic<bool> interrupt = true;
  const auto report =
      ReplayWithoutModel(trace, {.budget_tokens = 1000, .max_batch = 64, .interrupt = &interrupt});
  EXPECT_EQ(report.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(report.status().message(), "interrupted after 0 of 10 requests");
}

TEST(ReuseReplay, RefusesABudgetThatIsNoNumberOfCells) {
  const Trace trace = MakeSampleTrace(5, 10, 32);
  EXPECT_EQ(ReplayWithoutModel(trace, {.budget_tokens = 0}).status().message(),
            "the budget is 0 tokens; must be from 1 to 2147483647");
}

// Blocks of 10 tokens; two conversations take turns, and a third prompt comes once.
Trace Turns() {
  Trace trace{.block_size = 10, .distinct = 7};
  const auto add = [&](Position input, Position output, std::vector<std::uint32_t> blocks) {
    trace.requests.push_back({.input = input, .output = output, .blocks = std::move(blocks)});
  };
  add(25, 5, {0, 1, 2});
  add(20, 5, {3, 4});
  add(25, 5, {0, 1, 2});
  add(20, 5, {5, 6});
  add(20, 5, {3, 4});
  return trace;
}

TEST(BlockBaselines, CountWholeBlocksAndPartialLastOnes) {
  const Trace trace = Turns();
  const UnlimitedReuse unlimited = ReusedByUnlimited(trace);
  EXPECT_EQ(unlimited.reused_tokens, 45);
  EXPECT_EQ(unlimited.held_tokens, 65 + 25);
  EXPECT_EQ(ReusedByLastPrompts(trace, 1), 0);
  EXPECT_EQ(ReusedByLastPrompts(trace, 2), 25);
  EXPECT_EQ(ReusedByLastPrompts(trace, 3), 45);
}

TEST(BlockBaselines, LetGoOfTheOldestOrOfTheFurthest) {
  const Trace trace = Turns();
  // With 55 tokens the fourth request takes the place of the second one's blocks, or of its own.
  EXPECT_EQ(ReusedByLeastRecentlyUsed(trace, 55), 25);
  EXPECT_EQ(ReusedByOptimum(trace, 55), 45);
  EXPECT_EQ(ReusedByLeastRecentlyUsed(trace, 90), 45);
  EXPECT_EQ(ReusedByLeastRecentlyUsed(trace, 0), 0);
  EXPECT_EQ(ReusedByOptimum(trace, 0), 0);
}

TEST(BlockBaselines, AreOrderedOnRandomTraces) {
  for (std::uint32_t seed = 1; seed <= 5; ++seed) {
    const Trace trace = MakeSampleTrace(seed, 400, 32);
    const std::int64_t unlimited = ReusedByUnlimited(trace).reused_tokens;
    for (const std::int64_t budget : {500, 2000, 8000, 1 << 20}) {
      const std::int64_t least_recent = ReusedByLeastRecentlyUsed(trace, budget);
      const std::int64_t optimum = ReusedByOptimum(trace, budget);
      EXPECT_LE(least_recent, optimum);
      EXPECT_LE(optimum, unlimited);
    }
    EXPECT_EQ(ReusedByOptimum(trace, 1 << 20), unlimited);
  }
}

}  // namespace
}  // namespace kvcache::reuse_replay_test
