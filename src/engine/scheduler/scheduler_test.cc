// The scheduler on models of every kind.
#include "kvcache_engine/scheduler.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/drafts/scripted_drafter.h"
#include "support/scheduler_fixture.h"

namespace kvcache::scheduler_test {
namespace {

class SchedulerTest : public SchedulerFixture {};

TEST_P(SchedulerTest, ASecondPromptContinuesWhereTheFirstEnded) {
  Start(2, 0);
  const Tokens prompt = SomeTokens(150);
  Asked& first = Ask(prompt, 5);
  RunAll();
  ASSERT_TRUE(first.result.status.ok()) << first.result.status.message();
  EXPECT_EQ(first.result.reuse.restored, 0);
  EXPECT_EQ(first.result.tokens.size(), 5U);
  Tokens next = prompt;
  next.insert(next.end(), first.result.tokens.begin(), first.result.tokens.end());
  next.push_back(9);
  Asked& second = Ask(next, 5);
  Tokens edited = prompt;
  edited.resize(100);
  edited.push_back(200);
  Asked& third = Ask(edited, 5);
  RunAll();
  EXPECT_EQ(second.result.reuse.restored, 154);
  EXPECT_EQ(second.result.reuse.prompt, 156);
  EXPECT_GE(third.result.reuse.restored, 100 - 32);
  EXPECT_EQ(third.result.reuse.matched, 100);
  EXPECT_EQ(third.result.reuse.difference.position, 100);
  EXPECT_EQ(third.result.reuse.difference.prompt, 200U);
  for (const auto& asked : asked_) ExpectExact(*asked);
  ExpectNothingLeaks();
}

TEST_P(SchedulerTest, ARequestSaysWhatItReusesBeforeItsFirstToken) {
  Start(1, 0);
  const Tokens prompt = SomeTokens(150);
  for (int i = 0; i < 2; ++i) {
    std::vector<ReuseReport> started;
    ScheduledRequest request;
    request.on_started = [&](const ReuseReport& reuse) { started.push_back(reuse); };
    request.on_token = [&](std::int32_t) { return started.size() == 1; };
    const Asked& asked = Ask(prompt, 4, std::move(request));
    EXPECT_TRUE(started.empty());
    RunAll();
    ASSERT_EQ(started.size(), 1U);
    EXPECT_EQ(asked.result.tokens.size(), 4U);
    EXPECT_EQ(started[0].prompt, 150);
    EXPECT_EQ(started[0].restored, asked.result.reuse.restored);
    EXPECT_EQ(started[0].matched, asked.result.reuse.matched);
    EXPECT_EQ(started[0].restored > 0, i == 1);
  }
}

TEST_P(SchedulerTest, TwoRequestsWithTheSameNewPrefixComputeItOnce) {
  Start(3, 0);
  Tokens a = SomeTokens(200);
  Tokens b = a;
  a.push_back(7);
  b.push_back(8);
  const Asked& first = Ask(a, 3);
  const Asked& second = Ask(b, 3);
  RunAll();
  EXPECT_EQ(first.result.reuse.restored, 0);
  EXPECT_GE(second.result.reuse.restored, 200 - 32);
  for (const auto& asked : asked_) ExpectExact(*asked);
}

TEST_P(SchedulerTest, ACancelledPromptKeepsWhatItComputed) {
  Start(1, 0);
  const Tokens prompt = SomeTokens(200);
  const Asked& first = Ask(prompt, 3);
  ASSERT_TRUE(*scheduler_->Step());
  ASSERT_TRUE(*scheduler_->Step());
  ASSERT_TRUE(*scheduler_->Step());
  scheduler_->Cancel(first.result.id);
  RunAll();
  EXPECT_EQ(first.result.stop, StopReason::kInterrupted);
  const Asked& second = Ask(prompt, 3);
  RunAll();
  EXPECT_EQ(second.result.reuse.restored, 96);
  ExpectExact(second);
}

TEST_P(SchedulerTest, RequestsArriveFromAnyThread) {
  Start(2, 0);
  std::atomic<bool> stop{false};
  std::atomic<int> done{0};
  std::thread engine_thread([&] { EXPECT_TRUE(scheduler_->Run(stop).ok()); });
  std::vector<std::thread> users;
  constexpr int kUsers = 3;
  constexpr int kEach = 8;
  for (int user = 0; user < kUsers; ++user) {
    users.emplace_back([&, user] {
      for (int i = 0; i < kEach; ++i) {
        ScheduledRequest request;
        request.prompt = SomeTokens(40 + user, 3 + i);
        request.max_tokens = 4;
        request.on_done = [&](const RequestResult& result) {
          EXPECT_TRUE(result.status.ok()) << result.status.message();
          ++done;
        };
        const auto id = scheduler_->Submit(std::move(request));
        ASSERT_TRUE(id.ok()) << id.status().message();
        if (i % 3 == 0) scheduler_->Cancel(*id);
      }
    });
  }
  for (std::thread& user : users) user.join();
  while (done < kUsers * kEach) std::this_thread::yield();
  stop = true;
  scheduler_->Wake();
  engine_thread.join();
  EXPECT_EQ(scheduler_->live() + scheduler_->waiting(), 0U);
  ExpectNothingLeaks();
}

TEST_P(SchedulerTest, BadRequestsAreRefused) {
  Start(1, 0);
  const auto message = [&](ScheduledRequest request) {
    return scheduler_->Submit(std::move(request)).status().message();
  };
  EXPECT_EQ(message({}), "the prompt is empty");
  EXPECT_EQ(message({.prompt = Tokens(kContext + 1, 3)}),
            "the prompt has 257 tokens, the context holds 256");
  EXPECT_NE(message({.prompt = {-1}}).find("token -1 is not in the vocabulary"), std::string::npos);
  EXPECT_EQ(message({.prompt = {3, 4}, .restore_points = {2, 1}}),
            "a restore point at 1 after one at 2; they must ascend within the prompt of 2");
  EXPECT_EQ(Scheduler::Make(*engine_, {.step_tokens = 33}).status().message(),
            "a step has 33 tokens; must be in [0, 32]");
  EXPECT_FALSE(*scheduler_->Step());
}

TEST_P(SchedulerTest, ASchedulerLeavesNothingInItsEngine) {
  Start(1, 0);
  Ask(SomeTokens(200), 3);
  ASSERT_TRUE(*scheduler_->Step());
  scheduler_.reset();
  const Position lengths[] = {40};
  Cache& cache = engine_->cache();
  EXPECT_TRUE(cache.snapshots()->ScheduleCaptures(SequenceId{0}, kEachFromZero, lengths).ok());
  cache.snapshots()->CancelCaptures(SequenceId{0});
  EXPECT_EQ(cache.memory()->FreeCells(), Open(engine_->options())->cache().memory()->FreeCells());
}

TEST_P(SchedulerTest, APromptContinuesBesideMoreDecodesThanAStepHolds) {
  Start(3, 0, {.step_tokens = 2});
  Ask({3, 4}, 200);
  Ask({5, 6}, 200);
  while (asked_[0]->logits.empty() || asked_[1]->logits.empty()) ASSERT_TRUE(*scheduler_->Step());
  const Asked& late = Ask(SomeTokens(4), 1);
  int steps = 0;
  while (!late.done && steps < 20) {
    ASSERT_TRUE(*scheduler_->Step());
    ++steps;
  }
  EXPECT_TRUE(late.done);
  RunAll();
  for (const auto& asked : asked_) ExpectExact(*asked);
}

TEST_P(SchedulerTest, AFullContextIsShiftedOrEndsTheRequest) {
  Start(2, 0);
  const Asked& shifted = Ask(SomeTokens(250), 40);
  const Asked& ends = Ask(SomeTokens(250, 9), -1);
  RunAll();
  EXPECT_TRUE(shifted.result.status.ok()) << shifted.result.status.message();
  EXPECT_GE(shifted.result.shifts, 1);
  EXPECT_LE(ends.result.tokens.size(), 7U);
  ExpectNothingLeaks();
}

TEST_P(SchedulerTest, NoStepLeavesTheCacheAboveItsBudget) {
  const EngineOptions options{.threads = 2,
                              .context = kContext,
                              .max_sequences = 4,
                              .pool_tokens = 4096,
                              .releases_memory = true,
                              .prefill_chunk = 32};
  int parked = 0;
  std::int64_t drafted = 0;
  for (unsigned seed = 1; seed <= 30; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int bound) {
      return static_cast<int>(random() % static_cast<unsigned>(bound));
    };
    scheduler_.reset();
    engine_ = Open(options);
    Cache& cache = engine_->cache();
    ASSERT_TRUE(cache.memory()->ReleaseFreeMemory().ok());
    // Two contexts, at least.
    const SequenceLength two[] = {{SequenceId{0}, kContext}, {SequenceId{1}, kContext}};
    const std::int64_t budget = Held() + cache.memory()->GrowthOf(two, 6, 0) * (seed % 3 + 2) / 2;
    auto scheduler = Scheduler::Make(
        *engine_, {.recompute_bound = 32, .budget_bytes = budget, .free_memory_share = 0.0});
    ASSERT_TRUE(scheduler.ok()) << scheduler.status().message();
    scheduler_ = std::move(scheduler).value();
    const auto step = [&] {
      const bool more = *scheduler_->Step();
      EXPECT_LE(scheduler_->Stats().max_held_bytes, budget) << "seed " << seed;
      return more;
    };
    for (int request = 0; request < 10; ++request) {
      Tokens prompt = SomeTokens(1 + pick(200), 3 + pick(4));
      ScheduledRequest asked;
      if (pick(2) == 0) {  // drafts need rows of logits, and inputs of recurrent layers
        asked.draft_tokens = 1 + pick(16);
        asked.drafter = std::make_shared<testing::ScriptedDrafter>(
            WithGreedyAnswer(prompt, 20), engine_->vocabulary_size(), 0.3, seed);
      }
      Ask(prompt, pick(30), std::move(asked));
      for (int steps = pick(8); steps > 0; --steps) step();
    }
    for (int steps = 0; step(); ++steps) ASSERT_LT(steps, 20000) << "seed " << seed;
    for (const auto& asked : asked_) {
      ASSERT_TRUE(asked->done);
      EXPECT_TRUE(asked->result.status.ok()) << asked->result.status.message();
      parked += asked->result.reuse.parked;
      drafted += asked->result.speculation.drafted;
      ExpectExact(*asked);
    }
    asked_.clear();
    while (scheduler_->prefixes().Evict(1 << 20) >= 0) {
    }
    ASSERT_TRUE(cache.memory()->ReleaseFreeMemory().ok());
    EXPECT_LT(cache.memory()->ResidentBytes(), budget);
  }
  RecordProperty("parked", parked);
  EXPECT_GT(drafted, 0);
}

// The last layers are on a machine of its own memory, as with a GPU: the pool is fixed, and a budget counts the cells in
// use on both sides. Requests wait or are parked, prefixes go, and answers stay exact.
TEST_P(SchedulerTest, ABudgetCountsTheCellsOfAnotherMachine) {
  const EngineOptions options{.threads = 1,
                              .context = kContext,
                              .max_sequences = 4,
                              .pool_tokens = 4096,
                              .prefill_chunk = 32};
  const auto held = [&](std::int64_t budget) {
    auto cpu = [] { return std::move(MakeCpuBackend({.threads = 1})).value(); };
    StartWith(options, {.budget_bytes = budget, .free_memory_share = 0.0},
              std::make_unique<SplitBackend>(cpu(),
                                             std::make_unique<testing::RemoteBackend>(
                                                 cpu(), testing::RemoteRouting::kByBackend),
                                             1));
    asked_.clear();
    for (int i = 0; i < 4; ++i) Ask(SomeTokens(150, 3 + 7 * i), 20);
    RunAll();
    for (const auto& asked : asked_) {
      EXPECT_TRUE(asked->result.status.ok()) << asked->result.status.message();
      ExpectExact(*asked);
    }
    const std::int64_t most = scheduler_->Stats().max_held_bytes;
    ExpectNothingLeaks();
    return most;
  };
  const std::int64_t all = held(0);
  const std::int64_t budget = all * 3 / 5;
  const std::int64_t most = held(budget);
  EXPECT_LT(most, all);
  if (std::string(GetParam()) == "llama") {
    EXPECT_LE(most, budget);
  }
}

// A budget that goes down and up between steps: requests are parked and continue, and nothing is above it.
TEST_P(SchedulerTest, ABudgetMayChangeAtAnyTime) {
  engine_ = Open({.threads = 2,
                  .context = kContext,
                  .max_sequences = 4,
                  .pool_tokens = 4096,
                  .releases_memory = true,
                  .prefill_chunk = 32});
  ASSERT_TRUE(engine_->cache().memory()->ReleaseFreeMemory().ok());
  const std::int64_t min = Scheduler::MinBudget(*engine_);
  auto scheduler = Scheduler::Make(*engine_, {.recompute_bound = 32, .free_memory_share = 0.0});
  ASSERT_TRUE(scheduler.ok()) << scheduler.status().message();
  scheduler_ = std::move(scheduler).value();
  std::mt19937 random(11);
  std::int64_t budget = 0;
  const auto step = [&] {
    const bool more = *scheduler_->Step();
    EXPECT_TRUE(budget == 0 || scheduler_->Stats().held_bytes <= budget);
    return more;
  };
  int lowered = 0;
  for (int request = 0; request < 40; ++request) {
    Ask(SomeTokens(100 + static_cast<int>(random() % 120), 3 + static_cast<int>(random() % 5)), 20);
    for (auto steps = random() % 12; steps > 0; --steps) step();
    const std::int64_t before = Held();
    budget = request % 3 == 2 ? 0 : min + static_cast<std::int64_t>(random() % 3) * min / 2;
    const std::int64_t held = scheduler_->SetBudget(budget);
    EXPECT_EQ(held, scheduler_->Stats().held_bytes);
    EXPECT_TRUE(budget == 0 || held <= budget) << held << " of " << budget;
    lowered += held < before ? 1 : 0;
  }
  for (int steps = 0; step(); ++steps) ASSERT_LT(steps, 20000);
  EXPECT_GT(lowered, 0);
  std::int64_t parked = 0;
  for (const auto& asked : asked_) {
    ASSERT_TRUE(asked->done);
    EXPECT_TRUE(asked->result.status.ok()) << asked->result.status.message();
    parked += asked->result.reuse.parked;
    ExpectExact(*asked);
  }
  EXPECT_GT(parked, 0);
}

TEST_P(SchedulerTest, ABudgetBelowTheBuffersOfPassesIsRefused) {
  engine_ = Open({.context = kContext, .pool_tokens = 4096, .releases_memory = true});
  const std::int64_t fixed = Held();
  EXPECT_GT(engine_->WorkspaceBytes(), 0);
  EXPECT_EQ(Scheduler::Make(*engine_, {.budget_bytes = fixed}).status().message(),
            "the budget is " + std::to_string(fixed) +
                " bytes; the empty cache and the buffers of passes take " + std::to_string(fixed));
  EXPECT_TRUE(Scheduler::Make(*engine_, {.budget_bytes = fixed + (1 << 20)}).ok());
}

// The machine has no memory, always or for a moment: requests continue one by one.
TEST_P(SchedulerTest, NothingFailsWhenTheMachineRunsShort) {
  for (const bool always : {true, false}) {
    StartWith({.threads = 2,
               .context = kContext,
               .max_sequences = 4,
               .pool_tokens = 4096,
               .releases_memory = true,
               .prefill_chunk = 32},
              {});
    scheduler_.reset();
    int reads = 0;
    auto scheduler = Scheduler::Make(*engine_, {.recompute_bound = 32, .available_memory = [&] {
                                                  ++reads;
                                                  return always || reads < 3 ? 0 : 1 << 30;
                                                }});
    ASSERT_TRUE(scheduler.ok()) << scheduler.status().message();
    scheduler_ = std::move(scheduler).value();
    ScheduledRequest request;
    request.restore_points = {40, 80, 120};
    for (int i = 0; i < 8; ++i) Ask(SomeTokens(150 + i, 3 + i % 3), 20, request);
    RunAll();
    EXPECT_GT(reads, 0);
    for (const auto& asked : asked_) {
      ASSERT_TRUE(asked->result.status.ok()) << asked->result.status.message();
      ExpectExact(*asked);
    }
    asked_.clear();
  }
}

TEST_P(SchedulerTest, AReleasingPoolFollowsHalfOfTheFreeMemory) {
  StartWith({.threads = 2,
             .context = kContext,
             .max_sequences = 4,
             .pool_tokens = 4096,
             .releases_memory = true,
             .prefill_chunk = 32},
            {});
  Cache& cache = engine_->cache();
  const SequenceLength one[] = {{SequenceId{0}, kContext}};
  std::int64_t whole = 4 * (Held() + 2 * cache.memory()->GrowthOf(one, 4, 0));
  scheduler_.reset();
  // The cache's share and what is left are the machine's memory together.
  auto scheduler = Scheduler::Make(
      *engine_, {.recompute_bound = 32, .available_memory = [&] { return whole - Held(); }});
  ASSERT_TRUE(scheduler.ok()) << scheduler.status().message();
  scheduler_ = std::move(scheduler).value();
  for (int request = 0; request < 12; ++request) {
    const Asked& asked = Ask(SomeTokens(150, 3 + request), 20);
    while (!asked.done) {
      ASSERT_TRUE(scheduler_->Step().ok());
      EXPECT_LE(Held(), whole / 2);
    }
    ASSERT_TRUE(asked.result.status.ok()) << asked.result.status.message();
    ExpectExact(asked);
  }
}

// States at its restore points would keep the request from its end.
TEST_P(SchedulerTest, ALoneRequestEndsInMemoryForItsOwnState) {
  engine_ = Open({.threads = 2,
                  .context = kContext,
                  .max_sequences = 2,
                  .pool_tokens = 4096,
                  .releases_memory = true,
                  .prefill_chunk = 32});
  Cache& cache = engine_->cache();
  const SequenceLength one[] = {{SequenceId{0}, kContext}};
  const std::int64_t budget = Held() + cache.memory()->GrowthOf(one, 4, 0);
  auto scheduler = Scheduler::Make(
      *engine_, {.recompute_bound = 16, .budget_bytes = budget, .free_memory_share = 0.0});
  ASSERT_TRUE(scheduler.ok()) << scheduler.status().message();
  scheduler_ = std::move(scheduler).value();
  ScheduledRequest request;
  request.restore_points = {40, 80, 120, 160};
  const Asked& asked = Ask(SomeTokens(200), 40, std::move(request));
  for (int steps = 0; *scheduler_->Step(); ++steps) {
    ASSERT_LT(steps, 1000);
    EXPECT_LE(Held(), budget);
  }
  ASSERT_TRUE(asked.result.status.ok()) << asked.result.status.message();
  if (std::string(GetParam()) == "qwen3next") {
    EXPECT_GT(asked.result.reuse.recomputed, 0);
  }
  ExpectExact(asked);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SchedulerTest,
                         ::testing::Values("llama", "gemma3", "llama4", "qwen3next", "lfm2"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvcache::scheduler_test
