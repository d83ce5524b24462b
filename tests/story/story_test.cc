// Checks that the shipped models answer questions about stories that they were not trained on.
// models/questions.jsonl has held-out stories (made by tools/train/evaluate.py), each with a
// question whose answer depends on the story alone. Correct answers show that each kind of cache
// retains the right tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "kvcache_engine/generate.h"
#include "kvcache_engine/head_drafter.h"
#include "kvcache_engine/session.h"

namespace kvcache::story_test {
namespace {

const std::string kModels = std::string(KVCACHE_SOURCE_DIR) + "/models/";

struct Tally {
  int asked = 0;
  int right = 0;
  double Share() const { return asked > 0 ? static_cast<double>(right) / asked : 0.0; }
};

std::unique_ptr<Engine> OpenModel(const std::string& name, EngineOptions options = {}) {
  auto engine = Engine::Open(kModels + name, options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(engine).value() : nullptr;
}

// Returns the model's text after the prompt, up to `stop`.
std::string Answer(Engine& engine, const std::string& prompt, const std::string& stop) {
  const auto tokens = engine.tokenizer().Encode(prompt);
  EXPECT_TRUE(tokens.ok());
  GenerateRequest request{.prompt = *tokens, .max_tokens = 24, .stop = {stop}};
  request.sampling.temperature = 0.0f;
  const auto result = Generate(**Scheduler::Make(engine, {}), request);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result->text : "";
}

std::string Trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin);
}

// A model and its layers' kinds of cache.
struct ShippedModel {
  const char* name;
  std::set<LayerMemory::Kind> kinds;
};
class Story : public ::testing::TestWithParam<ShippedModel> {};

TEST_P(Story, HasTheExpectedCacheKinds) {
  const auto engine = OpenModel(GetParam().name);
  ASSERT_NE(engine, nullptr);
  std::set<LayerMemory::Kind> kinds;
  for (const LayerMemory& layer : engine->info().memory) kinds.insert(layer.kind);
  EXPECT_EQ(kinds, GetParam().kinds);
}

// Answers all questions with a cache of these types.
void ExpectRightAnswers(const char* model, DType k_type, DType v_type) {
  const auto engine = OpenModel(model, {.k_type = k_type, .v_type = v_type});
  ASSERT_NE(engine, nullptr);
  std::ifstream cases(kModels + "questions.jsonl");
  ASSERT_TRUE(cases) << "models/questions.jsonl is missing";
  std::map<int, Tally> by_distance;  // lower end of the bucket → tally
  Tally all, far;
  for (std::string line; std::getline(cases, line);) {
    const nlohmann::json one = nlohmann::json::parse(line);
    const int distance = one["distance_tokens"];
    const bool right = Trimmed(Answer(*engine, one["prompt"], one["stop"])) == one["answer"];
    for (Tally* tally : {&all, &by_distance[distance / 100 * 100]}) {
      ++tally->asked;
      tally->right += right;
    }
    if (distance >= 200) {
      ++far.asked;
      far.right += right;
    }
  }
  for (const auto& [from, tally] : by_distance) {
    std::cout << "  " << from << "+ tokens: " << tally.right << " of " << tally.asked << "\n";
  }
  ASSERT_GE(all.asked, 100);
  ASSERT_GE(far.asked, 30);
  EXPECT_GE(all.Share(), 0.95) << all.right << " of " << all.asked;
  EXPECT_GE(far.Share(), 0.95) << far.right << " of " << far.asked << " at 200 tokens or more";
}

TEST_P(Story, AnswersQuestionsHundredsOfTokensAfterTheFact) {
  ExpectRightAnswers(GetParam().name, DType::kF16, DType::kF16);
}

// A cache of block types has two fifths of the bytes and loses hardly any answer.
TEST_P(Story, AnswersQuestionsWithBlockTypes) {
  ExpectRightAnswers(GetParam().name, DType::kQ8_0, DType::kQ4_0);
}

TEST_P(Story, TellsAStoryThatEnds) {
  const auto engine = OpenModel(GetParam().name);
  ASSERT_NE(engine, nullptr);
  const auto prompt = engine->tokenizer().Encode("Once upon a time");
  ASSERT_TRUE(prompt.ok());
  int ended = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    GenerateRequest request{.prompt = *prompt};
    request.sampling.seed = seed;
    const auto result = Generate(**Scheduler::Make(*engine, {}), request);
    ASSERT_TRUE(result.ok()) << result.status().message();
    EXPECT_GT(result->tokens.size(), 20u);
    ended += result->stop == StopReason::kEndOfText;
  }
  EXPECT_GE(ended, 4) << "stories must reach the end of the context";
}

using Kind = LayerMemory::Kind;
INSTANTIATE_TEST_SUITE_P(
    Models, Story,
    ::testing::Values(ShippedModel{"story.gguf", {Kind::kFull}},
                      ShippedModel{"story-window.gguf", {Kind::kSliding, Kind::kFull}},
                      ShippedModel{"story-hybrid.gguf", {Kind::kRecurrent, Kind::kFull}}),
    [](const auto& test) {
      std::string name = test.param.name;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
      return name;
    });

TEST(StoryDraft, SharesTheVocabulary) {
  const auto engine = OpenModel("story.gguf");
  const auto draft = OpenModel("story-draft.gguf");
  ASSERT_NE(engine, nullptr);
  ASSERT_NE(draft, nullptr);
  EXPECT_LT(draft->info().parameters * 3, engine->info().parameters);
  ASSERT_EQ(draft->info().vocabulary, engine->info().vocabulary);
  for (std::int32_t token = 0; token < engine->info().vocabulary; ++token) {
    ASSERT_EQ(draft->tokenizer().Piece(token), engine->tokenizer().Piece(token)) << token;
  }
}

// The head's training measured that its first choice is the model's at 84% of all positions.
TEST(StoryHead, DraftsAsItsTrainingMeasured) {
  const std::string folder = std::string(KVCACHE_SOURCE_DIR) + "/models/";
  auto engine = Engine::Open(folder + "story.gguf", {.draft_head = folder + "story-head.gguf"});
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const auto drafter = *MakeHeadDrafter(**engine);
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;
  for (const char* prompt :
       {"Once upon a time", "Mia had a red ball.", "One morning Otto and Ivy"}) {
    GenerateRequest request;
    request.prompt = *(*engine)->Tokenize(prompt);
    request.max_tokens = 300;
    request.sampling.temperature = 0.0f;
    const auto expected = *Generate(**Scheduler::Make(**engine, {}), request);
    request.drafter = drafter.get();
    request.draft_tokens = 1;
    const auto answer = *Generate(**Scheduler::Make(**engine, {}), request);
    EXPECT_EQ(answer.tokens, expected.tokens);
    drafted += answer.speculation.drafted;
    accepted += answer.speculation.accepted;
  }
  ASSERT_GT(drafted, 150);
  EXPECT_GT(accepted * 100, drafted * 75) << accepted << " of " << drafted;
}

}  // namespace
}  // namespace kvcache::story_test
