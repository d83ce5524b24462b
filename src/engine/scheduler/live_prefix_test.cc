// Requests that begin with the text of one that is still in progress reuse what that one evaluated.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "engine/prefixes/token_keys.h"
#include "support/scheduler_fixture.h"

namespace kvcache::live_prefix_test {
namespace {

// Lets a text continue until its limit of tokens.
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

class LivePrefix : public SchedulerFixture {
 protected:
  static constexpr Position kBound = 32;  // the fixture's

  // Begins a request and runs it until `length` tokens are evaluated.
  void BeginLive(const Tokens& prompt, Position length) {
    text_ = prompt;
    ScheduledRequest request;
    request.constraint = std::make_shared<NeverEnds>(*engine_);
    request.on_token = [this](std::int32_t token) {
      text_.push_back(token);
      return true;
    };
    Ask(prompt, kContext - static_cast<int>(prompt.size()) - 1, std::move(request));
    while (Evaluated() < length) ASSERT_TRUE(*scheduler_->Step());
  }
  Position Evaluated() const {
    const auto requests = scheduler_->Requests();
    return requests.empty() ? 0 : requests.front().evaluated;
  }
  // Asks for a text that shares the first `shared` tokens of the live one, and returns what it restores.
  Position Fork(Position shared) {
    Tokens prompt(text_.begin(), text_.begin() + shared);
    const std::int32_t next = text_[static_cast<std::size_t>(shared)];
    prompt.push_back(next == 9 ? 10 : 9);
    const PrefixMatch probe = *scheduler_->Probe(prompt, 0);
    const Asked& fork = Ask(prompt, 3);
    while (!fork.done) EXPECT_TRUE(*scheduler_->Step());
    EXPECT_EQ(fork.result.status.message(), "");
    EXPECT_EQ(fork.result.reuse.prompt, shared + 1);
    Position missed = 0;
    for (const PrefixMiss& miss : fork.result.reuse.missed) missed += miss.tokens;
    EXPECT_EQ(missed, shared + 1 - fork.result.reuse.restored);
    EXPECT_EQ(probe.resumed, fork.result.reuse.restored);
    for (const PrefixMiss& miss : probe.missed) missed -= miss.tokens;
    EXPECT_EQ(missed, 0);
    return fork.result.reuse.restored;
  }
  bool CanBeCut() const { return IsDivisible(engine_->info().memory); }

  Tokens text_;  // of the live request
};

TEST_P(LivePrefix, AForkOfAnAnswerRestoresUpToTheNewestToken) {
  Start(3, 0);
  BeginLive(SomeTokens(50), 50 + 3 * kBound + 20);
  for (int forks = 0; forks < 3; ++forks) {
    const Position newest = Evaluated();
    EXPECT_EQ(Fork(newest), newest);
  }
  RunAll();
  for (const auto& asked : asked_) ExpectExact(*asked);
  ExpectNothingLeaks();
}

TEST_P(LivePrefix, AForkInsideAnAnswerComputesFewTokensAgain) {
  Start(3, 0);
  BeginLive(SomeTokens(50), 50 + 3 * kBound + 20);
  for (const Position shared : {140, 20, 51, 100, 139, 64, 97}) {
    const Position restored = Fork(shared);
    EXPECT_LE(restored, shared);
    EXPECT_GE(restored, CanBeCut() ? shared : shared - kBound) << "of " << shared;
  }
  RunAll();
  for (const auto& asked : asked_) ExpectExact(*asked);
  ExpectNothingLeaks();
}

TEST_P(LivePrefix, AForkOfAPromptInProgressRestoresWhatWasRead) {
  Start(3, 0);
  BeginLive(SomeTokens(200), 3 * kBound);
  const Position read = Evaluated();
  ASSERT_LT(read, 200);
  EXPECT_EQ(Fork(read), read);
  RunAll();
  for (const auto& asked : asked_) ExpectExact(*asked);
  ExpectNothingLeaks();
}

TEST_P(LivePrefix, OtherSaltsShareNothing) {
  Start(3, 0);
  BeginLive(SomeTokens(50), 120);
  Tokens prompt(text_.begin(), text_.begin() + 120);
  ScheduledRequest request;
  request.salt = 7;
  const Asked& other = Ask(prompt, 3, std::move(request));
  RunAll();
  EXPECT_EQ(other.result.reuse.restored, 0);
  for (const auto& asked : asked_) ExpectExact(*asked);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LivePrefix,
                         ::testing::Values("llama", "gemma3", "llama4", "qwen3next", "lfm2",
                                           "granitehybrid", "mamba2", "nemotron_h", "qwen35"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvcache::live_prefix_test
