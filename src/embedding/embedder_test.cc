// Embedders of random models: what a file says, refusals, and exactness. That vectors are right is
// tests/oracle/embeddings'.
#include "kvcache_engine/embedder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>

#include "embedding/model_file_testing.h"
#include "gguf/gguf.h"
#include "kvcache_engine/engine.h"
#include "make_model/make_model.h"

namespace kvcache::embedder_test {
namespace {

class EachArchitecture : public ::testing::TestWithParam<const char*> {};

TEST_P(EachArchitecture, VectorsDependOnTheirInputAlone) {
  const ModelFile file(RequestOf(GetParam()));
  const Inputs inputs = SomeInputs();
  const auto embedder = file.Open();
  const auto whole = embedder->Embed(inputs);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  ASSERT_EQ(whole->vectors, std::vector<std::size_t>(inputs.size(), 1));
  EXPECT_EQ(whole->dimensions, embedder->info().dimensions);
  const auto expect_same = [&](Embedder& other, const char* what) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto alone = other.Embed(std::span(inputs).subspan(i, 1));
      ASSERT_TRUE(alone.ok()) << alone.status().message();
      EXPECT_EQ(alone->values, std::vector<float>(whole->vector(i).begin(), whole->vector(i).end()))
          << what << ", input " << i;
    }
  };
  expect_same(*embedder, "alone");
  for (const int pass_tokens : {512, 100, 16}) {
    const auto other = file.Open({.threads = 1, .pass_tokens = pass_tokens});
    expect_same(*other, "one thread");
    const auto again = other->Embed(inputs);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->values, whole->values) << "in passes of " << pass_tokens;
  }
}

TEST_P(EachArchitecture, CountsTokens) {
  const ModelFile file(RequestOf(GetParam()));
  const auto embedder = file.Open();
  const Inputs inputs = SomeInputs();
  const auto result = embedder->Embed(inputs);
  ASSERT_TRUE(result.ok());
  std::int64_t tokens = 0;
  for (const auto& input : inputs) tokens += std::ssize(input);
  EXPECT_EQ(result->tokens, tokens);
  // Two inputs of 40 tokens are equal. Three begin with the same 70 tokens.
  EXPECT_EQ(result->reused_tokens, embedder->info().is_causal ? 40 + 140 : 40);
}

