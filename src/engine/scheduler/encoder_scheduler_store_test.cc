// Encoder outputs of a scheduler that come back from a store: the bits are those of an encoding, other requests go
// on while a store answers, and no error of a store reaches a request.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/persist/encoder_store_testing.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/encoder_cache.h"
#include "kvcache_engine/scheduler.h"
#include "support/failing_backend.h"

namespace kvcache::encoder_scheduler_store_test {
namespace {

using Fault = FaultyStore::Fault;
using Row = std::vector<float>;

class EncoderSchedulerStoreTest : public EncoderStoreFixture {
 protected:
  struct Asked {
    Tokens text;
    std::map<Position, Row> logits;
    RequestId id{};
    RequestResult result;
    bool done = false;
  };

  void SetUp() override {
    EncoderStoreFixture::SetUp();
    alone_ = Open(nullptr);
  }
  void TearDown() override {
    scheduler_.reset();
    engine_.reset();
    EncoderStoreFixture::TearDown();
  }
  // Begins anew, as a process that was started again.
  void Restart(const std::shared_ptr<Store>& store, const EngineOptions& options = Options(3),
               std::unique_ptr<Backend> backend = nullptr) {
    scheduler_.reset();
    engine_ = Open(path_, options, store, std::move(backend));
    auto scheduler = Scheduler::Make(*engine_, {});
    ASSERT_TRUE(scheduler.ok()) << scheduler.status().message();
    scheduler_ = std::move(*scheduler);
  }
  void Restart() { Restart(Disk()); }
  const Asked& Ask(Tokens text, int max_tokens, std::uint64_t salt = 0) {
    asked_.push_back(std::make_unique<Asked>());
    Asked& asked = *asked_.back();
    asked.text = text;
    ScheduledRequest request{.prompt = std::move(text),
                             .sampling = {.temperature = 1.0f, .seed = asked_.size()},
                             .max_tokens = max_tokens,
                             .salt = salt};
    request.on_logits = [&asked](Position length, std::span<const float> logits) {
      asked.logits[length] = {logits.begin(), logits.end()};
    };
    request.on_done = [&asked](const RequestResult& result) {
      EXPECT_FALSE(asked.done);
      asked.done = true;
      asked.result = result;
    };
    const auto id = scheduler_->Submit(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status().message();
    asked.id = *id;
    return asked;
  }
  void RunAll() {
    for (int steps = 0; *scheduler_->Step(); ++steps) ASSERT_LT(steps, 100000);
  }
  void RunAndFlush() {
    RunAll();
    EXPECT_EQ(engine_->FlushStore(), "");
  }
  void ExpectExact(const Asked& asked) {
    ASSERT_TRUE(asked.done);
    ASSERT_TRUE(asked.result.status.ok()) << asked.result.status.message();
    Session session(*alone_, SequenceId{0});
    ASSERT_TRUE(session.Encode(asked.text).ok());
    for (const auto& [length, row] : asked.logits) {
      const auto from = static_cast<std::size_t>(session.position()) - 1;
      ASSERT_TRUE(session
                      .Append(std::span(asked.result.tokens)
                                  .subspan(from, static_cast<std::size_t>(length) - 1 - from))
                      .ok());
      const auto expected = *session.LastLogits();
      ASSERT_EQ(row, Row(expected.begin(), expected.end())) << "after " << length << " tokens";
    }
  }
  static void ExpectReport(const Asked& asked, Position stored, StoreTier tier = StoreTier::kDisk) {
    const ReuseReport& reuse = asked.result.reuse;
    TokensByTier tiers{};
    tiers[static_cast<std::size_t>(tier)] = stored;
    EXPECT_EQ(reuse.prompt, static_cast<Position>(asked.text.size()));
    EXPECT_EQ(reuse.stored, stored);
    EXPECT_EQ(reuse.restored, stored);
    EXPECT_EQ(reuse.matched, stored);
    EXPECT_EQ(reuse.tiers, tiers);
    EXPECT_EQ(reuse.computed, reuse.prompt - stored);
    EXPECT_GT(reuse.store_ms, 0.0);
  }
  void ExpectNothingLeaks() {
    for (int i = 0; i < engine_->options().max_sequences; ++i) {
      EXPECT_FALSE(engine_->cache().Encoder()->EncoderCached(SequenceId{i}));
    }
    EXPECT_EQ(engine_->cache().snapshots()->SnapshotBytes(), 0);
    const auto fresh = Open(path_, engine_->options(), nullptr);
    EXPECT_EQ(engine_->cache().memory()->FreeCells(), fresh->cache().memory()->FreeCells());
  }

  std::unique_ptr<Engine> alone_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Asked>> asked_;
};

TEST_P(EncoderSchedulerStoreTest, TextsComeBackAfterARestart) {
  const std::shared_ptr<Store> memory = Memory();
  for (const bool is_disk : {true, false}) {
    const auto restart = [&] { Restart(is_disk ? Disk() : memory); };
    const StoreTier tier = is_disk ? StoreTier::kDisk : StoreTier::kMemory;
    for (const int round : {0, 1, 2}) {
      restart();
      for (int i = 0; i < 7; ++i) Ask(Text(1 + i * 40, 3 + i % 3), 3 + 2 * i);
      RunAndFlush();
      for (const auto& asked : asked_) {
        ExpectExact(*asked);
        ExpectReport(*asked, round == 0 ? 0 : static_cast<Position>(asked->text.size()), tier);
        EXPECT_EQ(asked->result.reuse.store_problem, "");
      }
      EXPECT_EQ(Outputs(*engine_), 7);
      EXPECT_EQ(scheduler_->Stats().restored_tokens, round == 0 ? 0 : 847);
      ExpectNothingLeaks();
      asked_.clear();
    }
  }
}

TEST_P(EncoderSchedulerStoreTest, ATextIsStoredOnce) {
  const auto counted = std::make_shared<FaultyStore>(Disk(), Fault::kErrors);
  Restart(counted);
  Ask(Text(50), 2);
  RunAndFlush();
  const std::int64_t puts = counted->puts;
  Ask(Text(50), 2);
  RunAndFlush();
  EXPECT_EQ(counted->puts, puts);
  EXPECT_EQ(asked_[1]->result.reuse.stored, 50);
}

TEST_P(EncoderSchedulerStoreTest, AnotherSaltIsAMiss) {
  const Tokens text = Text(60);
  Restart();
  Ask(text, 2, 7);
  RunAndFlush();
  Restart();
  const Asked& none = Ask(text, 2);
  const Asked& other = Ask(text, 2, 8);
  RunAndFlush();
  ExpectReport(none, 0);
  ExpectReport(other, 0);
  EXPECT_EQ(none.result.reuse.store_problem, "") << "it does not tell what others asked";
  const Asked& same = Ask(text, 2, 7);
  RunAndFlush();
  ExpectReport(same, 60);
  for (const auto& asked : asked_) ExpectExact(*asked);
}

TEST_P(EncoderSchedulerStoreTest, AMissSaysWhichPartDiffers) {
  const Tokens text = Text(60);
  Restart();
  Ask(text, 1);
  RunAndFlush();
  EngineOptions options = Options(3);
  options.k_type = options.k_type == DType::kF32 ? DType::kF16 : DType::kF32;
  Restart(Disk(), options);
  const Asked& asked = Ask(text, 1);
  RunAndFlush();
  ExpectReport(asked, 0);
  EXPECT_NE(asked.result.reuse.store_problem.find("the types of keys and values"),
            std::string::npos)
      << asked.result.reuse.store_problem;
}

TEST_P(EncoderSchedulerStoreTest, NoFaultReachesARequest) {
  const Tokens text = Text(70);
  for (const Fault fault :
       {Fault::kErrors, Fault::kExceptions, Fault::kWrongBytes, Fault::kCutBytes}) {
    Restart();
    Ask(text, 2);
    RunAndFlush();
    const auto faulty = std::make_shared<FaultyStore>(Disk(), fault);
    Restart(faulty);
    faulty->is_broken = true;
    const Asked& asked = Ask(text, 2);
    RunAll();
    (void)engine_->FlushStore();
    ExpectReport(asked, 0);
    EXPECT_NE(asked.result.reuse.store_problem, "") << static_cast<int>(fault);
    ExpectExact(asked);
    ExpectNothingLeaks();
    faulty->is_broken = false;
    // What was refused is gone, or was stored again.
    Ask(text, 2);
    RunAndFlush();
    const Asked& last = Ask(text, 2);
    RunAndFlush();
    ExpectReport(last, 70);
    ExpectExact(last);
  }
}

// A store of half a second per call holds up nobody but the request that asks it.
TEST_P(EncoderSchedulerStoreTest, OthersContinueWhileAStoreAnswers) {
  const Tokens text = Text(60);
  Restart();
  Ask(text, 2);
  RunAndFlush();
  const auto slow = std::make_shared<FaultyStore>(Disk(), Fault::kSlow);
  slow->delay = std::chrono::milliseconds(500);
  Restart(slow);
  const Asked& other = Ask(Text(5, 9), 200);
  while (other.logits.size() < 2) ASSERT_TRUE(*scheduler_->Step());
  (void)engine_->FlushStore();
  slow->is_broken = true;
  const Asked& asked = Ask(text, 2);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(*scheduler_->Step());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(450));
  EXPECT_GE(other.logits.size(), 22U);
  EXPECT_FALSE(asked.done);
  slow->is_broken = false;
  RunAndFlush();
  for (const auto& each : asked_) ExpectExact(*each);
}

// A load that takes longer than an encoding ends, and the text is encoded.
TEST_P(EncoderSchedulerStoreTest, ASlowStoreIsNotWaitedFor) {
  const Tokens text = Text(200);
  Restart();
  Ask(text, 1);
  RunAndFlush();
  const auto slow = std::make_shared<FaultyStore>(Disk(), Fault::kSlow);
  slow->delay = std::chrono::milliseconds(800);
  Restart(slow);
  Ask(Text(201), 1);
  RunAndFlush();
  slow->is_broken = true;
  const Asked& late = Ask(text, 1);
  RunAll();
  ExpectReport(late, 0);
  EXPECT_EQ(late.result.reuse.store_problem, "loading took longer than computing");
  slow->is_broken = false;
  ExpectExact(late);
}

TEST_P(EncoderSchedulerStoreTest, ARequestThatLoadsCanBeCancelled) {
  const Tokens text = Text(60);
  Restart();
  Ask(text, 2);
  RunAndFlush();
  const auto slow = std::make_shared<FaultyStore>(Disk(), Fault::kSlow);
  slow->delay = std::chrono::milliseconds(50);
  Restart(slow);
  slow->is_broken = true;
  const Asked& asked = Ask(text, 2);
  ASSERT_TRUE(*scheduler_->Step());
  scheduler_->Cancel(asked.id);
  RunAll();
  EXPECT_EQ(asked.result.stop, StopReason::kInterrupted);
  EXPECT_TRUE(asked.logits.empty());
  ExpectNothingLeaks();
  Ask(text, 2);
  ASSERT_TRUE(*scheduler_->Step());
  scheduler_.reset();  // in the middle of a load
  EXPECT_FALSE(engine_->cache().Encoder()->EncoderCached(SequenceId{0}));
}

// A kernel fails at any place: the request begins again, and loads again.
TEST_P(EncoderSchedulerStoreTest, AFailedPassIsTriedAgain) {
  const std::shared_ptr<Store> memory = Memory();
  Restart(memory);
  Ask(Text(30), 3);
  RunAndFlush();
  auto backend = std::make_unique<testing::FailingBackend>(*MakeCpuBackend({.threads = 1}));
  testing::FailingBackend* const failing = backend.get();
  Restart(memory, Options(3), std::move(backend));
  int injected = 0;
  for (int n = 1; n < 120; n += 2) {
    const Asked& known = Ask(Text(30), 3);
    const Asked& other = Ask(Text(20, 5), 3);
    failing->FailNth(n);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(scheduler_->Step().ok());
    injected += failing->failure_pending() ? 0 : 1;
    failing->FailNth(0);
    RunAll();
    (void)engine_->FlushStore();
    ExpectExact(known);
    ExpectExact(other);
    ExpectNothingLeaks();
  }
  EXPECT_GT(injected, 10);
}

// Cells are short: requests are parked, load again, and have the bits of their texts alone.
TEST_P(EncoderSchedulerStoreTest, ParkedRequestsLoadAgain) {
  EngineOptions options = Options(3);
  options.pool_tokens = kContext;
  std::int64_t parked = 0;
  // Where loads take longer than answers, requests do not meet.
  for (unsigned seed = 1; seed <= 3 || (parked == 0 && seed <= 40); ++seed) {
    std::mt19937 random(seed);
    Restart(Disk(), options);
    asked_.clear();
    for (int request = 0; request < 8; ++request) {
      Ask(Text(100 + static_cast<int>(random() % 4), 3), 60 + static_cast<int>(random() % 120));
      for (auto steps = random() % 6; steps > 0; --steps) (void)*scheduler_->Step();
    }
    RunAndFlush();
    for (const auto& asked : asked_) {
      ExpectExact(*asked);
      const ReuseReport& reuse = asked->result.reuse;
      EXPECT_EQ(reuse.restored + reuse.computed, reuse.prompt);
      EXPECT_GE(reuse.recomputed, 0);
      parked += reuse.parked;
    }
    ExpectNothingLeaks();
  }
  EXPECT_GT(parked, 0);
}

TEST_P(EncoderSchedulerStoreTest, TheBudgetHolds) {
  EngineOptions options = Options(3);
  options.pool_tokens = 2048;
  options.releases_memory = true;
  for (const bool is_stored : {false, true}) {
    scheduler_.reset();
    engine_ = Open(path_, options, Disk());
    const auto held = [&] {
      return engine_->cache().memory()->ResidentBytes() + engine_->WorkspaceBytes();
    };
    const SequenceLength two[] = {{SequenceId{0}, kContext}, {SequenceId{1}, kContext}};
    const std::int64_t budget = held() + engine_->cache().memory()->GrowthOf(two, 0, 0);
    scheduler_ = *Scheduler::Make(*engine_, {.budget_bytes = budget, .free_memory_share = 0.0});
    for (int i = 0; i < 6; ++i) Ask(Text(1 + i * 40, 3 + i % 3), 30);
    for (int steps = 0; *scheduler_->Step(); ++steps) {
      ASSERT_LT(steps, 10000);
      EXPECT_LE(held(), budget);
    }
    EXPECT_EQ(engine_->FlushStore(), "");
    for (const auto& asked : asked_) {
      ExpectExact(*asked);
      ExpectReport(*asked, is_stored ? static_cast<Position>(asked->text.size()) : 0);
    }
    asked_.clear();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, EncoderSchedulerStoreTest, ::testing::ValuesIn(EncoderCases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvcache::encoder_scheduler_store_test
