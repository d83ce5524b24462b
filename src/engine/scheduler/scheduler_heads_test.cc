// Requests side by side whose drafters are asked together: the model's own head, and drafters that fail. Answers
// and logits are those without drafts.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/drafter.h"
#include "kvcache_engine/head_drafter.h"
#include "support/scheduler_fixture.h"

namespace kvcache::scheduler_heads_test {
namespace {

class SchedulerHeadBatches : public SchedulerFixture {
 protected:
  static constexpr int kRequests = 6;
  static constexpr int kAnswer = 50;

  void StartWithHead(int pool = 0) {
    StartWith({.threads = 2,
               .context = kContext,
               .max_sequences = kRequests,
               .pool_tokens = pool,
               .prefill_chunk = 32,
               .draft_head = path_},
              {});
  }
  static Tokens Prompt(int i) {
    // Two begin alike.
    return i == 1 ? SomeTokens(61) : SomeTokens(20 + 15 * i % 60, i == 2 ? 3 : 3 + 20 * i);
  }
  // Asks all prompts; each request has a head and another depth. depth < 0: as many as pay.
  void AskAll(int depth, bool heads = true) {
    asked_.clear();
    for (int i = 0; i < kRequests; ++i) {
      ScheduledRequest request;
      request.draft_tokens = depth < 0 ? -1 : (depth + 5 * i) % 17;
      if (heads) {
        request.drafter = std::shared_ptr<Drafter>(*MakeHeadDrafter(*engine_));
      } else {
        request.draft_tokens = 0;
      }
      Ask(Prompt(i), kAnswer - 3 * i, std::move(request));
    }
  }
  std::vector<Tokens> Answers() const {
    std::vector<Tokens> answers;
    for (const auto& asked : asked_) answers.push_back(asked->result.tokens);
    return answers;
  }
  void ExpectAllExact() {
    for (const auto& asked : asked_) {
      EXPECT_TRUE(asked->result.status.ok()) << asked->result.status.message();
      EXPECT_TRUE(asked->result.speculation.error.ok())
          << asked->result.speculation.error.message();
      ExpectExact(*asked);
    }
  }
};

TEST_P(SchedulerHeadBatches, AnswersAreThoseWithout) {
  for (const float temperature : {0.0f, 0.9f}) {
    sampling_ = {.temperature = temperature, .repeat_penalty = 1.1f};
    StartWithHead();
    AskAll(0, false);
    RunAll();
    const std::vector<Tokens> plain = Answers();
    std::int64_t drafted = 0;
    for (const int depth : {-1, 0, 1, 3, 8, 15}) {
      StartWithHead();
      for (int time = 0; time < 2; ++time) {  // from the prefixes, the second time
        AskAll(depth);
        RunAll();
        ASSERT_EQ(Answers(), plain) << "depth " << depth;
        ExpectAllExact();
        for (const auto& asked : asked_) {
          EXPECT_TRUE(time == 0 || asked->result.reuse.restored > 0);
          drafted += asked->result.speculation.drafted;
        }
      }
      ExpectNothingLeaks();
    }
    EXPECT_GT(drafted, 1000);
  }
}

// Some leave in the middle of their answers, and in little memory some are parked.
TEST_P(SchedulerHeadBatches, CancelsAndLittleMemory) {
  sampling_ = {.temperature = 0.7f};
  StartWithHead();
  AskAll(0, false);
  RunAll();
  const std::vector<Tokens> plain = Answers();
  for (const int pool : {0, 330}) {
    for (int first = 0; first < kRequests; ++first) {
      StartWithHead(pool);
      AskAll(4);
      const auto cancelled = static_cast<std::size_t>(first);
      const std::size_t other = (cancelled + 2) % kRequests;
      for (int steps = 0; steps < 9 + first; ++steps) ASSERT_TRUE(*scheduler_->Step());
      scheduler_->Cancel(asked_[cancelled]->result.id);
      ASSERT_TRUE(*scheduler_->Step());
      scheduler_->Cancel(asked_[other]->result.id);
      RunAll();
      ExpectAllExact();
      for (std::size_t i = 0; i < kRequests; ++i) {
        if (i == cancelled || i == other) continue;
        EXPECT_EQ(asked_[i]->result.tokens, plain[i]);
      }
      ExpectNothingLeaks();
    }
  }
}

// Drafters whose batch says what it was asked, and fails for some of them.
class CountingBatch final : public BatchDrafter {
 public:
  void Propose(std::span<DraftAsk> asks) override {
    largest = std::max(largest, asks.size());
    if (throws) throw std::bad_alloc();
    for (std::size_t i = 0; i < asks.size(); ++i) {
      asks[i].drafts->assign(static_cast<std::size_t>(asks[i].max), 5);
      if (asks[i].drafter == broken) asks[i].status = {StatusCode::kIo, "it is gone"};
    }
  }
  double Seconds(int texts) const override { return 1e-7 * texts; }

  std::size_t largest = 0;
  const Drafter* broken = nullptr;
  bool throws = false;
};

class BatchedDrafter final : public Drafter {
 public:
  explicit BatchedDrafter(BatchDrafter& batch) : batch_(batch) {}
  Status Begin(std::span<const std::int32_t> /*text*/) override { return Status::Ok(); }
  Status Add(std::int32_t /*token*/) override { return Status::Ok(); }
  Status Propose(int /*most*/, std::vector<std::int32_t>& /*drafts*/) override {
    ADD_FAILURE() << "it is asked alone";
    return Status::Ok();
  }
  BatchDrafter* batch() override { return &batch_; }

 private:
  BatchDrafter& batch_;
};

TEST_P(SchedulerHeadBatches, DraftersOfABatchAreAskedTogether) {
  sampling_ = {.temperature = 0.0f};
  // All prompts are read in the first step: beside the first one, 16 tokens are.
  const auto prompt = [](int i) { return SomeTokens(3, 3 + 20 * i); };
  StartWithHead();
  for (int i = 0; i < kRequests; ++i) Ask(prompt(i), kAnswer, {.prompt = {}, .draft_tokens = 0});
  RunAll();
  const std::vector<Tokens> plain = Answers();
  for (const bool throws : {false, true}) {
    StartWithHead();
    asked_.clear();
    CountingBatch batch;
    CountingBatch other;
    batch.throws = throws;
    for (int i = 0; i < kRequests; ++i) {
      ScheduledRequest request;
      request.draft_tokens = 1 + i;
      request.drafter = std::make_shared<BatchedDrafter>(i < 2 ? other : batch);
      if (i == 3) batch.broken = request.drafter.get();
      Ask(prompt(i), kAnswer, std::move(request));
    }
    RunAll();
    EXPECT_EQ(Answers(), plain);
    EXPECT_EQ(batch.largest, kRequests - 2);
    EXPECT_EQ(other.largest, 2);
    for (int i = 0; i < kRequests; ++i) {
      const SpeculationReport& report = asked_[static_cast<std::size_t>(i)]->result.speculation;
      const bool fails = i == 3 || (throws && i > 1);
      EXPECT_EQ(report.error.ok(), !fails) << i;
      EXPECT_EQ(report.drafted > 0, !fails) << i;
    }
    ExpectNothingLeaks();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SchedulerHeadBatches,
                         ::testing::Values("llama", "qwen35", "qwen3next"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvcache::scheduler_heads_test