INSTANTIATE_TEST_SUITE_P(Embedder, EachArchitecture,
                         ::testing::Values("bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert",
                                           "nomic-bert-moe", "modern-bert", "gemma-embedding",
                                           "qwen3", "llama"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// Recurrent layers continue from a copy of their states.
TEST(DecoderEmbedder, SharesBeginningsOfRecurrentModels) {
  make_model::Request request{.architecture = "lfm2", .type = DType::kF32};
  const ModelFile file(request);
  const auto embedder = file.Open();
  const Inputs inputs = SomeInputs();
  const auto whole = embedder->Embed(inputs);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  EXPECT_EQ(whole->reused_tokens, 40 + 140);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto alone = embedder->Embed(std::span(inputs).subspan(i, 1));
    ASSERT_TRUE(alone.ok()) << alone.status().message();
    EXPECT_EQ(alone->values, std::vector<float>(whole->vector(i).begin(), whole->vector(i).end()));
  }
}

TEST(Embedder, HasTheTokensOfTexts) {
  for (const char* architecture : {"bert", "qwen3"}) {
    const ModelFile file(RequestOf(architecture, kLast));
    const auto embedder = file.Open({.context = 8});
    const auto whole = *embedder->Tokenize("one two three four five six seven eight nine", true);
    EXPECT_GT(whole.size(), 8u) << "more than an input has";
    const auto input = *embedder->EncodeInput("one");
    EXPECT_EQ(*embedder->Tokenize("one", true), input);
    const auto bare = *embedder->Tokenize("one", false);
    EXPECT_FALSE(std::ranges::search(input, bare).empty());
    std::string pieces;
    for (const std::int32_t token : bare) pieces += embedder->Piece(token);
    EXPECT_NE(pieces.find("one"), pieces.npos);
    EXPECT_EQ(*embedder->Detokenize(bare), "one");
    const int all = embedder->info().vocabulary_size;
    EXPECT_FALSE(embedder->Detokenize(std::vector{all}).ok());
    EXPECT_FALSE(embedder->Embed(Inputs{{all}}).ok());
    EXPECT_TRUE(embedder->Embed(Inputs{{all - 1}}).ok());
  }
}

TEST(EmbedderInfo, SaysWhatTheFileIs) {
  {
    const ModelFile file(RequestOf("bert", kCls));
    const auto embedder = file.Open();
    EXPECT_EQ(embedder->info().architecture, "bert");
    EXPECT_EQ(embedder->info().pooling, Pooling::kCls);
    EXPECT_EQ(embedder->info().dimensions, 128);
    EXPECT_EQ(embedder->info().max_input_tokens, 256);
    EXPECT_FALSE(embedder->info().is_reranker);
    EXPECT_FALSE(embedder->info().is_causal);
    EXPECT_GT(embedder->MemoryBytes(), 0);
    EXPECT_EQ(*PurposeOf(file.path()), FilePurpose::kEmbedding);
    EXPECT_EQ(file.Open({.pooling = Pooling::kMean})->info().pooling, Pooling::kMean);
  }
  {
    const ModelFile file(RequestOf("qwen3", kLast));
    const auto embedder = file.Open({.context = 99});
    EXPECT_TRUE(embedder->info().is_causal);
    EXPECT_EQ(embedder->info().pooling, Pooling::kLast);
    EXPECT_EQ(embedder->info().max_input_tokens, 99);
    EXPECT_EQ(*PurposeOf(file.path()), FilePurpose::kEmbedding);
  }
  {
    const ModelFile file(RequestOf("llama", 0));
    EXPECT_EQ(file.Open()->info().pooling, Pooling::kLast);
    EXPECT_EQ(*PurposeOf(file.path()), FilePurpose::kGeneration);
  }
  {
    const ModelFile file(RequestOf("bert", 0));
    EXPECT_EQ(file.Open()->info().pooling, Pooling::kMean);
  }
  {
    const ModelFile file(RequestOf("bert", 7));
    const auto embedder = Embedder::Open(file.path());
    EXPECT_EQ(embedder.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(embedder.status().message().find("bert.pooling_type is 7: not supported"),
              std::string_view::npos)
        << embedder.status().message();
  }
}

TEST(Embed, CutsAndNormalizes) {
  const ModelFile file(RequestOf("bert"));
  const auto embedder = file.Open();
  const Inputs inputs = {SomeTokens(9, 1), SomeTokens(5, 2)};
  const auto raw = embedder->Embed(inputs, {.normalize = false});
  const auto cut = embedder->Embed(inputs, {.dimensions = 32});
  ASSERT_TRUE(raw.ok() && cut.ok());
  EXPECT_EQ(cut->dimensions, 32);
  ASSERT_EQ(cut->values.size(), 64u);
  for (std::size_t i = 0; i < 2; ++i) {
    double squares = 0;
    for (const float value : raw->vector(i).first(32)) squares += double{value} * value;
    for (std::size_t j = 0; j < 32; ++j) {
      EXPECT_EQ(cut->vector(i)[j],
                static_cast<float>(raw->vector(i)[j] * (1 / std::sqrt(squares))));
    }
  }
  const auto refused = embedder->Embed(inputs, {.dimensions = 129});
  EXPECT_EQ(refused.status().message(), "dimensions is 129; must be 1 to 128, or 0 for all");
}

TEST(Embed, ReturnsAVectorForEachTokenWithoutPooling) {
  for (const char* const architecture : {"bert", "qwen3"}) {
    const ModelFile file(RequestOf(architecture));
    const Inputs inputs = {SomeTokens(9, 1), SomeTokens(5, 2)};
    const auto all = file.Open({.pooling = Pooling::kNone})->Embed(inputs, {.normalize = false});
    ASSERT_TRUE(all.ok()) << all.status().message();
    EXPECT_EQ(all->vectors, (std::vector<std::size_t>{9, 5}));
    EXPECT_EQ(all->values.size(), 14u * 128);
    const auto first = file.Open({.pooling = Pooling::kCls})->Embed(inputs, {.normalize = false});
    const auto last = file.Open({.pooling = Pooling::kLast})->Embed(inputs, {.normalize = false});
    ASSERT_TRUE(first.ok() && last.ok());
    for (std::size_t i = 0; i < 128; ++i) {
      EXPECT_EQ(first->vector(1)[i], all->vector(1)[i]);
      EXPECT_EQ(last->vector(1)[i], all->values[13 * 128 + i]);
    }
  }
}

// Makes the first value of a tensor in f32 no number.
void Damage(const std::string& path, const char* tensor) {
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const GgufTensor* const found = (*file)->FindTensor(tensor);
  ASSERT_NE(found, nullptr) << tensor;
  const float value = std::numeric_limits<float>::quiet_NaN();
  std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(static_cast<std::streamoff>(found->offset));
  bytes.write(reinterpret_cast<const char*>(&value), sizeof value);
  ASSERT_TRUE(bytes.good());
}

TEST(Embed, RefusesValuesThatAreNotFinite) {
  for (const int pooling : {kMean, kRank}) {
    make_model::Request request = RequestOf("bert", pooling);
    request.shape.family.labels = pooling == kRank ? 1 : 0;
    const ModelFile file(request);
    Damage(file.path(), "token_embd_norm.weight");
    const auto embedder = file.Open();
    const Inputs inputs = {SomeTokens(9, 1), SomeTokens(5, 2)};
    const Status status =
        pooling == kRank ? embedder->Rank(inputs).status() : embedder->Embed(inputs).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_NE(status.message().find("input 0: a value of its result is not finite"),
              std::string_view::npos)
        << status.message();
  }
}

TEST(Embed, CallsAFunctionBetweenPasses) {
  for (const char* const architecture : {"bert", "qwen3"}) {
    SCOPED_TRACE(architecture);
    const make_model::Request request = RequestOf(architecture);
    const ModelFile file(request);
    const auto embedder = file.Open({.threads = 1, .pass_tokens = 16});
    // An encoder reads an input in one pass, and calls the function between layers too.
    const int in_pass = embedder->info().is_causal ? 0 : request.shape.layers - 1;
    ASSERT_GT(request.shape.layers, 1);
    int calls = 0;
    const EmbedOptions options{.between_passes = [&] { ++calls; }};
    const Inputs one = {SomeTokens(130, 1)};
    const auto divided = embedder->Embed(one, options);
    ASSERT_TRUE(divided.ok()) << divided.status().message();
    EXPECT_EQ(calls, embedder->info().is_causal ? 8 : in_pass);
    calls = 0;
    EXPECT_TRUE(
        embedder->Embed(Inputs{SomeTokens(9, 1), SomeTokens(9, 2), SomeTokens(9, 3)}, options)
            .ok());
    EXPECT_EQ(calls, 2 + 3 * in_pass);
    calls = 0;
    EXPECT_TRUE(embedder->Embed(Inputs{SomeTokens(16, 1)}, options).ok());
    EXPECT_EQ(calls, in_pass);
    EXPECT_EQ(embedder->Embed(one)->values, divided->values);
  }
}

// An encoder needs more memory for a longer input, and gives it back.
TEST(Embed, ALongInputLeavesNoMemory) {
  const ModelFile file(RequestOf("bert"));
  const auto embedder = file.Open({.threads = 1, .pass_tokens = 16});
  const std::int64_t before = embedder->MemoryBytes();
  std::int64_t meanwhile = 0;
  const EmbedOptions options{.between_passes = [&] { meanwhile = embedder->MemoryBytes(); }};
  const Inputs inputs = {SomeTokens(250, 1), SomeTokens(5, 2)};
  const auto result = embedder->Embed(inputs, options);
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_GT(meanwhile, before);
  EXPECT_EQ(embedder->MemoryBytes(), before);
  EXPECT_EQ(embedder->Embed(inputs)->values, result->values);
}

TEST(Embed, RefusesBadInputs) {
  const ModelFile file(RequestOf("bert"));
  const auto embedder = file.Open();
  const auto message = [&](const Inputs& inputs) {
    return std::string(embedder->Embed(inputs).status().message());
  };
  EXPECT_EQ(message({{5}, {}}), "input 1 has no tokens");
  EXPECT_EQ(message({SomeTokens(257, 1)}), "input 0 has 257 tokens; the model reads at most 256");
  EXPECT_EQ(message({{5}, {512}}), "input 1: token 512 is not in the vocabulary of 512");
  EXPECT_EQ(embedder->Rank(Inputs{{5}}).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(embedder->EncodePair("a", "b").status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(embedder->Embed({})->values.empty());
  EXPECT_FALSE(Embedder::Open(file.path(), {.context = 257}).ok());
  EXPECT_FALSE(Embedder::Open(file.path(), {.pass_tokens = 0}).ok());
}

TEST(Embed, EndsWhenInterrupted) {
  for (const char* const architecture : {"bert", "qwen3"}) {
    const ModelFile file(RequestOf(architecture));
    const auto embedder = file.Open();
    const Inputs inputs = SomeInputs();
    const std::atomic<bool> interrupt = true;
    EXPECT_EQ(embedder->Embed(inputs, {.interrupt = &interrupt}).status().code(),
              StatusCode::kCancelled);
    EXPECT_TRUE(embedder->Embed(inputs).ok()) << "a later call succeeds";
  }
}

TEST(Rank, ScoresPairs) {
  for (const char* const architecture : {"bert", "modern-bert", "qwen3"}) {
    make_model::Request request = RequestOf(architecture, kRank);
    request.shape.family.labels = 2;
    const ModelFile file(request);
    EXPECT_EQ(*PurposeOf(file.path()), FilePurpose::kReranking);
    const auto embedder = file.Open();
    EXPECT_TRUE(embedder->info().is_reranker);
    const std::vector<std::string> documents = {"a cat", "a dog", "a cat"};
    const auto ranks = embedder->RankTexts("what is a cat", documents);
    ASSERT_TRUE(ranks.ok()) << ranks.status().message();
    ASSERT_EQ(ranks->scores.size(), 3u);
    EXPECT_EQ(ranks->scores[0], ranks->scores[2]);
    EXPECT_NE(ranks->scores[0], ranks->scores[1]);
    if (embedder->info().is_causal) {
      EXPECT_GE(ranks->scores[0], 0.0f);
      EXPECT_LE(ranks->scores[0], 1.0f);
    }
    EXPECT_EQ(embedder->Embed(Inputs{{5}}).status().code(), StatusCode::kUnsupported);
  }
}

TEST(Rank, NeedsTheTensors) {
  const ModelFile file(RequestOf("bert", kRank));
  const auto embedder = Embedder::Open(file.path());
  EXPECT_EQ(embedder.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(embedder.status().message().find("cls.output.weight"), std::string_view::npos);
}

TEST(Engine, RefusesEncoders) {
  const ModelFile file(RequestOf("bert"));
  const auto engine = kvcache::Engine::Open(file.path(), {});
  EXPECT_EQ(engine.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(engine.status().message().find("architecture 'bert' is an encoder"),
            std::string_view::npos)
      << engine.status().message();
  EXPECT_NE(engine.status().message().find("kvcache embed"), std::string_view::npos);
}

TEST(Embedder, NamesPoolings) {
  EXPECT_EQ(NameOf(Pooling::kNone), "none");
  EXPECT_EQ(NameOf(Pooling::kMean), "mean");
  EXPECT_EQ(NameOf(Pooling::kCls), "cls");
  EXPECT_EQ(NameOf(Pooling::kLast), "last");
  EXPECT_EQ(NameOf(Pooling::kRank), "rank");
}

TEST(Embedder, RefusesModelsWithAnEncoderAndADecoder) {
  const ModelFile file({.architecture = "t5", .type = DType::kF32});
  const auto embedder = Embedder::Open(file.path());
  EXPECT_EQ(embedder.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(embedder.status().message().find("t5"), std::string_view::npos);
}

}  // namespace
}  // namespace kvcache::embedder_test
