// Answers with drafters, on models of every kind: the same tokens as without, whatever the drafter proposes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "kvcache_engine/generate.h"
#include "kvcache_engine/model_drafter.h"
#include "make_model/make_model.h"
#include "support/drafts/scripted_drafter.h"

namespace kvcache::speculation_test {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr int kContext = 160;

using Oracle = testing::ScriptedDrafter;

// Fails in one of its calls.
class Failing final : public Drafter {
 public:
  Failing(Oracle& oracle, int calls) : oracle_(oracle), left_(calls) {}
  Status Begin(std::span<const std::int32_t> text) override {
    return Fails() ? Failure() : oracle_.Begin(text);
  }
  Status Add(std::int32_t token) override { return Fails() ? Failure() : oracle_.Add(token); }
  Status Propose(int max, Tokens& drafts) override {
    const Status status = oracle_.Propose(max, drafts);
    return Fails() ? Failure() : status;
  }

 private:
  bool Fails() { return left_-- == 0; }
  static Status Failure() { return {StatusCode::kIo, "the drafter is gone"}; }

  Oracle& oracle_;
  int left_;
};

class SpeculationTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "speculation." + std::to_string(getpid()) + ".gguf";
    make_model::Request request{.architecture = GetParam(), .type = DType::kF32};
    const std::string architecture = GetParam();
    if (architecture == "gemma3") {
      request.shape.window = 24;
      request.shape.window_pattern = 2;
    }
    if (architecture == "qwen3next" || architecture == "llama4") request.shape.experts = 4;
    ASSERT_TRUE(make_model::MakeModel(request, path_).ok());
    engine_ = *Engine::Open(
        path_, {.threads = 2, .context = kContext, .max_sequences = 2, .prefill_chunk = 32});
  }
  void TearDown() override { std::filesystem::remove(path_); }

  static Tokens SomeTokens(int count) {
    Tokens tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(3 + i * 37 % 250);
    return tokens;
  }

  GenerateResult Run(const GenerateRequest& request) {
    const auto scheduler = std::move(*Scheduler::Make(*engine_, {}));
    auto result = Generate(*scheduler, request);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return *std::move(result);
  }

  // Compares the answer with that of an oracle, for depths.
  void ExpectSame(GenerateRequest request) {
    const GenerateResult plain = Run(request);
    Tokens text = request.prompt;
    text.insert(text.end(), plain.tokens.begin(), plain.tokens.end());
    text.push_back(7);
    std::int64_t accepted = 0;
    for (const int depth : {-1, 0, 1, 3, 16}) {
      Oracle oracle(text, engine_->vocabulary_size());
      request.drafter = &oracle;
      request.draft_tokens = depth;
      const GenerateResult drafted = Run(request);
      ASSERT_EQ(drafted.tokens, plain.tokens) << "depth " << depth;
      ASSERT_EQ(drafted.text, plain.text);
      ASSERT_EQ(drafted.stop, plain.stop);
      ASSERT_EQ(drafted.shifts, plain.shifts);
      ASSERT_EQ(drafted.decoded_tokens, plain.decoded_tokens);
      ASSERT_EQ(drafted.evaluated, plain.evaluated);
      ASSERT_LE(drafted.speculation.accepted, drafted.speculation.drafted);
      ASSERT_EQ(drafted.decode_passes<plain.decode_passes, drafted.speculation.accepted> 0);
      accepted += drafted.speculation.accepted;
    }
    if (plain.tokens.size() > 8) {
      EXPECT_GT(accepted, 0);
    }
  }

  std::string path_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(SpeculationTest, GreedyAnswersAreTheSame) {
  for (const int length : {1, 30, 70}) {
    ExpectSame({.prompt = SomeTokens(length), .max_tokens = 60, .sampling = {.temperature = 0.0f}});
  }
}

TEST_P(SpeculationTest, SampledAnswersAreTheSame) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    ExpectSame({.prompt = SomeTokens(40),
                .max_tokens = 50,
                .sampling = {.temperature = 1.0f, .repeat_penalty = 1.2f, .seed = seed}});
  }
}

TEST_P(SpeculationTest, LimitsAndStopStringsAreKept) {
  for (const int max : {0, 1, 2, 5}) {
    ExpectSame({.prompt = SomeTokens(20), .max_tokens = max, .sampling = {.temperature = 1.0f}});
  }
  const GenerateRequest request{
      .prompt = SomeTokens(20), .max_tokens = 40, .sampling = {.temperature = 1.0f, .seed = 4}};
  const std::string text = Run(request).text;
  GenerateRequest stopped = request;
  stopped.stop = {text.substr(text.size() / 2, 3)};
  ExpectSame(stopped);
}

TEST_P(SpeculationTest, AFullContextEndsOrIsShifted) {
  ExpectSame({.prompt = SomeTokens(130), .max_tokens = -1, .sampling = {.temperature = 1.0f}});
  ExpectSame({.prompt = SomeTokens(130), .max_tokens = 80, .sampling = {.temperature = 1.0f}});
}

TEST_P(SpeculationTest, AModelDraftsForItself) {
  const auto draft = *Engine::Open(path_, {.threads = 2, .context = kContext});
  const auto drafter = MakeModelDrafter(*draft, *engine_);
  ASSERT_TRUE(drafter.ok()) << drafter.status().message();
  GenerateRequest request{
      .prompt = SomeTokens(30), .max_tokens = 41, .sampling = {.temperature = 0.0f}};
  const GenerateResult plain = Run(request);
  request.drafter = drafter->get();
  request.draft_tokens = 7;
  for (int i = 0; i < 2; ++i) {
    const GenerateResult drafted = Run(request);
    EXPECT_EQ(drafted.tokens, plain.tokens);
    EXPECT_EQ(drafted.speculation.accepted, drafted.speculation.drafted);
  }
}

TEST_P(SpeculationTest, AnAnswerContinuesWithoutADrafterThatFails) {
  GenerateRequest request{.prompt = SomeTokens(20), .max_tokens = 24};
  const GenerateResult plain = Run(request);
  Tokens text = request.prompt;
  text.insert(text.end(), plain.tokens.begin(), plain.tokens.end());
  int failed = 0;
  for (int calls = 0; calls < 20; ++calls) {
    Oracle oracle(text, engine_->vocabulary_size());
    Failing failing(oracle, calls);
    request.drafter = &failing;
    request.draft_tokens = 3;
    const GenerateResult drafted = Run(request);
    EXPECT_EQ(drafted.tokens, plain.tokens) << calls;
    EXPECT_EQ(drafted.stop, plain.stop);
    if (drafted.speculation.error.ok()) continue;
    EXPECT_EQ(drafted.speculation.error.message(), "the drafter is gone");
    ++failed;
  }
  EXPECT_GT(failed, 0);
}

TEST_P(SpeculationTest, BadDraftTokensAreRefused) {
  const auto scheduler = std::move(*Scheduler::Make(*engine_, {}));
  const auto result = Generate(*scheduler, {.prompt = SomeTokens(3), .draft_tokens = 17});
  EXPECT_EQ(result.status().message(), "draft tokens are 17; must be from 0 to 16");
}

INSTANTIATE_TEST_SUITE_P(Kinds, SpeculationTest,
                         ::testing::Values("llama", "gemma3", "llama4", "qwen3next", "lfm2",
                                           "granitehybrid", "mamba2", "nemotron_h", "qwen35"),
                         [](const auto& kind) { return std::string(kind.param); });

}  // namespace
}  // namespace kvcache::speculation_test
