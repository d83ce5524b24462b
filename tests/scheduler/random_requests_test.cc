// Random requests in much and in little memory, with failures of the backend and of allocations: each
// has the bits of its text alone, and nothing leaks. Many have drafts, right and wrong, or of the model's head.
// KVCACHE_SCHEDULER_ROUNDS=N runs N times as many.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cpu_backend.h"
#include "kvcache_engine/head_drafter.h"
#include "support/counting_new.h"
#include "support/drafts/scripted_drafter.h"
#include "support/failing_backend.h"
#include "support/scheduler_fixture.h"

namespace kvcache::random_requests_test {
namespace {

using testing::AllocationFailurePending;
using testing::FailAllocation;
using testing::FailingBackend;
using testing::ScriptedDrafter;

enum class Failures { kNone, kBackend, kAllocations };

class RandomRequests : public SchedulerFixture {
 protected:
  static constexpr int kRequests = 40;  // of a round
  static constexpr int kRoundsThatFit = 4;
  static constexpr int kMinRoundsWithBudget = 4;   // there is seldom memory for drafts
  static constexpr int kMinRoundsWithParking = 4;  // few requests are parked
  static constexpr int kPoolForAll = 50000;

  static int Rounds() {
    const char* const rounds = std::getenv("KVCACHE_SCHEDULER_ROUNDS");
    return rounds == nullptr ? 1 : std::atoi(rounds);
  }
  int Pick(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }

  // The tests' own allocations do not fail.
  void BeforeCallback() override { FailAllocation(0); }

  std::unique_ptr<Backend> MakeBackend() {
    auto cpu = MakeCpuBackend({.threads = 2});
    EXPECT_TRUE(cpu.ok()) << cpu.status().message();
    auto backend = std::make_unique<FailingBackend>(std::move(cpu).value());
    backend_ = backend.get();
    return backend;
  }

  // Passes take random times, the same in each run, so that chunks have random sizes.
  std::function<double()> RandomClock() {
    return [this] { return now_ += 0.001 * static_cast<double>(of_clock_() % 64); };
  }

  // A pool whose memory goes back to the system, and a budget for some of the requests.
  void StartWithBudget() {
    StartWith({.threads = 2,
               .context = kContext,
               .max_sequences = 4,
               .pool_tokens = 4096,
               .releases_memory = true,
               .prefill_chunk = 32,
               .draft_head = Head()},
              {}, MakeBackend());
    const Cache& cache = engine_->cache();
    const SequenceLength sequence[] = {{SequenceId{0}, kContext}};
    budget_ = Held() + 3 * cache.memory()->GrowthOf(sequence, 2, 0);
    const SchedulerOptions options{.recompute_bound = 32,
                                   .budget_bytes = budget_,
                                   .free_memory_share = 0.0,
                                   .clock = RandomClock(),
                                   .look_up_drafts = drafts_};
    scheduler_.reset();
    auto scheduler = Scheduler::Make(*engine_, options);
    ASSERT_TRUE(scheduler.ok()) << scheduler.status().message();
    scheduler_ = std::move(scheduler).value();
  }

  // A new text, a longer one, an edited one, or one that was there before.
  Tokens MakePrompt() {
    Tokens prompt;
    if (!texts_.empty() && Pick(3) > 0) {
      prompt = texts_[static_cast<std::size_t>(Pick(static_cast<int>(texts_.size())))];
      if (Pick(3) > 0)
        prompt.resize(static_cast<std::size_t>(Pick(static_cast<int>(prompt.size()))));
    }
    if (prompt.size() > 199) prompt.resize(199);
    for (int more = 1 + Pick(80); more > 0 && prompt.size() < 200; --more) {
      prompt.push_back(3 + Pick(200));
    }
    return prompt;
  }

