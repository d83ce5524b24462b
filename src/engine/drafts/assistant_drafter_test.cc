// gemma4's draft head, which reads the model's keys and values: answers are those without it, whatever the
// types of the cache, the depth and the way of the text into the cache.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/persist/store_fingerprint.h"
#include "engine/prefixes/hidden_states.h"
#include "kvcache_engine/generate.h"
#include "kvcache_engine/head_drafter.h"
#include "kvcache_engine/scheduler.h"
#include "kvcache_engine/session.h"
#include "support/assistant_pair.h"

namespace kvcache::assistant_drafter_test {
namespace {

using Tokens = std::vector<std::int32_t>;
using Row = std::vector<float>;
using testing::AssistantPair;

constexpr int kContext = 192;

Tokens SomeTokens(int count, int seed = 0) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(3 + (seed + i) * 37 % 250);
  return tokens;
}

class AssistantTest : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> Open(DType k_type, DType v_type, bool drafts = true) {
    auto engine = Engine::Open(pair_.model(), {.threads = 2,
                                               .k_type = k_type,
                                               .v_type = v_type,
                                               .context = kContext,
                                               .max_sequences = 4,
                                               .prefill_chunk = 32,
                                               .draft_head = drafts ? pair_.head() : ""});
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }

  static GenerateResult Run(Engine& engine, const GenerateRequest& request) {
    const auto scheduler = std::move(*Scheduler::Make(engine, {}));
    auto result = Generate(*scheduler, request);
    EXPECT_TRUE(result.ok()) << result.status().message();
    EXPECT_TRUE(result->speculation.error.ok()) << result->speculation.error.message();
    return *std::move(result);
  }

  // Returns the head's logits for a token and four drafts behind the session's text.
  static std::vector<Row> HeadLogits(Engine& engine, Session& session, std::int32_t token) {
    std::vector<Row> all;
    const float* const state = engine.states()->Find(session.sequence(), session.position() - 1);
    EXPECT_NE(state, nullptr);
    if (state == nullptr) return all;
    Row states(state, state + engine.info().hidden_size);
    Row logits(static_cast<std::size_t>(engine.vocabulary_size()));
    const Position position[] = {session.position()};
    const SequenceLength row[] = {{session.sequence(), session.position()}};
    EXPECT_TRUE(engine.model().BeginDrafts(engine.cache(), row).ok());
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(engine.model()
                      .Draft({&token, 1}, position, states.data(), engine.cache(), logits.data(),
                             states.data())
                      .ok());
      all.push_back(logits);
      token = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                        logits.begin());
    }
    return all;
  }

  AssistantPair pair_{::testing::TempDir() + "assistant." + std::to_string(getpid())};
};

TEST_F(AssistantTest, AnswersAreThoseWithout) {
  constexpr std::pair<DType, DType> kTypes[] = {
      {DType::kF32, DType::kF32},   {DType::kF16, DType::kF16},   {DType::kBF16, DType::kBF16},
      {DType::kQ8_0, DType::kQ8_0}, {DType::kQ4_0, DType::kQ4_0}, {DType::kQ8_0, DType::kF16}};
  for (const auto& [k_type, v_type] : kTypes) {
    const auto engine = Open(k_type, v_type);
    const auto drafter = *MakeHeadDrafter(*engine);
    for (const float temperature : {0.0f, 0.8f}) {
      GenerateRequest request;
      request.prompt = SomeTokens(50);
      request.max_tokens = 100;  // far past the windows
      request.sampling.temperature = temperature;
      request.sampling.seed = 4;
      const GenerateResult plain = Run(*engine, request);
      ASSERT_GT(plain.tokens.size(), 60u);
      request.drafter = drafter.get();
      for (int depth = -1; depth <= 16; ++depth) {
        if (depth == 0 || (temperature > 0.0f && depth % 5 != 2)) continue;
        request.draft_tokens = depth;
        const GenerateResult drafted = Run(*engine, request);
        ASSERT_EQ(drafted.tokens, plain.tokens) << InfoOf(k_type).name << ", depth " << depth;
        ASSERT_EQ(drafted.stop, plain.stop);
        if (depth < 1 || temperature > 0.0f) continue;
        EXPECT_GT(drafted.speculation.accepted, static_cast<int>(plain.tokens.size()) / 5);
        EXPECT_LT(drafted.speculation.accepted, drafted.speculation.drafted);
      }
    }
  }
}

