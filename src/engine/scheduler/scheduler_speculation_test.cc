// Requests with drafts side by side, on models of every kind: the same tokens and the same logits as
// without, whatever the drafters propose.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/drafter.h"
#include "kvcache_engine/head_drafter.h"
#include "support/drafts/scripted_drafter.h"
#include "support/scheduler_fixture.h"

namespace kvcache::scheduler_speculation_test {
namespace {

using testing::ScriptedDrafter;

class FailingDrafter final : public Drafter {
 public:
  explicit FailingDrafter(int calls) : left_(calls) {}
  Status Begin(std::span<const std::int32_t> /*text*/) override { return Call(); }
  Status Add(std::int32_t /*token*/) override { return Call(); }
  Status Propose(int max, std::vector<std::int32_t>& drafts) override {
    drafts.assign(static_cast<std::size_t>(max), 5);
    return Call();
  }

 private:
  Status Call() {
    if (left_-- > 0) return Status::Ok();
    return {StatusCode::kIo, "the drafter is gone"};
  }
  int left_;
};

// Proposes what no engine can evaluate, and more than was asked for.
class WildDrafter final : public Drafter {
 public:
  Status Begin(std::span<const std::int32_t> /*text*/) override { return Status::Ok(); }
  Status Add(std::int32_t /*token*/) override { return Status::Ok(); }
  Status Propose(int max, std::vector<std::int32_t>& drafts) override {
    for (int i = 0; i <= max; ++i) drafts.push_back(++calls_ % 3 == 0 ? -7 : 1 << 30);
    if (calls_ % 2 == 0) drafts.front() = 4;
    return Status::Ok();
  }

 private:
  int calls_ = 0;
};

class SchedulerSpeculation : public SchedulerFixture {
 protected:
  static constexpr int kAnswer = 70;  // longer than the windows

  std::vector<Tokens> Prompts() {
    Tokens shared = SomeTokens(60);
    shared.push_back(7);
    Tokens repeats = SomeTokens(9, 40);
    for (int i = 0; i < 40; ++i) repeats.push_back(repeats[static_cast<std::size_t>(i % 9)]);
    return {SomeTokens(61), shared, repeats, SomeTokens(3, 90)};
  }

  // Runs the prompts with drafters that know these texts, or without. Returns the answers.
  std::vector<Tokens> Answers(const std::vector<Tokens>& texts, int depth) {
    asked_.clear();
    const std::vector<Tokens> prompts = Prompts();
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      ScheduledRequest request;
      // For an engine's own drafter, whose drafts may not pay for the others.
      if (i == 1) request.draft_tokens = 3;
      if (!texts.empty()) {
        // Each has another depth.
        request.draft_tokens = depth < 0 ? -1 : (depth + 5 * static_cast<int>(i)) % 17;
        if (i == 2) {
          request.drafter = MakeLookupDrafter();
        } else {
          request.drafter = std::make_shared<ScriptedDrafter>(
              texts[i], engine_->vocabulary_size(), 0.2, static_cast<unsigned>(depth + 2));
        }
      }
      Ask(prompts[i], kAnswer, std::move(request));
      // The second prompt is read beside the answer to the first.
      for (int steps = 0; steps < 4; ++steps) EXPECT_TRUE(*scheduler_->Step());
    }
    RunAll();
    std::vector<Tokens> answers;
    for (const auto& asked : asked_) {
      EXPECT_TRUE(asked->result.status.ok()) << asked->result.status.message();
      answers.push_back(asked->result.tokens);
    }
    return answers;
  }
  std::vector<Tokens> Texts(const std::vector<Tokens>& answers) {
    std::vector<Tokens> texts = Prompts();
    for (std::size_t i = 0; i < texts.size(); ++i) {
      texts[i].insert(texts[i].end(), answers[i].begin(), answers[i].end());
      texts[i].push_back(7);
    }
    return texts;
  }

