// Prefixes of a scheduler that come back from a store: the bits are those of a cold run, other requests go
// on while a store answers, and no error of a store reaches a request.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/persist/prefix_store.h"
#include "store/store_testing.h"
#include "support/scheduler_fixture.h"

namespace kvcache::scheduler_store_test {
namespace {

using Fault = FaultyStore::Fault;

class SchedulerStoreTest : public SchedulerFixture {
 protected:
  static constexpr int kLong = 1600;

  void SetUp() override {
    SchedulerFixture::SetUp();
    alone_ = Open({.threads = 2, .context = kLong, .prefill_chunk = 256});
  }
  void TearDown() override {
    scheduler_.reset();
    engine_.reset();
    SchedulerFixture::TearDown();
  }
  static EngineOptions Options() {
    return {.threads = 2, .context = kLong, .max_sequences = 3, .prefill_chunk = 200};
  }
  std::shared_ptr<Store> Disk() {
    auto disk = OpenDiskStore({.directory = directory_.path()});
    EXPECT_TRUE(disk.ok()) << disk.status().message();
    return std::move(*disk);
  }
  // Begins anew, as a process that was started again.
  void Restart(const std::shared_ptr<Store>& store, const EngineOptions& options = Options(),
               int recompute_bound = 512) {
    scheduler_.reset();
    engine_ = Open(options);
    const Status used = engine_->UseStore(store);
    ASSERT_TRUE(used.ok()) << used.message();
    auto scheduler = Scheduler::Make(*engine_, {.recompute_bound = recompute_bound});
    ASSERT_TRUE(scheduler.ok()) << scheduler.status().message();
    scheduler_ = std::move(*scheduler);
  }
  void Restart() { Restart(Disk()); }
  void RunAndFlush() {
    RunAll();
    EXPECT_EQ(engine_->FlushStore(), "");
  }
  static void ExpectWholeReport(const Asked& asked) {
    const ReuseReport& reuse = asked.result.reuse;
    Position missed = 0;
    for (const PrefixMiss& miss : reuse.missed) missed += miss.tokens;
    EXPECT_EQ(reuse.restored + reuse.computed, reuse.prompt);
    EXPECT_EQ(missed, reuse.computed);
    EXPECT_LE(reuse.stored, reuse.restored);
    EXPECT_LE(reuse.restored, reuse.matched);
  }