// The head's logits have the same bits whether the text was evaluated at once, in parts, in rounds of drafts
// that were partly wrong, or copied from another sequence.
TEST_F(AssistantTest, DraftsDoNotDependOnTheWayOfTheText) {
  for (const DType type : {DType::kF16, DType::kQ8_0}) {
    const auto engine = Open(type, type);
    const Tokens text = SomeTokens(96);
    Session whole(*engine, SequenceId{0});
    ASSERT_TRUE(whole.Append(text).ok());
    const std::vector<Row> expected = HeadLogits(*engine, whole, 9);
    ASSERT_EQ(expected.size(), 5u);
    ASSERT_EQ(HeadLogits(*engine, whole, 9), expected) << "drafts leave nothing behind";
    Session parts(*engine, SequenceId{1});
    for (std::size_t at = 0, size = 1; at < text.size();
         at += size, size = std::min<std::size_t>(1 + (size * 5) % 13, text.size() - at)) {
      ASSERT_TRUE(parts.Append(std::span(text).subspan(at, size)).ok());
    }
    ASSERT_EQ(HeadLogits(*engine, parts, 9), expected);
    Session rounds(*engine, SequenceId{2});
    ASSERT_TRUE(rounds.Append(std::span(text).first(10)).ok());
    for (int round = 0; rounds.tokens().size() < text.size(); ++round) {
      const std::size_t at = rounds.tokens().size();
      const std::size_t right = std::min<std::size_t>(text.size() - at - 1, round % 4);
      Tokens drafts;
      for (std::size_t i = 0; i < right + 3; ++i) {
        drafts.push_back(i < right ? text[at + 1 + i] : 7);
      }
      ASSERT_TRUE(rounds
                      .Verify(text[at], drafts,
                              [&](std::span<const float>) {
                                return Result<Position>(static_cast<Position>(right));
                              })
                      .ok());
    }
    ASSERT_EQ(HeadLogits(*engine, rounds, 9), expected);
    Session copy(*engine, SequenceId{3});
    ASSERT_TRUE(copy.ForkFrom(rounds, rounds.position()).ok());
    ASSERT_EQ(HeadLogits(*engine, copy, 9), expected);
  }
}

// The keys and values of a snapshot are the model's, so that drafts behind it are as before. Only the state
// of the last token is not in it.
TEST_F(AssistantTest, DraftsAreTheSameBehindASnapshot) {
  const auto engine = Open(DType::kF16, DType::kF16);
  Session session(*engine, SequenceId{0});
  const Tokens text = SomeTokens(90);
  ASSERT_TRUE(session.Append(std::span(text).first(64)).ok());
  auto snapshot = engine->cache().snapshots()->TakeSnapshot(SequenceId{0}, 0, 64);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
  ASSERT_TRUE(session.Append(std::span(text).subspan(64)).ok());
  Session other(*engine, SequenceId{1});
  ASSERT_TRUE(other.Restore(snapshot->get(), std::span(text).first(64)).ok());
  ASSERT_EQ(engine->states()->Find(SequenceId{1}, 63), nullptr);
  ASSERT_TRUE(other.Append(std::span(text).subspan(64)).ok());
  ASSERT_EQ(HeadLogits(*engine, other, 9), HeadLogits(*engine, session, 9));
}

// Requests side by side, each with another depth, and again from the prefixes that they left.
TEST_F(AssistantTest, RequestsSideBySide) {
  const Tokens prompts[] = {SomeTokens(61), SomeTokens(61), SomeTokens(5, 40), SomeTokens(90, 7)};
  const auto answers = [&](Engine& engine, int depth, int rounds, std::int64_t* accepted) {
    auto scheduler = *Scheduler::Make(engine, {.use_engine_drafts = depth >= 0});
    std::vector<Tokens> all;
    for (int round = 0; round < rounds; ++round) {
      std::vector<Tokens> tokens(std::size(prompts));
      for (std::size_t i = 0; i < std::size(prompts); ++i) {
        ScheduledRequest request;
        request.prompt = prompts[i];
        request.max_tokens = 80;
        request.sampling.temperature = i == 3 ? 0.7f : 0.0f;
        request.sampling.seed = 9;
        request.draft_tokens = (depth + 5 * static_cast<int>(i)) % 17;
        request.on_done = [&tokens, i, accepted](const RequestResult& result) {
          EXPECT_TRUE(result.status.ok()) << result.status.message();
          EXPECT_TRUE(result.speculation.error.ok()) << result.speculation.error.message();
          tokens[i] = result.tokens;
          *accepted += result.speculation.accepted;
        };
        EXPECT_TRUE(scheduler->Submit(std::move(request)).ok());
      }
      while (*scheduler->Step()) {
      }
      all.insert(all.end(), tokens.begin(), tokens.end());
    }
    return all;
  };
  std::int64_t accepted = 0;
  const auto plain_engine = Open(DType::kF16, DType::kF16, false);
  const std::vector<Tokens> plain = answers(*plain_engine, -1, 2, &accepted);
  ASSERT_EQ(accepted, 0);
  const auto engine = Open(DType::kF16, DType::kF16);
  for (int depth = 0; depth <= 16; ++depth) {
    ASSERT_EQ(answers(*engine, depth, 2, &accepted), plain) << "depth " << depth;
  }
  EXPECT_GT(accepted, 1000);
}

