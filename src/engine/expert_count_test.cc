// The distinct experts of a pass, which decide what a draft more costs in a mixture of experts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "make_model/make_model.h"

namespace kvcache {
namespace {

constexpr int kSequences = 12;

class ExpertCount : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Engine> Open(int experts) {
    const std::string path =
        ::testing::TempDir() + "expert_count." + std::to_string(getpid()) + ".gguf";
    make_model::Request request{.architecture = GetParam(), .type = DType::kF32};
    request.shape.experts = experts;
    EXPECT_TRUE(make_model::MakeModel(request, path).ok());
    auto engine = Engine::Open(path, {.threads = 1, .context = 16, .max_sequences = kSequences});
    std::filesystem::remove(path);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return std::move(engine).value();
  }
  // Evaluates the first tokens of sequences, and returns the experts of that.
  static std::int64_t Experts(Engine& engine, const std::vector<std::int32_t>& tokens) {
    std::vector<SequenceId> sequences;
    for (int i = 0; i < static_cast<int>(tokens.size()); ++i) sequences.emplace_back(SequenceId{i});
    const std::vector<Position> positions(tokens.size(), 0);
    EXPECT_TRUE(
        engine.Forward({.tokens = tokens, .positions = positions, .sequences = sequences}).ok());
    const std::int64_t experts = engine.model().ExpertsOfPass();
    for (const SequenceId sequence : sequences) {
      EXPECT_TRUE(engine.cache().Remove(sequence, 0, kEndOfSequence).ok());
    }
    return experts;
  }
};

TEST_P(ExpertCount, IsOfDistinctExperts) {
  const auto engine = Open(8);
  const std::int64_t one = Experts(*engine, {5});
  EXPECT_GT(one, 0);
  EXPECT_EQ(Experts(*engine, {5, 5, 5}), one) << "the same tokens choose the same experts";
  std::vector<std::int32_t> tokens = {5};
  std::int64_t last = one;
  while (tokens.size() < kSequences) {
    tokens.push_back(5 + 13 * static_cast<std::int32_t>(tokens.size()));
    const std::int64_t experts = Experts(*engine, tokens);
    EXPECT_GE(experts, last);
    EXPECT_LE(experts, last + one);
    last = experts;
  }
  EXPECT_GT(last, one);
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertCount,
                         ::testing::Values("llama", "qwen3moe", "deepseek2", "qwen3next",
                                           "gpt-oss"));

TEST(ExpertCountOfDenseModels, IsZero) {
  const std::string path = ::testing::TempDir() + "dense." + std::to_string(getpid()) + ".gguf";
  const make_model::Request request{.architecture = "llama", .type = DType::kF32};
  ASSERT_TRUE(make_model::MakeModel(request, path).ok());
  const auto engine = Engine::Open(path, {.threads = 1, .context = 16});
  std::filesystem::remove(path);
  ASSERT_TRUE(engine.ok());
  const std::int32_t token[] = {5};
  const Position position[] = {0};
  const SequenceId sequence[] = {SequenceId{0}};
  ASSERT_TRUE(
      (*engine)->Forward({.tokens = token, .positions = position, .sequences = sequence}).ok());
  EXPECT_EQ((*engine)->model().ExpertsOfPass(), 0);
}

}  // namespace
}  // namespace kvcache