  TestDirectory directory_;
};

TEST_P(SchedulerStoreTest, APromptComesBackAfterARestart) {
  const Tokens prompt = SomeTokens(1203);
  Restart();
  const Asked& first = Ask(prompt, 5);
  RunAndFlush();
  EXPECT_EQ(first.result.reuse.stored, 0);
  EXPECT_EQ(first.result.reuse.store_problem, "");

  Restart();
  const Asked& second = Ask(prompt, 5);
  RunAndFlush();
  EXPECT_GE(second.result.reuse.stored, 1200 - 16);
  EXPECT_EQ(second.result.reuse.restored, second.result.reuse.stored);

  // The answer is a prefix too, and a part of the prompt.
  Restart();
  Tokens next = prompt;
  next.insert(next.end(), second.result.tokens.begin(), second.result.tokens.end());
  for (const std::int32_t token : SomeTokens(90, 9)) next.push_back(token);
  const Asked& third = Ask(next, 3);
  Tokens other(prompt.begin(), prompt.begin() + 1100);
  for (const std::int32_t token : SomeTokens(60, 7)) other.push_back(token);
  const Asked& fourth = Ask(other, 3);
  RunAndFlush();
  EXPECT_GE(third.result.reuse.stored, 1200 - 16);
  EXPECT_GE(fourth.result.reuse.restored, 1024);
  for (const auto& asked : asked_) {
    ExpectExact(*asked);
    ExpectWholeReport(*asked);
  }
  ExpectNothingLeaks();
}

// What the process has itself is not asked of the store, and the store has what goes beyond.
TEST_P(SchedulerStoreTest, AStoreContinuesWhereTheProcessEnds) {
  const Tokens prompt = SomeTokens(1203);
  Restart();
  Ask(prompt, 0);
  RunAndFlush();
  Restart();
  Ask(Tokens(prompt.begin(), prompt.begin() + 600), 0);
  RunAndFlush();
  const Asked& whole = Ask(prompt, 0);
  RunAndFlush();
  EXPECT_GE(whole.result.reuse.restored, 1200 - 16);
  EXPECT_GT(whole.result.reuse.stored, 0);
  const std::int64_t objects = engine_->prefix_store()->store().Stats()->objects;
  const Asked& again = Ask(prompt, 0);
  RunAndFlush();
  EXPECT_EQ(again.result.reuse.stored, 0);
  EXPECT_EQ(engine_->prefix_store()->store().Stats()->objects, objects);
  for (const auto& asked : asked_) {
    ExpectExact(*asked);
    ExpectWholeReport(*asked);
  }
}

TEST_P(SchedulerStoreTest, AnotherSaltIsAMiss) {
  const Tokens prompt = SomeTokens(300);
  Restart();
  ScheduledRequest request;
  request.salt = 7;
  Ask(prompt, 2, request);
  RunAndFlush();
  Restart();
  const Asked& none = Ask(prompt, 2);
  RunAndFlush();
  request.salt = 8;
  const Asked& other = Ask(prompt, 2, request);
  RunAndFlush();
  EXPECT_EQ(none.result.reuse.stored + other.result.reuse.stored, 0);
  request.salt = 7;
  const Asked& same = Ask(prompt, 2, request);
  RunAndFlush();
  EXPECT_GT(same.result.reuse.stored, 0);
  for (const auto& asked : asked_) ExpectExact(*asked);
}

TEST_P(SchedulerStoreTest, AMissSaysWhichPartDiffers) {
  const Tokens prompt = SomeTokens(700);
  Restart();
  Ask(prompt, 1);
  RunAndFlush();
  EngineOptions options = Options();
  options.k_type = DType::kF32;
  Restart(Disk(), options);
  ScheduledRequest request;
  request.prompt = prompt;
  request.max_tokens = 1;
  ReuseReport reuse;
  request.on_done = [&](const RequestResult& result) { reuse = result.reuse; };
  ASSERT_TRUE(scheduler_->Submit(std::move(request)).ok());
  RunAndFlush();
  EXPECT_EQ(reuse.stored, 0);
  EXPECT_NE(reuse.store_problem.find("the types of keys and values"), std::string::npos)
      << reuse.store_problem;
}

TEST_P(SchedulerStoreTest, NoFaultReachesARequest) {
  const Tokens prompt = SomeTokens(700);
  for (const Fault fault :
       {Fault::kErrors, Fault::kExceptions, Fault::kWrongBytes, Fault::kCutBytes}) {
    Restart();
    Ask(prompt, 2);
    RunAndFlush();
    const auto faulty = std::make_shared<FaultyStore>(Disk(), fault);
    Restart(faulty);
    faulty->is_broken = true;
    const Asked& asked = Ask(prompt, 2);
    RunAll();
    (void)engine_->FlushStore();
    ASSERT_TRUE(asked.result.status.ok()) << asked.result.status.message();
    EXPECT_EQ(asked.result.reuse.stored, 0) << static_cast<int>(fault);
    EXPECT_NE(asked.result.reuse.store_problem, "");
    ExpectExact(asked);
    ExpectWholeReport(asked);
    ExpectNothingLeaks();
    faulty->is_broken = false;
  }
}

// A store of half a second per call holds up nobody but the request that asks it.
TEST_P(SchedulerStoreTest, OthersContinueWhileAStoreAnswers) {
  const Tokens prompt = SomeTokens(300);
  Restart();
  Ask(prompt, 2);
  RunAndFlush();
  const auto slow = std::make_shared<FaultyStore>(Disk(), Fault::kSlow);
  slow->delay = std::chrono::milliseconds(500);
  Restart(slow);
  const Asked& other = Ask(SomeTokens(5, 9), 200);
  while (other.logits.size() < 2) ASSERT_TRUE(*scheduler_->Step());
  slow->is_broken = true;
  const Asked& asked = Ask(prompt, 2);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(*scheduler_->Step());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(450));
  EXPECT_GE(other.logits.size(), 22U);
  EXPECT_FALSE(asked.done);
  slow->is_broken = false;
  RunAndFlush();
  EXPECT_GE(asked.result.reuse.stored, 256);
  for (const auto& each : asked_) ExpectExact(*each);
}

// The second store is away: what the first one has is used, and the report says so.
TEST_P(SchedulerStoreTest, OneStoreThatIsAwayDoesNotKeepTheOther) {
  const Tokens prompt = SomeTokens(700);
  Restart();
  Ask(prompt, 1);
  RunAndFlush();
  const auto away = std::make_shared<FaultyStore>(std::move(*MakeMemoryStore()), Fault::kErrors);
  Restart(std::move(*MakeTieredStore({Disk(), away})));
  away->is_broken = true;
  const Asked& asked = Ask(prompt, 1);
  RunAll();
  EXPECT_GE(asked.result.reuse.stored, 700 - 16);
  EXPECT_EQ(asked.result.reuse.tiers, (TokensByTier{0, asked.result.reuse.stored, 0}));
  ExpectExact(asked);
  ExpectWholeReport(asked);
}

// A store that is slower than the processor is asked again from time to time.
TEST_P(SchedulerStoreTest, ASlowStoreIsNotWorthLoading) {
  const auto prompt = [](int i) { return SomeTokens(600, 3 + i); };
  Restart();
  for (int i = 0; i < 12; ++i) Ask(prompt(i), 1);
  RunAndFlush();
  const auto slow = std::make_shared<FaultyStore>(Disk(), Fault::kSlow);
  slow->delay = std::chrono::milliseconds(400);
  Restart(slow);
  const Asked& cold = Ask(SomeTokens(600, 200), 1);
  const auto start = std::chrono::steady_clock::now();
  RunAll();
  EXPECT_EQ(cold.result.reuse.stored, 0);
  const auto computing = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - start);
  slow->delay = std::max(slow->delay, 3 * computing);  // on any machine
  slow->is_broken = true;
  const Asked& late = Ask(prompt(0), 1);
  RunAll();
  EXPECT_EQ(late.result.reuse.stored, 0);
  EXPECT_EQ(late.result.reuse.store_problem, "loading took longer than computing");
  slow->is_broken = false;
  int stored = 0;
  for (int i = 1; i < 12; ++i) {
    const Asked& asked = Ask(prompt(i), 1);
    RunAll();
    stored += asked.result.reuse.stored > 0 ? 1 : 0;
  }
  EXPECT_GT(stored, 0);
  for (const auto& asked : asked_) {
    ExpectExact(*asked);
    ExpectWholeReport(*asked);
  }
}

