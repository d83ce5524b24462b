// Checks that keys rotated to new positions equal keys computed there, except for rounding.
//
// In a model of one layer a token's key depends on the token and its position alone. After a
// removal in the middle, which rotates the later keys, the next token must therefore get the logits
// of the shorter text computed from scratch. The test runs every RoPE scaling: a scaling's
// magnitude is already in the keys and must not be applied again.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "reference_run.h"

namespace kvcache::exactness::shift_test {
namespace {

constexpr int kTokens = 500;

struct ShiftCase {
  const char* name;
  const char* flags;
  // The removed positions.
  Position begin = 60;
  Position end = 250;
};
constexpr ShiftCase kCases[] = {
    {"None", "--arch llama"},
    {"Linear", "--arch llama --rope-scaling linear --rope-factor 2.5"},
    {"Llama3", "--arch llama --rope-scaling llama3 --rope-factor 8 --rope-original-context 512"},
    {"Yarn", "--arch llama --rope-scaling yarn --rope-original-context 128"},
    // The range lies within the retained tokens, and the next query sees keys on both sides of it.
    {"Window", "--arch llama --window 200", 380, 430},
    {"Gemma2Window", "--arch gemma2 --window 200", 380, 430},
    // Layers with and without a window have different rotations.
    {"Gemma3Window", "--arch gemma3 --window 200", 380, 430},
    {"Gemma3Full",
     "--arch gemma3 --window 200 --window-pattern 1 --rope-scaling linear --rope-base 1000000"},
    {"DeepSeek2",
     "--arch deepseek2 --experts 4 --expert-ffn 64 --rope-scaling yarn --rope-original-context "
     "128"},
    {"DeepSeek2Old", "--arch deepseek2 --experts 4 --expert-ffn 64 --whole-kv"},
    {"Llama4Chunks", "--arch llama4 --experts 4 --expert-ffn 64 --chunk 70"},
    {"Gemma4Window", "--arch gemma4 --window 200", 380, 430},
    {"Gemma4Full", "--arch gemma4 --window 200 --window-pattern 1 --rope-base 1000000"},
    {"GptOssFull",
     "--arch gpt-oss --window-pattern 1 --experts 4 --rope-scaling yarn --rope-original-context 128"
     " --rope-factor 32"},
    {"Qwen2Yarn", "--arch qwen2 --rope-scaling yarn --rope-original-context 128"},
    {"Qwen3", "--arch qwen3"},
    // Only layers with a window rotate.
    {"Cohere2Window", "--arch cohere2 --window 200", 380, 430},
    {"Glm4", "--arch glm4"},
    {"Mistral3", "--arch mistral3 --rope-scaling yarn --rope-original-context 128"},
};

// Logits of the next token in three cases.
struct Answers {
  std::vector<float> unmoved;   // after the whole text
  std::vector<float> shifted;   // after the removal
  std::vector<float> computed;  // after the shorter text
};

class Shift : public ::testing::TestWithParam<ShiftCase> {
 protected:
  Answers Ask(DType kv) {
    const std::unique_ptr<Engine> engine = OpenFlags(
        GetParam().name,
        std::string(GetParam().flags) +
            " --layers 1 --width 128 --heads 4 --kv-heads 2 --head-dim 64 --ffn 128 --vocab 300",
        {.threads = 2, .chunk = 512}, kv);
    return engine == nullptr ? Answers() : Ask(*engine);
  }

 private:
  static Answers Ask(Engine& engine) {
    Answers answers;
    const SequenceId sequence{0};
    std::vector<std::int32_t> tokens = RandomTokens(engine, kTokens, 3);
    const auto next = [&](Position at) {
      return Evaluate(engine, std::vector<Entry>{{sequence, at, 7}});
    };
    const Position shorter = kTokens - GetParam().end + GetParam().begin;
    EvaluateAlone(engine, sequence, tokens);
    answers.unmoved = next(kTokens);
    EXPECT_TRUE(engine.cache().Remove(sequence, kTokens, kEndOfSequence).ok());
    const Status removed = engine.cache().Remove(sequence, GetParam().begin, GetParam().end);
    EXPECT_TRUE(removed.ok()) << removed.message();
    answers.shifted = next(shorter);

    EXPECT_TRUE(engine.cache().Remove(sequence, 0, kEndOfSequence).ok());
    tokens.erase(tokens.begin() + GetParam().begin, tokens.begin() + GetParam().end);
    EvaluateAlone(engine, sequence, tokens);
    answers.computed = next(shorter);
    return answers;
  }
};

float LargestDifference(std::span<const float> a, std::span<const float> b) {
  float largest = 0.0f;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

double Distance(std::span<const float> a, std::span<const float> b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  return std::sqrt(sum);
}

TEST_P(Shift, RotatedKeysEqualComputedKeys) {
  const Answers answers = Ask(DType::kF32);
  ASSERT_FALSE(answers.computed.empty());
  EXPECT_LT(LargestDifference(answers.shifted, answers.computed), 1e-4f);
  EXPECT_GT(LargestDifference(answers.unmoved, answers.computed), 1e-2f)
      << "the model must depend on positions";
}

// Shifted keys of block types are rounded twice. The second rounding adds little to the first one,
// which affects values too: the distance to f32 must stay below twice that of unshifted keys.
TEST_P(Shift, BlockTypeKeysRoundOnceMore) {
  const bool latents = std::string_view(GetParam().name) == "DeepSeek2";
  const Answers exact = Ask(DType::kF32);
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    if (latents && type == DType::kQ4_0) continue;  // which no cache holds
    const Answers answers = Ask(type);
    ASSERT_FALSE(answers.computed.empty());
    EXPECT_NE(answers.shifted, answers.computed);
    EXPECT_LT(Distance(answers.shifted, exact.computed),
              2.0 * Distance(answers.computed, exact.computed));
    EXPECT_LT(Distance(answers.shifted, exact.computed), Distance(exact.unmoved, exact.computed));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Shift, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kvcache::exactness::shift_test