  void ExpectSameAtAllDepths() {
    Start(4, 0);
    const std::vector<Tokens> plain = Answers({}, 0);
    const std::vector<Tokens> texts = Texts(plain);
    std::vector<Position> restored;
    for (const auto& asked : asked_) restored.push_back(asked->result.reuse.restored);
    std::int64_t accepted = 0;
    for (int depth = -1; depth <= 16; ++depth) {
      Start(4, 0);
      ASSERT_EQ(Answers(texts, depth), plain) << "depth " << depth;
      for (std::size_t i = 0; i < asked_.size(); ++i) {
        ExpectExact(*asked_[i]);
        EXPECT_EQ(asked_[i]->result.reuse.restored, restored[i]);
        const SpeculationReport& report = asked_[i]->result.speculation;
        EXPECT_LE(report.accepted, report.drafted);
        accepted += report.accepted;
      }
      // A second time, from the prefixes that the first one left.
      ASSERT_EQ(Answers(texts, depth), plain) << "depth " << depth;
      for (const auto& asked : asked_) ExpectExact(*asked);
      ExpectNothingLeaks();
    }
    EXPECT_GT(accepted, 200);
  }
};

TEST_P(SchedulerSpeculation, GreedyAnswersAreTheSame) {
  sampling_ = {.temperature = 0.0f};
  ExpectSameAtAllDepths();
}

TEST_P(SchedulerSpeculation, SampledAnswersAreTheSame) {
  sampling_ = {.temperature = 1.0f, .repeat_penalty = 1.2f, .frequency_penalty = 0.1f};
  ExpectSameAtAllDepths();
}

// A second turn finds the same state, whether the first one had drafts or not.
TEST_P(SchedulerSpeculation, NoPrefixIsLost) {
  std::vector<Position> restored;
  std::vector<Tokens> answers;
  for (const bool drafts : {false, true}) {
    Start(2, 0);
    asked_.clear();
    ScheduledRequest request;
    if (drafts) {
      Tokens text = SomeTokens(50);
      text.insert(text.end(), answers[0].begin(), answers[0].end());
      request.drafter = std::make_shared<ScriptedDrafter>(text, engine_->vocabulary_size(), 0.1);
      request.draft_tokens = 7;
    }
    const Asked& first = Ask(SomeTokens(50), 60, std::move(request));
    RunAll();
    answers.push_back(first.result.tokens);
    for (const int cut : {0, 1, 9, 30}) {
      Tokens next = SomeTokens(50);
      next.insert(next.end(), first.result.tokens.begin(), first.result.tokens.end() - cut);
      next.push_back(9);
      const Asked& second = Ask(next, 5);
      RunAll();
      ExpectExact(second);
      restored.push_back(second.result.reuse.restored);
    }
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(std::vector(restored.begin(), restored.begin() + 4),
            std::vector(restored.begin() + 4, restored.end()));
}

TEST_P(SchedulerSpeculation, AFailingDrafterFailsNoRequest) {
  Start(3, 0);
  const Asked& plain = Ask(SomeTokens(40), 30);
  RunAll();
  const Tokens expected = plain.result.tokens;
  for (int calls = 0; calls < 12; ++calls) {
    ScheduledRequest request;
    request.drafter = std::make_shared<FailingDrafter>(calls);
    request.draft_tokens = 3;
    asked_.clear();
    const Asked& asked = Ask(SomeTokens(40), 30, std::move(request));
    RunAll();
    ASSERT_TRUE(asked.result.status.ok()) << asked.result.status.message();
    EXPECT_EQ(asked.result.tokens, expected);
    ExpectExact(asked);
    if (static_cast<int>(expected.size()) > calls + 2) {
      EXPECT_EQ(asked.result.speculation.error.message(), "the drafter is gone");
    }
  }
}

TEST_P(SchedulerSpeculation, DraftsThatAreNoTokensAreDropped) {
  Start(2, 0);
  const Asked& plain = Ask(SomeTokens(40), 30);
  RunAll();
  const Tokens expected = plain.result.tokens;
  asked_.clear();
  ScheduledRequest request;
  request.drafter = std::make_shared<WildDrafter>();
  request.draft_tokens = 5;
  const Asked& asked = Ask(SomeTokens(40), 30, std::move(request));
  RunAll();
  EXPECT_EQ(asked.result.tokens, expected);
  ExpectExact(asked);
}

// The passes never have more tokens than a step, and a full context ends or is shifted as without.
TEST_P(SchedulerSpeculation, StepsAndContextsHaveTheirLimits) {
  sampling_ = {.temperature = 0.0f};
  for (const int max : {-1, 120}) {
    std::vector<std::vector<Tokens>> answers;
    for (const bool drafts : {false, true}) {
      Start(3, 0, {.step_tokens = 6});
      asked_.clear();
      for (int i = 0; i < 3; ++i) {
        ScheduledRequest request;
        if (drafts) {
          Tokens text = SomeTokens(200 + i);
          const Tokens& answer = answers[0][static_cast<std::size_t>(i)];
          text.insert(text.end(), answer.begin(), answer.end());
          request.drafter = std::make_shared<ScriptedDrafter>(text, engine_->vocabulary_size());
          request.draft_tokens = 16;
        }
        Ask(SomeTokens(200 + i), max, std::move(request));
      }
      std::int64_t evaluated = 0;
      while (*scheduler_->Step()) {
        EXPECT_LE(scheduler_->Stats().evaluated_tokens - evaluated, 6);
        evaluated = scheduler_->Stats().evaluated_tokens;
      }
      answers.emplace_back();
      for (const auto& asked : asked_) {
        EXPECT_TRUE(asked->result.status.ok()) << asked->result.status.message();
        answers.back().push_back(asked->result.tokens);
      }
    }
    EXPECT_EQ(answers[0], answers[1]) << "most " << max;
  }
}

// The second request says what the first one said. Only the same user profits.
TEST_P(SchedulerSpeculation, DraftsComeFromEarlierRequestsOfTheSameUser) {
  sampling_ = {.temperature = 0.0f};
  Start(2, 0, {.look_up_drafts = true});
  const Tokens prompt = SomeTokens(50);
  const Asked& first = Ask(prompt, 60, {.prompt = {}, .salt = 5, .draft_tokens = 6});
  RunAll();
  Tokens next(prompt.begin() + 20, prompt.end());  // not a prefix of the first
  next.insert(next.end(), first.result.tokens.begin(), first.result.tokens.begin() + 20);
  const Tokens whole = WithGreedyAnswer(next, 30);
  // A text that continues as the second request will.
  Ask(whole, 1, {.prompt = {}, .salt = 5});
  RunAll();
  const Asked& same = Ask(next, 30, {.prompt = {}, .salt = 5, .draft_tokens = 6});
  RunAll();
  const Asked& other = Ask(next, 30, {.prompt = {}, .salt = 6, .draft_tokens = 6});
  RunAll();
  const Asked& none = Ask(next, 30, {.prompt = {}, .salt = 5, .draft_tokens = 0});
  RunAll();
  for (const auto& asked : asked_) ExpectExact(*asked);
  EXPECT_EQ(same.result.tokens, other.result.tokens);
  EXPECT_EQ(same.result.tokens, none.result.tokens);
  EXPECT_EQ(none.result.speculation.drafted, 0);
  EXPECT_GT(same.result.speculation.accepted, 20);
  EXPECT_GE(same.result.speculation.accepted, other.result.speculation.accepted);
  ExpectNothingLeaks();
}

// Requests side by side with the model's own head, from prefixes too, and within a budget of bytes.
class SchedulerHeads : public SchedulerSpeculation {};

TEST_P(SchedulerHeads, ChangeNoAnswer) {
  Start(4, 0);
  const std::vector<Tokens> plain = Answers({}, 0);
  const EngineOptions with_head{.threads = 2,
                                .context = kContext,
                                .max_sequences = 4,
                                .prefill_chunk = 32,
                                .draft_head = path_};
  StartWith(with_head, {.use_engine_drafts = true});
  for (int time = 0; time < 2; ++time) {
    ASSERT_EQ(Answers({}, 0), plain);
    std::int64_t drafted = 0;
    for (const auto& asked : asked_) {
      ExpectExact(*asked);
      EXPECT_TRUE(asked->result.speculation.error.ok());
      EXPECT_TRUE(time == 0 || asked->result.reuse.restored > 0);
      drafted += asked->result.speculation.drafted;
    }
    EXPECT_GT(drafted, 0);
  }
  ExpectNothingLeaks();
  for (const int depth : {1, 6, 16}) {
    StartWith(with_head, {});
    asked_.clear();
    for (const Tokens& prompt : Prompts()) {
      ScheduledRequest request;
      request.drafter = std::shared_ptr<Drafter>(*MakeHeadDrafter(*engine_));
      request.draft_tokens = depth;
      Ask(prompt, kAnswer, std::move(request));
    }
    RunAll();
    for (std::size_t i = 0; i < asked_.size(); ++i) {
      ExpectExact(*asked_[i]);
      EXPECT_GT(asked_[i]->result.speculation.drafted, 0);
    }
    ExpectNothingLeaks();
  }
}

TEST_P(SchedulerSpeculation, BadDraftTokensAreRefused) {
  Start(1, 0);
  EXPECT_EQ(scheduler_->Submit({.prompt = {3}, .draft_tokens = 17}).status().message(),
            "draft tokens are 17; must be from 0 to 16");
}

INSTANTIATE_TEST_SUITE_P(Kinds, SchedulerSpeculation,
                         ::testing::Values("llama", "gemma3", "llama4", "qwen3next", "lfm2",
                                           "granitehybrid", "mamba2", "nemotron_h", "qwen35"),
                         [](const auto& kind) { return std::string(kind.param); });

INSTANTIATE_TEST_SUITE_P(Kinds, SchedulerHeads, ::testing::Values("llama", "qwen35", "qwen3next"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvcache::scheduler_speculation_test