  void AskAtRandom() {
    ScheduledRequest request;
    request.salt = static_cast<std::uint64_t>(Pick(8) == 0 ? 1 : 0);
    const Tokens prompt = MakePrompt();
    if (Pick(2) == 0) request.restore_points.push_back(1 + Pick(static_cast<int>(prompt.size())));
    texts_.push_back(prompt);
    AddDrafts(prompt, request);
    Asked& asked = Ask(prompt, Pick(30), std::move(request));
    for (int steps = Pick(12); steps > 0; --steps) StepOnce();
    if (Pick(6) == 0) scheduler_->Cancel(asked.result.id);
    if (evicts_ && Pick(10) == 0) (void)scheduler_->prefixes().Evict(Pick(200));
  }

  // Many requests have drafts: of their own answer with some errors, or looked up.
  void AddDrafts(const Tokens& prompt, ScheduledRequest& request) {
    const auto pick = [&](unsigned bound) { return static_cast<int>(of_drafts_() % bound); };
    const bool greedy = pick(2) == 0;
    sampling_ = {.temperature = greedy ? 0.0f : 1.0f};
    if (!drafts_ || pick(4) == 0) {
      request.draft_tokens = 0;
      return;
    }
    request.draft_tokens = pick(18) - 1;
    if (engine_->has_draft_head() && pick(2) == 0) {
      request.drafter = std::shared_ptr<Drafter>(*MakeHeadDrafter(*engine_));
    } else if (greedy && pick(4) > 0) {
      request.drafter =
          std::make_shared<ScriptedDrafter>(WithGreedyAnswer(prompt, 30), alone_->vocabulary_size(),
                                            0.1 * pick(5), static_cast<unsigned>(pick(1000)));
    } else if (pick(2) == 0) {
      request.drafter = MakeLookupDrafter();
    }  // else the scheduler's own
  }

  bool StepOnce() {
    const bool fails = failures_ != Failures::kNone && Pick(12) == 0;
    if (fails && failures_ == Failures::kBackend) backend_->FailNth(1 + Pick(60));
    if (fails && failures_ == Failures::kAllocations) FailAllocation(1 + Pick(40));
    const auto more = scheduler_->Step();
    injected_ += fails && !backend_->failure_pending() && !AllocationFailurePending() ? 1 : 0;
    backend_->FailNth(0);
    FailAllocation(0);
    EXPECT_TRUE(more.ok()) << more.status().message();
    if (budget_ > 0) {
      EXPECT_LE(Held(), budget_);
    }
    return more.ok() && *more;
  }

  void Drain() {
    for (int steps = 0; StepOnce(); ++steps) ASSERT_LT(steps, 100000);
    for (const auto& asked : asked_) {
      ASSERT_TRUE(asked->done);
      const Status& status = asked->result.status;
      const bool injected =
          failures_ != Failures::kNone &&
          (status.code() == StatusCode::kIo || status.code() == StatusCode::kOutOfMemory);
      ASSERT_TRUE(status.ok() || injected) << status.message();
      failed_ += status.ok() ? 0 : 1;
      parked_ += asked->result.reuse.parked;
      restored_ += asked->result.reuse.restored > 0 ? 1 : 0;
      accepted_ += asked->result.speculation.accepted;
      const StatusCode error = asked->result.speculation.error.code();
      ASSERT_TRUE(error == StatusCode::kOk || error == StatusCode::kOutOfMemory ||
                  (failures_ == Failures::kBackend && error == StatusCode::kIo));
      if (bound_ > 0) {
        ASSERT_LE(asked->result.reuse.matched - asked->result.reuse.restored, bound_);
      }
      ExpectExact(*asked);
      if (asked->result.shifts == 0) {
        texts_.push_back(asked->prompt);
        texts_.back().insert(texts_.back().end(), asked->result.tokens.begin(),
                             asked->result.tokens.end());
      }
    }
    asked_.clear();
    while (texts_.size() > 60) texts_.erase(texts_.begin());
    ASSERT_EQ(scheduler_->prefixes().CheckStructure(), "");
  }

