// Long answers of the shipped models that other requests fork while they are written.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/prefixes/token_keys.h"
#include "kvcache_engine/scheduler.h"
#include "kvcache_engine/session.h"

namespace kvcache::live_answer_test {
namespace {

using Tokens = std::vector<std::int32_t>;
using Row = std::vector<float>;

constexpr Position kPrompt = 100;
constexpr Position kShared = 790;
constexpr Position kBound = 512;  // SchedulerOptions::recompute_bound

// Lets a text go on until its limit of tokens.
class NeverEnds : public TokenConstraint {
 public:
  explicit NeverEnds(const Engine& engine) : engine_(engine) {}
  bool Apply(std::span<float> logits) override {
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (engine_.IsEndOfGeneration(static_cast<std::int32_t>(i))) {
        logits[i] = -std::numeric_limits<float>::infinity();
      }
    }
    return true;
  }
  bool Take(std::int32_t /*token*/) override { return true; }
  bool complete() const override { return false; }

 private:
  const Engine& engine_;
};

class LiveAnswer : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = std::string(KVCACHE_SOURCE_DIR) + "/models/" + GetParam();
    auto engine = Engine::Open(
        path, {.threads = 2, .context = 1024, .max_sequences = 3, .pool_tokens = 8192});
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(engine).value();
    auto scheduler = Scheduler::Make(*engine_, {});
    ASSERT_TRUE(scheduler.ok()) << scheduler.status().message();
    scheduler_ = std::move(scheduler).value();
    text_ = *engine_->tokenizer().Encode("Once upon a time there was a little girl.");
    while (text_.size() < kPrompt) text_.push_back(text_[text_.size() % 7 + 1]);
  }

  void BeginLive() {
    ScheduledRequest request{.prompt = text_, .max_tokens = 900};
    request.constraint = std::make_shared<NeverEnds>(*engine_);
    request.on_token = [this](std::int32_t token) {
      text_.push_back(token);
      return true;
    };
    ASSERT_TRUE(scheduler_->Submit(std::move(request)).ok());
    while (Evaluated() < kShared) ASSERT_TRUE(*scheduler_->Step());
  }
  Position Evaluated() const {
    const auto requests = scheduler_->Requests();
    return requests.empty() ? 0 : requests.front().evaluated;
  }
  // Runs a request that shares so many tokens with the live one. Returns what it restored, and its logits.
  Position Fork(Position shared, Row& logits) {
    Tokens prompt(text_.begin(), text_.begin() + shared);
    prompt.push_back(text_[static_cast<std::size_t>(shared)] == 9 ? 10 : 9);
    forked_ = prompt;
    Position restored = -1;
    ScheduledRequest request{.prompt = std::move(prompt), .max_tokens = 1};
    request.on_logits = [&](Position /*length*/, std::span<const float> row) {
      logits.assign(row.begin(), row.end());
    };
    request.on_done = [&](const RequestResult& result) {
      EXPECT_EQ(result.status.message(), "");
      restored = result.reuse.restored;
    };
    EXPECT_TRUE(scheduler_->Submit(std::move(request)).ok());
    while (restored < 0) EXPECT_TRUE(*scheduler_->Step());
    return restored;
  }
  // Returns the logits after the last fork's prompt, computed alone.
  Row Alone() {
    const std::string path = std::string(KVCACHE_SOURCE_DIR) + "/models/" + GetParam();
    const auto engine = std::move(Engine::Open(path, {.threads = 2, .context = 1024})).value();
    Session session(*engine, SequenceId{0});
    EXPECT_TRUE(session.Append(forked_).ok());
    const auto logits = *session.LastLogits();
    return {logits.begin(), logits.end()};
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
  Tokens text_;  // of the live request
  Tokens forked_;
};

TEST_P(LiveAnswer, IsSharedWhileItIsWritten) {
  BeginLive();
  const bool can_be_cut = IsDivisible(engine_->info().memory);
  Row logits;
  const Position newest = Evaluated();
  EXPECT_EQ(Fork(newest, logits), newest);
  EXPECT_EQ(logits, Alone());
  for (const Position shared : {Position{790}, Position{511}, Position{300}}) {
    const Position restored = Fork(shared, logits);
    EXPECT_LE(restored, shared);
    EXPECT_GE(restored, can_be_cut ? shared : shared - kBound);
    EXPECT_EQ(logits, Alone());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LiveAnswer,
                         ::testing::Values("story.gguf", "story-window.gguf", "story-hybrid.gguf"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace kvcache::live_answer_test
