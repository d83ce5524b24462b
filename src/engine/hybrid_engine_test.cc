// The engine on a model with recurrent layers: batches that it refuses, and sessions that go back
// to a checkpoint and evaluate the rest again. That logits are exact is tests/exactness's.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "kvcache_engine/session.h"
#include "make_model/architecture.h"
#include "make_model/make_model.h"

namespace kvcache::hybrid_engine_test {
namespace {

constexpr int kChunk = 16;

std::vector<std::int32_t> SomeTokens(int count, int first = 3) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i * 37 % 250);
  return tokens;
}

class HybridEngine : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "hybrid_engine." + std::to_string(getpid()) + ".gguf";
    make_model::Request request{.architecture = GetParam(), .type = DType::kF32};
    const auto* const family = *make_model::FindArchitecture(request.architecture);
    if (family->experts == make_model::ExpertUse::kNeeded) request.shape.experts = 4;
    if (request.architecture.starts_with("nemotron_h")) request.shape.layers = 4;
    const Status made = make_model::MakeModel(request, path_);
    ASSERT_TRUE(made.ok()) << made.message();
    engine_ = std::move(Engine::Open(path_, {.threads = 2,
                                             .context = 256,
                                             .max_sequences = 3,
                                             .prefill_chunk = kChunk,
                                             .checkpoints = {.spacing = 2 * kChunk}}))
                  .value();
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // A text of its own, evaluated in one go.
  std::vector<float> Expected(std::span<const std::int32_t> tokens) {
    Session session(*engine_, SequenceId{2});
    EXPECT_TRUE(session.Append(tokens).ok());
    return Logits(session);
  }
  static std::vector<float> Logits(Session& session) {
    const auto logits = session.LastLogits();
    EXPECT_TRUE(logits.ok()) << logits.status().message();
    return {logits->begin(), logits->end()};
  }

  std::string path_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(HybridEngine, SessionsGoBackAndFork) {
  const std::vector<std::int32_t> tokens = SomeTokens(100);
  std::vector<std::int32_t> other(tokens.begin(), tokens.begin() + 57);
  for (const std::int32_t token : SomeTokens(20, 7)) other.push_back(token);
  const std::vector<float> expected = Expected(other);
  const std::vector<float> straight = Expected(tokens);

  Session session(*engine_, SequenceId{0});
  ASSERT_TRUE(session.Append(tokens).ok());
  EXPECT_EQ(Logits(session), straight);
  EXPECT_EQ(*engine_->cache().PrepareRestore(SequenceId{0}, 57), 2 * kChunk) << "a checkpoint";

  Session fork(*engine_, SequenceId{1});
  ASSERT_TRUE(fork.ForkFrom(session, 57).ok());
  EXPECT_EQ(fork.position(), 57);
  ASSERT_TRUE(fork.Append(std::span(other).subspan(57)).ok());
  EXPECT_EQ(Logits(fork), expected);

  ASSERT_TRUE(session.Truncate(57).ok());
  EXPECT_EQ(session.position(), 57);
  ASSERT_TRUE(session.Append(std::span(other).subspan(57)).ok());
  EXPECT_EQ(Logits(session), expected);
}

TEST_P(HybridEngine, TakesUnevenBatches) {
  const std::vector<std::int32_t> tokens = {3, 4, 5};
  const auto forward = [&](std::vector<int> positions, std::vector<int> sequences) {
    std::vector<Position> at(positions.begin(), positions.end());
    std::vector<SequenceId> of;
    for (const int sequence : sequences) of.push_back(SequenceId{sequence});
    return engine_->Forward(
        {.tokens = std::span(tokens).first(at.size()), .positions = at, .sequences = of});
  };
  EXPECT_EQ(forward({0, 0, 1}, {0, 1, 0}).code(), StatusCode::kUnsupported) << "in two places";
  EXPECT_EQ(forward({1, 0}, {0, 0}).code(), StatusCode::kUnsupported);
  EXPECT_TRUE(forward({0, 1, 0}, {1, 1, 0}).ok()) << "nothing of the others was left behind";
  EXPECT_TRUE(forward({2, 1, 2}, {1, 0, 0}).ok());
}

// The logits of a file with a head for further tokens are those without it.
TEST(HybridEngineWithHeads, HeadsForFurtherTokensChangeNothing) {
  const std::string path =
      ::testing::TempDir() + "hybrid_heads." + std::to_string(getpid()) + ".gguf";
  std::vector<std::vector<float>> rows;
  for (const int heads : {0, 1}) {
    make_model::Request request{.architecture = "qwen3next", .type = DType::kF32};
    request.shape.experts = 4;
    request.shape.family.nextn_layers = heads;
    ASSERT_TRUE(make_model::MakeModel(request, path).ok());
    const auto engine = Engine::Open(path, {.threads = 2, .context = 128});
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    EXPECT_EQ((*engine)->info().layers, 2);
    Session session(**engine, SequenceId{0});
    ASSERT_TRUE(session.Append(SomeTokens(50)).ok());
    const auto logits = *session.LastLogits();
    rows.emplace_back(logits.begin(), logits.end());
  }
  std::filesystem::remove(path);
  EXPECT_EQ(rows[0], rows[1]);
}

INSTANTIATE_TEST_SUITE_P(Families, HybridEngine,
                         ::testing::Values("falcon-h1", "granitehybrid", "lfm2", "mamba2",
                                           "nemotron_h", "nemotron_h_moe", "qwen35", "qwen35moe",
                                           "qwen3next"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvcache::hybrid_engine_test
