// Requests of a model with an encoder, side by side: each has the bits of its text alone.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/cpu_backend.h"
#include "kvcache/encoder_cache.h"
#include "kvcache_engine/scheduler.h"
#include "kvcache_engine/session.h"
#include "make_model/make_model.h"
#include "support/failing_backend.h"

namespace kvcache::encoder_scheduler_test {
namespace {

using Tokens = std::vector<std::int32_t>;
using Row = std::vector<float>;

class EncoderSchedulerTest : public ::testing::Test {
 protected:
  struct Asked {
    Tokens text;
    std::map<Position, Row> logits;
    RequestResult result;
    bool done = false;
  };

  void SetUp() override {
    path_ = ::testing::TempDir() + "encoder_scheduler." + std::to_string(getpid()) + ".gguf";
    ASSERT_TRUE(make_model::MakeModel({.architecture = "t5", .seed = 5}, path_).ok());
    alone_ = *Engine::Open(path_, {.threads = 1, .context = 48});
    auto backend = std::make_unique<testing::FailingBackend>(*MakeCpuBackend({.threads = 1}));
    backend_ = backend.get();
    engine_ =
        *Engine::Open(path_, {.threads = 1, .context = 48, .max_sequences = 3}, std::move(backend));
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void Start(int step_tokens) {
    scheduler_.reset();
    scheduler_ = *Scheduler::Make(*engine_, {.step_tokens = step_tokens});
  }
  RequestId Ask(Tokens text, int max_tokens) {
    asked_.push_back(std::make_unique<Asked>());
    Asked& asked = *asked_.back();
    asked.text = text;
    ScheduledRequest request{.prompt = std::move(text),
                             .sampling = {.temperature = 1.0f, .seed = asked_.size()},
                             .max_tokens = max_tokens};
    request.on_logits = [&asked](Position length, std::span<const float> logits) {
      asked.logits[length] = {logits.begin(), logits.end()};
    };
    request.on_done = [&asked](const RequestResult& result) {
      asked.done = true;
      asked.result = result;
    };
    return *scheduler_->Submit(std::move(request));
  }
  void RunAll() {
    for (int steps = 0; *scheduler_->Step(); ++steps) ASSERT_LT(steps, 10000);
  }
  void ExpectExact(const Asked& asked) {
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
  static Tokens Text(int count, int first) {
    Tokens tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(first + i * 41 % 300);
    return tokens;
  }

  std::string path_;
  testing::FailingBackend* backend_ = nullptr;
  std::unique_ptr<Engine> alone_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::unique_ptr<Asked>> asked_;
};

TEST_F(EncoderSchedulerTest, EachHasTheBitsOfItsTextAlone) {
  for (const int step_tokens : {1, 2, 0}) {
    Start(step_tokens);
    for (int i = 0; i < 7; ++i) Ask(Text(1 + i * 7, 3 + i % 3), i == 4 ? -1 : 3 + 2 * i);
    RunAll();
    for (const auto& asked : asked_) {
      ASSERT_TRUE(asked->done);
      ASSERT_TRUE(asked->result.status.ok()) << asked->result.status.message();
      EXPECT_FALSE(asked->logits.empty());
      EXPECT_EQ(asked->result.reuse.computed, static_cast<Position>(asked->text.size()));
      ExpectExact(*asked);
    }
    asked_.clear();
  }
}

TEST_F(EncoderSchedulerTest, RequestsContinueWhileOthersAreRead) {
  Start(0);
  Ask(Text(9, 4), 20);
  ASSERT_TRUE(*scheduler_->Step());
  Ask(Text(30, 5), 20);
  Ask(Text(31, 6), 20);
  const std::size_t before = asked_[0]->logits.size();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(*scheduler_->Step());
  EXPECT_GE(asked_[0]->logits.size(), before + 2);
  EXPECT_FALSE(asked_[1]->logits.empty());
  EXPECT_FALSE(asked_[2]->logits.empty());
  RunAll();
  for (const auto& asked : asked_) ExpectExact(*asked);
}

TEST_F(EncoderSchedulerTest, CancelledAndFailedRequestsLeaveNothing) {
  Start(0);
  int injected = 0;
  for (int n = 1; n < 200; n += 3) {
    const RequestId first = Ask(Text(12, 4), 6);
    Ask(Text(20, 5), 6);
    ASSERT_TRUE(scheduler_->Step().ok());
    if (n % 2 == 0) scheduler_->Cancel(first);
    backend_->FailNth(n);
    ASSERT_TRUE(scheduler_->Step().ok());
    injected += backend_->failure_pending() ? 0 : 1;
    backend_->FailNth(0);
    RunAll();
  }
  int failed = 0;
  for (const auto& asked : asked_) {
    ASSERT_TRUE(asked->done);
    failed += asked->result.status.ok() ? 0 : 1;
    ExpectExact(*asked);
  }
  EXPECT_GT(injected, 10);
  EXPECT_EQ(failed, 0) << "each failed once, and was tried again";
  for (int i = 0; i < engine_->options().max_sequences; ++i) {
    EXPECT_FALSE(engine_->cache().Encoder()->EncoderCached(SequenceId{i}));
  }
  const auto fresh = *Engine::Open(path_, engine_->options());
  EXPECT_EQ(engine_->cache().memory()->FreeCells(), fresh->cache().memory()->FreeCells());
}

TEST_F(EncoderSchedulerTest, NoTextKeepsAnotherFromItsEnd) {
  for (const int step_tokens : {1, 2, 0}) {
    Start(step_tokens);
    Ask(Text(9, 4), 20);
    int steps = 0;
    while (!asked_[0]->done) {
      if (scheduler_->waiting() == 0) Ask(Text(12, 5), 1);
      ASSERT_TRUE(scheduler_->Step().ok());
      ASSERT_LT(++steps, 200) << "step_tokens " << step_tokens;
    }
    EXPECT_EQ(asked_[0]->result.tokens.size(), 20U);
    RunAll();
    asked_.clear();
  }
}

TEST_F(EncoderSchedulerTest, TheBudgetHasTheEncodersMemory) {
  engine_ = *Engine::Open(path_, {.threads = 1,
                                  .context = 48,
                                  .max_sequences = 3,
                                  .pool_tokens = 2048,
                                  .releases_memory = true});
  const auto held = [&] {
    return engine_->cache().memory()->ResidentBytes() + engine_->WorkspaceBytes();
  };
  const std::int64_t fixed = held();
  EXPECT_FALSE(Scheduler::Make(*engine_, {.budget_bytes = fixed}).ok());
  const SequenceLength two[] = {{SequenceId{0}, 48}, {SequenceId{1}, 48}};
  const std::int64_t budget = fixed + engine_->cache().memory()->GrowthOf(two, 0, 0);
  scheduler_ = *Scheduler::Make(*engine_, {.budget_bytes = budget, .free_memory_share = 0.0});
  for (int i = 0; i < 7; ++i) Ask(Text(1 + i * 7, 3 + i % 3), 30);
  for (int steps = 0; *scheduler_->Step(); ++steps) {
    ASSERT_LT(steps, 10000);
    EXPECT_LE(held(), budget);
  }
  EXPECT_GT(budget, fixed);
  for (const auto& asked : asked_) {
    ASSERT_TRUE(asked->result.status.ok()) << asked->result.status.message();
    ExpectExact(*asked);
  }
  scheduler_.reset();
  ASSERT_TRUE(engine_->cache().memory()->ReleaseFreeMemory().ok());
  EXPECT_EQ(held(), fixed) << "the encoder's activations were counted from the start";
}

TEST_F(EncoderSchedulerTest, TextsThatDoNotFitAreRefused) {
  Start(0);
  const auto refused = scheduler_->Submit({.prompt = Text(49, 3)});
  EXPECT_EQ(refused.status().message(), "the prompt has 49 tokens, the context holds 48");
}

}  // namespace
}  // namespace kvcache::encoder_scheduler_test