// States do not depend on the head: stores may mix those of engines with and without it.
TEST_F(AssistantTest, FingerprintsDoNotNameTheHead) {
  const auto with = Open(DType::kF16, DType::kF16);
  const auto without = Open(DType::kF16, DType::kF16, false);
  EXPECT_TRUE(with->has_draft_head());
  EXPECT_FALSE(without->has_draft_head());
  EXPECT_EQ(FingerprintText(*with, {}).value(), FingerprintText(*without, {}).value());
}

TEST_F(AssistantTest, TheFileIsNoModel) {
  const auto engine = Engine::Open(pair_.head(), {.threads = 1});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().message(),
            pair_.head() + ": the file has a draft head and no model; '--draft' takes it");
}

// Opens a gemma4 model with the head of another file, and returns the error.
std::string ErrorWith(const make_model::Request& head, const make_model::Request& model) {
  const std::string folder = ::testing::TempDir() + "assistants." + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const std::string model_path = folder + "/model.gguf";
  const std::string head_path = folder + "/head.gguf";
  EXPECT_TRUE(make_model::MakeModel(model, model_path).ok());
  EXPECT_TRUE(make_model::MakeModel(head, head_path).ok());
  const auto engine = Engine::Open(model_path, {.threads = 1, .draft_head = head_path});
  std::filesystem::remove_all(folder);
  if (engine.ok()) return "";
  const std::string message(engine.status().message());
  EXPECT_TRUE(message.starts_with(head_path + ": ")) << message;
  return message.substr(std::min(message.size(), head_path.size() + 2));
}

TEST(AssistantFile, AnotherModelsHeadIsRefused) {
  make_model::Request model{.architecture = "gemma4", .type = DType::kF32};
  model.shape.head_dim = 64;
  model.shape.window = 24;
  make_model::Request head = model;
  head.architecture = "gemma4-assistant";
  head.shape.hidden_size = 64;
  struct Case {
    const char* name;
    void (*change)(make_model::Shape& head, make_model::Shape& model);
    const char* error;
  };
  const Case cases[] = {
      {"fits", [](auto&, auto&) {}, ""},
      {"hidden size", [](auto& h, auto&) { h.family.target_size = 96; },
       "the draft head is for a model with 96 values per token; this one has 128"},
      {"vocabulary", [](auto& h, auto&) { h.vocab = 500; },
       "the draft head is for a model with 500 tokens in the vocabulary; this one has 512"},
      {"window", [](auto& h, auto&) { h.window = 25; },
       "the draft head is for a model with 25 tokens in a window; this one has 24"},
      {"heads", [](auto& h, auto&) { h.head_dim = 128; },
       "the draft head is for a model with 64 values in a head of layers with a window; this one "
       "has 32"},
      {"KV heads", [](auto& h, auto&) { h.kv_heads = 4; },
       "the draft head is for a model with 4 KV heads of layers without a window; this one has 2"},
      {"layers of another kind", [](auto&, auto& m) { m.window_pattern = 1; },
       "layer 0 of the draft head reads keys and values of layers with a window; the model has no "
       "such layer"},
      {"windows alone", [](auto&, auto& m) { m.window_pattern = 0; },
       "layer 1 of the draft head reads keys and values of layers without a window; the model has "
       "no such layer"},
      {"windows of both", [](auto& h, auto& m) { h.window_pattern = m.window_pattern = 0; }, ""},
  };
  for (const Case& each : cases) {
    make_model::Request other = head;
    make_model::Request target = model;
    each.change(other.shape, target.shape);
    EXPECT_EQ(ErrorWith(other, target), each.error) << each.name;
  }
}

TEST(AssistantFile, OtherFilesAreRefused) {
  make_model::Request model{.architecture = "gemma4", .type = DType::kF32};
  EXPECT_EQ(ErrorWith(model, model),
            "the file has no draft head for gemma4: its architecture is 'gemma4', that of such "
            "heads is 'gemma4-assistant'");
  make_model::Request head = model;
  head.architecture = "gemma4-assistant";
  model.architecture = "llama";
  EXPECT_EQ(ErrorWith(head, model),
            "the draft head is for 'gemma4-assistant', the model is 'llama'");
  model.architecture = "gemma3";
  EXPECT_EQ(ErrorWith(head, model), "models of architecture gemma3 have no draft heads here");
}

}  // namespace
}  // namespace kvcache::assistant_drafter_test
