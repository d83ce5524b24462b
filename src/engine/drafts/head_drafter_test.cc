// Draft heads, on families and kinds of caches: answers are those without a head, and the head drafts the
// same whichever way its text came into the cache.
#include "kvcache_engine/head_drafter.h"
#include "kvcache/wrapper_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/prefixes/hidden_states.h"
#include "kvcache/transaction.h"
#include "kvcache_engine/generate.h"
#include "kvcache_engine/session.h"
#include "make_model/make_model.h"
#include "support/drafts/scripted_drafter.h"

namespace kvcache::head_drafter_test {
namespace {

using Tokens = std::vector<std::int32_t>;
using Row = std::vector<float>;

constexpr int kContext = 160;

struct Kind {
  const char* name;
  const char* architecture;
  int experts = 0;
  int window = 0;
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

class HeadDrafterTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "head." + std::to_string(getpid()) + ".gguf";
    make_model::Request request{.architecture = GetParam().architecture, .type = DType::kF32};
    request.shape.experts = GetParam().experts;
    if (GetParam().window > 0) {
      request.shape.window = GetParam().window;
      request.shape.window_pattern = 2;
    }
    request.shape.family.nextn_layers = 1;
    ASSERT_TRUE(make_model::MakeModel(request, path_).ok());
    engine_ = Open(DType::kF16);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::unique_ptr<Engine> Open(DType type) {
    auto engine = Engine::Open(path_, {.threads = 2,
                                       .k_type = type,
                                       .v_type = type,
                                       .context = kContext,
                                       .max_sequences = 3,
                                       .prefill_chunk = 32,
                                       .draft_head = path_});
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }

  static Tokens SomeTokens(int count, int seed = 0) {
    Tokens tokens;
    for (int i = 0; i < count; ++i) tokens.push_back(3 + (seed + i) * 37 % 250);
    return tokens;
  }

  // Returns the head's logits for a token and four drafts behind the session's text.
  std::vector<Row> HeadLogits(Session& session, std::int32_t token) {
    std::vector<Row> all;
    const float* const state = engine_->states()->Find(session.sequence(), session.position() - 1);
    EXPECT_NE(state, nullptr);
    if (state == nullptr) return all;
    Row states(state, state + engine_->info().hidden_size);
    Row logits(static_cast<std::size_t>(engine_->vocabulary_size()));
    Cache& cache = CacheOfLayer(engine_->cache(), engine_->info().layers);
    EXPECT_NE(&cache, &engine_->cache());
    const auto round = Transaction::Begin({&cache}, {{session.sequence(), session.position()}},
                                          {.max_tokens = 5, .isolated = true});
    EXPECT_TRUE(round.ok()) << round.status().message();
    const SequenceId sequence[] = {session.sequence()};
    for (int i = 0; i < 5; ++i) {
      const Position position[] = {session.position() + i};
      EXPECT_TRUE(cache
                      .StartForward({.positions = position, .sequences = sequence, .items = {}},
                                    ForwardMode::kCompute)
                      .ok());
      EXPECT_TRUE(engine_->model()
                      .Draft({&token, 1}, position, states.data(), engine_->cache(), logits.data(),
                             states.data())
                      .ok());
      all.push_back(logits);
      token = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                        logits.begin());
    }
    return all;
  }

  // Returns a prompt whose greedy answer is long.
  Tokens Prompt() {
    for (int seed = 0;; ++seed) {
      GenerateRequest request;
      request.prompt = SomeTokens(50, seed);
      request.max_tokens = 90;
      request.sampling.temperature = 0.0f;
      if (seed == 20 || Run(request).tokens.size() > 60) return request.prompt;
    }
  }

  GenerateResult Run(const GenerateRequest& request) {
    const auto scheduler = std::move(*Scheduler::Make(*engine_, {}));
    auto result = Generate(*scheduler, request);
    EXPECT_TRUE(result.ok()) << result.status().message();
    EXPECT_TRUE(result->speculation.error.ok()) << result->speculation.error.message();
    return *std::move(result);
  }

