// A scheduler whose requests a smaller model drafts: the same tokens and the same logits as without.
#include "engine/drafts/draft_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/scheduler_fixture.h"

namespace kvcache::draft_model_test {
namespace {

class DraftModelTest : public SchedulerFixture {
 protected:
  static constexpr int kBatch = 32;  // of the draft model

  // The model drafts for itself, so that greedy drafts are right.
  std::shared_ptr<Engine> Draft(int sequences) {
    return Open(
        {.threads = 2, .context = kContext, .max_sequences = sequences, .prefill_chunk = kBatch});
  }
  void StartWithDrafts(const EngineOptions& options, SchedulerOptions scheduler = {}) {
    scheduler_.reset();
    engine_ = Open(options);
    const Status used = engine_->UseDraftModel(Draft(options.max_sequences));
    ASSERT_TRUE(used.ok()) << used.message();
    scheduler.recompute_bound = 32;
    scheduler.use_engine_drafts = true;
    auto made = Scheduler::Make(*engine_, scheduler);
    ASSERT_TRUE(made.ok()) << made.status().message();
    scheduler_ = std::move(made).value();
  }
  void StartWithDrafts(int sequences) {
    StartWithDrafts(
        {.threads = 2, .context = kContext, .max_sequences = sequences, .prefill_chunk = kBatch});
  }
  // Runs requests, of which some begin alike, with these numbers of drafts. Returns their answers.
  std::vector<Tokens> Answers(std::vector<int> drafts) {
    asked_.clear();
    for (std::size_t i = 0; i < drafts.size(); ++i) {
      Tokens prompt = SomeTokens(40 + 7 * static_cast<int>(i % 3));
      prompt.push_back(static_cast<std::int32_t>(5 + i % 4));
      ScheduledRequest request;
      request.draft_tokens = drafts[i];
      Ask(prompt, 40, std::move(request));
      for (int steps = 0; steps < 3; ++steps) EXPECT_TRUE(*scheduler_->Step());
    }
    RunAll();
    std::vector<Tokens> answers;
    for (const auto& asked : asked_) {
      EXPECT_TRUE(asked->result.status.ok()) << asked->result.status.message();
      EXPECT_TRUE(asked->result.speculation.error.ok())
          << asked->result.speculation.error.message();
      answers.push_back(asked->result.tokens);
    }
    return answers;
  }
};

TEST_P(DraftModelTest, AnswersAreThoseWithoutDrafts) {
  for (const float temperature : {0.0f, 1.0f}) {
    sampling_.temperature = temperature;
    Start(3, 0);
    const std::vector<Tokens> plain = Answers({0, 0, 0, 0, 0, 0});
    StartWithDrafts(3);
    for (int round = 0; round < 2; ++round) {  // again from the prefixes of the first
      EXPECT_EQ(Answers({3, 0, 16, -1, 1, 7}), plain);
      std::int64_t accepted = 0;
      for (const auto& asked : asked_) {
        ExpectExact(*asked);
        accepted += asked->result.speculation.accepted;
        if (temperature == 0.0f) {
          EXPECT_EQ(asked->result.speculation.accepted, asked->result.speculation.drafted);
        }
      }
      EXPECT_GT(accepted, temperature == 0.0f ? 60 : 0);
    }
  }
}

// A prompt is read in batches while the answer continues; a sequence keeps the text that it read last.
TEST_P(DraftModelTest, ReadsALongPromptInParts) {
  sampling_.temperature = 0.0f;
  StartWithDrafts(1);
  const auto ask = [&](const Tokens& prompt, std::uint64_t salt = 0) {
    ScheduledRequest request;
    request.salt = salt;
    request.draft_tokens = 4;
    const Asked& asked = Ask(prompt, 11, std::move(request));
    RunAll();
    return asked.result.speculation;
  };
  const Tokens prompt = SomeTokens(3 * kBatch + 5);
  EXPECT_EQ(ask(prompt).drafted, 5);  // the first token, three plain passes, 4 drafts, 1 draft
  // The first token, 4 drafts, 4 drafts. A recurrent state goes back to a checkpoint.
  const bool recurrent = std::string(GetParam()) == "qwen3next";
  EXPECT_EQ(ask(prompt).drafted, recurrent ? 6 : 8);
  EXPECT_EQ(ask(prompt, 1).drafted, 5) << "nothing is known of other users' texts";
  EXPECT_EQ(ask(SomeTokens(50, 9)).drafted, 7);
  for (const auto& asked : asked_) ExpectExact(*asked);
}

// Reading a prompt is no part of a draft's time.
TEST_P(DraftModelTest, OnlyDraftsAreMeasured) {
  if (std::string(GetParam()) == "qwen3next")
    GTEST_SKIP() << "its state goes back far over a draft";
  engine_ = Open({.context = kContext});
  const auto made = DraftModel::Make(Draft(1), *engine_, 0);
  ASSERT_TRUE(made.ok()) << made.status().message();
  DraftModel& model = **made;
  const auto drafter = model.MakeDrafter(0);
  ASSERT_TRUE(drafter->Begin(SomeTokens(2 * kBatch + 20)).ok());
  Tokens drafts;
  for (const bool is_read : {false, false, true}) {
    ASSERT_TRUE(drafter->Propose(3, drafts).ok());
    EXPECT_EQ(drafts.empty(), !is_read);
    EXPECT_EQ(model.Seconds(1), 0.0);
  }
  ASSERT_TRUE(drafter->Add(drafts.front()).ok());
  drafts.clear();
  ASSERT_TRUE(drafter->Propose(3, drafts).ok());
  EXPECT_FALSE(drafts.empty());
  EXPECT_GT(model.Seconds(1), 0.0);
  EXPECT_EQ(model.Seconds(2), 2 * model.Seconds(1));
}

// Long prompts of several requests are read one after the other, in the passes that others have anyway.
TEST_P(DraftModelTest, SeveralPromptsShareTheReading) {
  sampling_.temperature = 0.0f;
  // Passes take no time, so that all prompts end within a few.
  StartWithDrafts({.threads = 2, .context = kContext, .max_sequences = 4, .prefill_chunk = 512},
                  {.clock = [] { return 0.0; }});
  for (int i = 0; i < 4; ++i) {
    ScheduledRequest request;
    request.draft_tokens = 4;
    Ask(SomeTokens(6 * kBatch + 5, 3 + 11 * i), 30, std::move(request));
  }
  RunAll();
  std::int64_t min = 1000;
  std::int64_t max = 0;
  for (const auto& asked : asked_) {
    ExpectExact(*asked);
    min = std::min(min, asked->result.speculation.drafted);
    max = std::max(max, asked->result.speculation.drafted);
  }
  EXPECT_GE(max, min + 5) << "one is read before the others";
}

TEST_P(DraftModelTest, ItsMemoryIsAPartOfTheBudget) {
  const EngineOptions options{.threads = 2,
                              .context = kContext,
                              .max_sequences = 3,
                              .pool_tokens = 4096,
                              .releases_memory = true,
                              .prefill_chunk = kBatch};
  engine_ = Open(options);
  const std::int64_t min = Scheduler::MinBudget(*engine_);
  const std::int64_t without = engine_->WorkspaceBytes();
  const auto draft = Draft(3);
  EXPECT_EQ(engine_->UseDraftModel(draft, 1000).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(engine_->draft_model(), nullptr);
  const std::int64_t bytes = draft->cache().memory()->AllocatedBytes() + draft->WorkspaceBytes();
  EXPECT_GT(draft->cache().memory()->AllocatedBytes(), 0);
  ASSERT_TRUE(engine_->UseDraftModel(draft, bytes).ok());
  EXPECT_EQ(engine_->WorkspaceBytes(), without + bytes);
  EXPECT_EQ(engine_->UseDraftModel(draft, bytes).message(), "the engine has a draft model");
  EXPECT_EQ(Open(options)->UseDraftModel(nullptr).message(), "there is no draft model");
  StartWithDrafts(options);
  EXPECT_EQ(Scheduler::MinBudget(*engine_), min + bytes);
  const std::int64_t budget = Scheduler::MinBudget(*engine_) + min / 2;
  StartWithDrafts(options, {.budget_bytes = budget, .free_memory_share = 0.0});
  Answers({-1, 4, -1, 4, 16, 2});
  for (const auto& asked : asked_) ExpectExact(*asked);
  EXPECT_LE(scheduler_->Stats().max_held_bytes, budget);
  EXPECT_GT(scheduler_->Stats().max_held_bytes, bytes);
}

TEST_P(DraftModelTest, RefusesAModelThatCannotDraft) {
  engine_ = Open({.context = kContext, .max_sequences = 3});
  EXPECT_EQ(engine_->UseDraftModel(Draft(2)).message(),
            "the draft model has 2 sequences, the model 3; must be as many");
  EXPECT_EQ(engine_->draft_model(), nullptr);
  make_model::Request other{.architecture = "t5", .type = DType::kF32};
  const std::string path = path_ + ".other";
  ASSERT_TRUE(make_model::MakeModel(other, path).ok());
  auto encoder = Engine::Open(path, {.context = kContext, .max_sequences = 3});
  std::filesystem::remove(path);
  ASSERT_TRUE(encoder.ok()) << encoder.status().message();
  EXPECT_EQ(engine_->UseDraftModel(std::move(encoder).value()).message(),
            "a model with an encoder cannot draft");
}

INSTANTIATE_TEST_SUITE_P(Models, DraftModelTest,
                         ::testing::Values("llama", "gemma3", "qwen3next", "llama4"),
                         [](const auto& architecture) { return std::string(architecture.param); });

}  // namespace
}  // namespace kvcache::draft_model_test