TEST_P(SchedulerStoreTest, ARequestThatLoadsCanBeCancelled) {
  const Tokens prompt = SomeTokens(300);
  Restart();
  Ask(prompt, 2);
  RunAndFlush();
  const auto slow = std::make_shared<FaultyStore>(Disk(), Fault::kSlow);
  slow->delay = std::chrono::milliseconds(50);
  Restart(slow);
  slow->is_broken = true;
  const Asked& asked = Ask(prompt, 2);
  ASSERT_TRUE(*scheduler_->Step());
  scheduler_->Cancel(asked.result.id);
  RunAll();
  EXPECT_EQ(asked.result.stop, StopReason::kInterrupted);
  EXPECT_TRUE(asked.logits.empty());
  Ask(prompt, 2);
  ASSERT_TRUE(*scheduler_->Step());
  scheduler_.reset();  // in the middle of a load
  const Position lengths[] = {40};
  EXPECT_TRUE(
      engine_->cache().snapshots()->ScheduleCaptures(SequenceId{0}, kEachFromZero, lengths).ok());
  engine_->cache().snapshots()->CancelCaptures(SequenceId{0});
}

// Cells are short: requests are parked, load again, and have the bits of their texts alone.
TEST_P(SchedulerStoreTest, NothingIsWrongWhenCellsRunOut) {
  EngineOptions options = Options();
  options.pool_tokens = 900;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    std::mt19937 random(seed);
    Restart(Disk(), options, 64);
    asked_.clear();
    for (int request = 0; request < 12; ++request) {
      Ask(SomeTokens(100 + static_cast<int>(random() % 600), 3 + static_cast<int>(random() % 3)),
          static_cast<int>(random() % 20));
      for (auto steps = random() % 6; steps > 0; --steps) (void)*scheduler_->Step();
    }
    RunAndFlush();
    for (const auto& asked : asked_) {
      ASSERT_TRUE(asked->result.status.ok()) << asked->result.status.message();
      ExpectExact(*asked);
      ExpectWholeReport(*asked);
    }
    ExpectNothingLeaks();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SchedulerStoreTest,
                         ::testing::Values("llama", "gemma3", "gemma3n", "llama4", "qwen3next",
                                           "lfm2", "lfm2_window", "qwen35moe", "mamba2",
                                           "nemotron_h"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvcache::scheduler_store_test