  std::string path_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(HeadDrafterTest, AnswersAreThoseWithout) {
  const bool latent = std::string(GetParam().architecture) == "deepseek2";
  for (const DType type : {DType::kF16, latent ? DType::kF32 : DType::kQ8_0}) {
    engine_ = Open(type);
    const auto drafter = *MakeHeadDrafter(*engine_);
    for (const float temperature : {0.0f, 0.9f}) {
      GenerateRequest request;
      request.prompt = Prompt();
      request.max_tokens = 90;  // past windows
      request.sampling.temperature = temperature;
      request.sampling.seed = 4;
      const GenerateResult plain = Run(request);
      request.drafter = drafter.get();
      for (const int depth : {1, 2, 5, 16, -1}) {
        request.draft_tokens = depth;
        const GenerateResult drafted = Run(request);
        ASSERT_EQ(drafted.tokens, plain.tokens) << "depth " << depth;
        ASSERT_EQ(drafted.stop, plain.stop);
        if (depth > 0) {
          ASSERT_GT(drafted.speculation.drafted * 3, static_cast<int>(plain.tokens.size()));
        }
      }
    }
  }
}

// The head's keys and values have the same bits, and so have its drafts, whether the text was evaluated at
// once, in parts, in rounds of other drafts that were partly wrong, or copied from another sequence.
TEST_P(HeadDrafterTest, DraftsDoNotDependOnTheWayOfTheText) {
  const Tokens text = SomeTokens(96);
  Session whole(*engine_, SequenceId{0});
  ASSERT_TRUE(whole.Append(text).ok());
  const std::vector<Row> expected = HeadLogits(whole, 9);
  ASSERT_EQ(expected.size(), 5u);
  ASSERT_EQ(HeadLogits(whole, 9), expected) << "drafts leave nothing behind";
  {
    Session parts(*engine_, SequenceId{1});
    for (std::size_t at = 0, size = 1; at < text.size(); at += size, size = 1 + (size * 5) % 13) {
      const std::size_t count = std::min(size, text.size() - at);
      ASSERT_TRUE(parts.Append(std::span(text).subspan(at, count)).ok());
      size = count;
    }
    ASSERT_EQ(HeadLogits(parts, 9), expected);
  }
  {
    Session rounds(*engine_, SequenceId{1});
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
      ASSERT_EQ(rounds.tokens().size(), at + 1 + right);
    }
    ASSERT_EQ(Tokens(rounds.tokens().begin(), rounds.tokens().end()), text);
    ASSERT_EQ(HeadLogits(rounds, 9), expected);
    Session copy(*engine_, SequenceId{2});
    ASSERT_TRUE(copy.ForkFrom(rounds, rounds.position()).ok());
    ASSERT_EQ(HeadLogits(copy, 9), expected);
  }
}

// A snapshot has the head's keys and values: what is evaluated behind it drafts as before. Only the first
// token behind it lacks the state of the one before it.
TEST_P(HeadDrafterTest, SnapshotsHaveTheHead) {
  Session session(*engine_, SequenceId{0});
  const Tokens text = SomeTokens(64);
  ASSERT_TRUE(session.Append(text).ok());
  const std::vector<Row> expected = HeadLogits(session, 9);
  auto snapshot = engine_->cache().snapshots()->TakeSnapshot(SequenceId{0}, 0, 64);
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().message();
  const float* const known = engine_->states()->Find(SequenceId{0}, 63);
  const Row state(known, known + engine_->info().hidden_size);
  Session other(*engine_, SequenceId{1});
  ASSERT_TRUE(other.Restore(snapshot->get(), text).ok());
  ASSERT_EQ(engine_->states()->Find(SequenceId{1}, 63), nullptr);
  ASSERT_EQ(HeadLogits(session, 9), expected);
  // The same keys and values with the same state give the same drafts.
  engine_->states()->Copy(SequenceId{0}, SequenceId{1});
  ASSERT_EQ(HeadLogits(other, 9), expected);
}

// Opens story's file with the head of another file, and returns the error.
std::string ErrorWith(const make_model::Request& head, const make_model::Request& model = {}) {
  const std::string folder = ::testing::TempDir() + "heads." + std::to_string(getpid());
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

TEST(DraftHeadFile, AnotherModelsHeadIsRefused) {
  make_model::Request model{.architecture = "llama", .type = DType::kF32};
  make_model::Request head = model;
  EXPECT_EQ(ErrorWith(head, model),
            "the file has no draft head: llama.nextn_predict_layers is 0 or missing");
  head.shape.family.nextn_layers = 1;
  EXPECT_EQ(ErrorWith(head, model), "") << "the head of a whole model with the same sizes";
  head.shape.layers = 3;
  EXPECT_EQ(ErrorWith(head, model),
            "the draft head is for a model with 3 layers and 128 values per token; this one has 2 "
            "and 128");
  head = {.architecture = "qwen3", .type = DType::kF32};
  head.shape.family.nextn_layers = 1;
  EXPECT_EQ(ErrorWith(head, model), "the draft head is for 'qwen3', the model is 'llama'");
  head.architecture = model.architecture = "gemma2";
  EXPECT_EQ(ErrorWith(head, model), "models of architecture gemma2 have no draft heads here");
  head.architecture = model.architecture = "llama";
  head.shape.ffn = 128;
  EXPECT_EQ(ErrorWith(head, model),
            "tensor 'blk.2.ffn_gate.weight' has shape [128, 128]; must be [128, 256]");
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, HeadDrafterTest,
    ::testing::Values(Kind{"llama", "llama"}, Kind{"experts", "llama", 4},
                      Kind{"windows", "llama", 0, 24}, Kind{"qwen2", "qwen2"},
                      Kind{"qwen3", "qwen3"}, Kind{"qwen3moe", "qwen3moe", 4},
                      Kind{"deepseek2", "deepseek2", 4}, Kind{"qwen35", "qwen35"},
                      Kind{"qwen35moe", "qwen35moe", 4}, Kind{"glm4moe", "glm4moe", 4},
                      Kind{"bailingmoe2", "bailingmoe2", 4}, Kind{"qwen3next", "qwen3next", 4}),
    [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace kvcache::head_drafter_test