  // Families that have draft heads have one here.
  std::string Head() const {
    const std::string family = GetParam();
    return drafts_ && (family == "llama" || family == "qwen35" || family == "qwen3next") ? path_
                                                                                         : "";
  }
  void StartWithPool(int pool) {
    SchedulerOptions options{.clock = RandomClock(), .look_up_drafts = drafts_};
    StartWith({.threads = 2,
               .context = kContext,
               .max_sequences = 4,
               .pool_tokens = pool,
               .prefill_chunk = 32,
               .draft_head = Head()},
              std::move(options), MakeBackend());
  }
  void RunRandomRequests(int pool, Failures failures) {
    StartWithPool(pool);
    RunRounds(failures);
  }
  void RunWithBudget(Failures failures) {
    StartWithBudget();
    RunRounds(failures, kMinRoundsWithBudget);
  }
  void RunRounds(Failures failures, int min = 1) {
    failures_ = failures;
    for (int round = 0; round < std::max(Rounds(), min) && !HasFatalFailure(); ++round) {
      for (int request = 0; request < kRequests; ++request) AskAtRandom();
      Drain();
      // The prefixes of more rounds would not fit.
      if (bound_ > 0 && round % kRoundsThatFit == kRoundsThatFit - 1 && !HasFatalFailure()) {
        EXPECT_EQ(scheduler_->prefixes().Stats().evicted_tokens, 0);
        ExpectNothingLeaks();
        texts_.clear();
        StartWithPool(kPoolForAll);
      }
    }
    if (!HasFatalFailure()) ExpectNothingLeaks();
    EXPECT_GT(restored_, 0);
    if (drafts_ && failures == Failures::kNone) {
      EXPECT_GT(accepted_, 0);
    }
  }

  std::mt19937 random_{7};
  std::mt19937 of_drafts_{7};
  std::mt19937 of_clock_{7};
  double now_ = 0.0;  // seconds
  Failures failures_ = Failures::kNone;
  FailingBackend* backend_ = nullptr;  // the engine's
  std::vector<Tokens> texts_;
  bool evicts_ = true;
  bool drafts_ = true;
  Position bound_ = 0;       // 0: not checked
  std::int64_t budget_ = 0;  // 0: none
  int parked_ = 0;
  int restored_ = 0;
  int failed_ = 0;
  int injected_ = 0;
  std::int64_t accepted_ = 0;  // drafts
};

// Nothing is evicted, so no request computes more of its known tokens again than the bound.
TEST_P(RandomRequests, InMemoryForAll) {
  bound_ = 32;
  evicts_ = false;
  RunRandomRequests(kPoolForAll, Failures::kNone);
}
TEST_P(RandomRequests, WithoutDrafts) {
  drafts_ = false;
  RunRandomRequests(700, Failures::kNone);
}
TEST_P(RandomRequests, InAmpleMemory) {
  RunRandomRequests(0, Failures::kNone);
}
TEST_P(RandomRequests, InMemoryForTwoAndAHalf) {
  RunRandomRequests(700, Failures::kNone);
}
TEST_P(RandomRequests, InMemoryForOne) {
  StartWithPool(300);
  RunRounds(Failures::kNone, kMinRoundsWithParking);
  EXPECT_GT(parked_, 0);
}
TEST_P(RandomRequests, OnABackendThatFails) {
  RunRandomRequests(400, Failures::kBackend);
  EXPECT_GT(injected_, 0);
}
TEST_P(RandomRequests, WithAllocationsThatFail) {
  RunRandomRequests(400, Failures::kAllocations);
  EXPECT_GT(injected_, 0);
}
TEST_P(RandomRequests, WithABudget) {
  RunWithBudget(Failures::kNone);
}
TEST_P(RandomRequests, WithABudgetOnABackendThatFails) {
  RunWithBudget(Failures::kBackend);
  EXPECT_GT(injected_, 0);
}
TEST_P(RandomRequests, WithABudgetAndAllocationsThatFail) {
  RunWithBudget(Failures::kAllocations);
  EXPECT_GT(injected_, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, RandomRequests,
                         ::testing::Values("llama", "gemma3", "llama4", "qwen3next", "lfm2",
                                           "granitehybrid", "mamba2", "nemotron_h", "qwen35"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvcache::random_requests_test
