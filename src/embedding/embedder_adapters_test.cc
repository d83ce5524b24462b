// Adapters of embedders: what they compute, and that the bits of an input depend on its own call's adapters only.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "embedding/model_file_testing.h"
#include "gguf/gguf.h"
#include "support/assistant_pair.h"
#include "support/random_adapter.h"

namespace kvcache::embedder_test {
namespace {

using testing::MakeAdapter;
using testing::RandomAdapter;

// An architecture and its pooling.
struct Case {
  const char* architecture;
  int pooling = kMean;
};

make_model::Request FloatsOf(const Case& of) {
  make_model::Request request = RequestOf(of.architecture, of.pooling);
  request.type = DType::kF32;
  const bool is_reranker = of.pooling == kRank;
  request.shape.family.labels = !is_reranker ? 0 : request.architecture == "qwen3" ? 2 : 1;
  if (request.architecture == "gemma-embedding") request.shape.family.dense = 96;
  return request;
}

class EmbedderAdapters : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Embedder> Open(std::vector<EngineAdapter> adapters, int threads = 2,
                                 int pass_tokens = 512) const {
    return file_.Open(
        {.threads = threads, .pass_tokens = pass_tokens, .adapters = std::move(adapters)});
  }
  static std::vector<float> Values(Embedder& embedder, const Inputs& inputs,
                                   std::vector<AdapterUse> uses) {
    const EmbedOptions options{.normalize = false, .adapters = std::move(uses)};
    if (embedder.info().is_reranker) {
      auto ranks = embedder.Rank(inputs, options);
      EXPECT_TRUE(ranks.ok()) << ranks.status().message();
      return ranks.ok() ? ranks->scores : std::vector<float>();
    }
    auto vectors = embedder.Embed(inputs, options);
    EXPECT_TRUE(vectors.ok()) << vectors.status().message();
    return vectors.ok() ? vectors->values : std::vector<float>();
  }
  static double LargestDifference(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    double largest = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(std::isfinite(a[i]));
      largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
    }
    return largest;
  }

  const ModelFile file_{FloatsOf(GetParam())};
  const std::unique_ptr<GgufFile> base_ = GgufFile::Open(file_.path()).value();
  const Inputs inputs_ = SomeInputs();
};

// The model whose weights have the adapter in them is another computation of the same function.
TEST_P(EmbedderAdapters, ValuesAreThoseOfMergedWeights) {
  const RandomAdapter wanted{.rank = 3, .alpha = 6.0f, .largest = 0.1f};
  const auto embedder = Open({MakeAdapter(*base_, wanted)});
  const auto plain = Values(*embedder, inputs_, {});
  const auto adapted = Values(*embedder, inputs_, {{0, 0.5f}});
  const auto tensors = testing::AdapterTensors(*base_, wanted);
  testing::RewriteTensors(file_.path(), [&](const GgufTensor& tensor, std::span<float> values) {
    testing::MergeInto(tensor, values, tensors, 0.5 * 6.0 / 3.0);
  });
  const auto merged = Values(*Open({}), inputs_, {});
  double largest = 0.0;
  for (const float value : merged) largest = std::max(largest, std::abs(double{value}));
  EXPECT_GT(LargestDifference(adapted, plain), 0.02 * largest);
  EXPECT_LT(LargestDifference(adapted, merged), 5e-4 * largest);
}

TEST_P(EmbedderAdapters, EachMatrixHasAnEffect) {
  const Inputs inputs = {inputs_[1], inputs_[2]};
  const auto plain = Values(*Open({}), inputs, {});
  for (const std::string& name : testing::AdaptableTensors(*base_)) {
    if (name == "output.weight") continue;  // no vector depends on it
    const auto is_it = [&](std::string_view tensor) { return tensor == name; };
    const auto embedder = Open({MakeAdapter(*base_, {.largest = 0.5f, .has = is_it})});
    EXPECT_GT(LargestDifference(Values(*embedder, inputs, {{0, 1.0f}}), plain), 0.0) << name;
  }
}

TEST_P(EmbedderAdapters, BitsDependOnTheInputAndTheAdaptersAlone) {
  const RandomAdapter second{.rank = 17, .alpha = 0.0f, .seed = 2, .largest = 0.05f};
  const auto adapters = [&] {
    return std::vector<EngineAdapter>{MakeAdapter(*base_), MakeAdapter(*base_, second)};
  };
  const auto embedder = Open(adapters());
  ASSERT_EQ(embedder->adapters().size(), 2u);
  EXPECT_EQ(embedder->adapters()[1].max_rank, 17);
  const auto plain = Values(*embedder, inputs_, {});
  EXPECT_EQ(plain, Values(*Open({}), inputs_, {})) << "without adapters";
  const std::vector<std::vector<AdapterUse>> choices{
      {{0, 0.7f}}, {{1, 0.3f}}, {{0, 0.7f}, {1, -1.0f}}};
  std::vector<std::vector<float>> whole;
  for (const auto& uses : choices) {
    whole.push_back(Values(*embedder, inputs_, uses));
    EXPECT_NE(whole.back(), plain);
    const auto size = whole.back().size() / inputs_.size();
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const auto of_input = std::span(whole.back()).subspan(i * size, size);
      EXPECT_EQ(Values(*embedder, {inputs_[i]}, uses),
                std::vector<float>(of_input.begin(), of_input.end()))
          << "input " << i << " alone";
    }
    EXPECT_EQ(Values(*Open(adapters(), 1, 100), inputs_, uses), whole.back());
    EXPECT_EQ(Values(*Open(adapters(), 2, 16), inputs_, uses), whole.back());
  }
  EXPECT_NE(whole[0], whole[1]);
  EXPECT_EQ(Values(*embedder, inputs_, {{1, -1.0f}, {0, 0.7f}}), whole[2]) << "in any order";
  EXPECT_EQ(Values(*embedder, inputs_, {{0, 0.7f}, {1, 0.0f}}), whole[0]) << "a scale of 0";
  EXPECT_EQ(Values(*embedder, inputs_, {}), plain) << "a call leaves nothing";
}

INSTANTIATE_TEST_SUITE_P(Embedder, EmbedderAdapters,
                         ::testing::Values(Case{"bert", kCls}, Case{"bert", kRank},
                                           Case{"jina-bert-v2"}, Case{"jina-bert-v3"},
                                           Case{"nomic-bert"}, Case{"nomic-bert-moe"},
                                           Case{"modern-bert"}, Case{"modern-bert", kRank},
                                           Case{"gemma-embedding"}, Case{"qwen3", kLast},
                                           Case{"qwen3", kRank}, Case{"llama", kMean}),
                         [](const auto& test) {
                           std::string name = test.param.architecture;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name + "_" + std::to_string(test.param.pooling);
                         });

TEST(EmbedderAdaptersErrors, NameTheAdapterAndTheValue) {
  const ModelFile file(RequestOf("bert"));
  const auto base = GgufFile::Open(file.path()).value();
  const auto embedder = file.Open({.threads = 1, .adapters = {MakeAdapter(*base)}});
  const auto message = [&](std::vector<AdapterUse> uses) {
    const auto result = embedder->Embed(Inputs{{5}}, {.adapters = std::move(uses)});
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    return std::string(result.status().message());
  };
  EXPECT_EQ(message({{1, 1.0f}}), "there is no adapter 1; the model has 1, with numbers from 0 on");
  EXPECT_EQ(message({{0, 1.0f}, {0, 1.0f}}), "adapter 0 is named twice");
  EXPECT_EQ(message({{0, 2e4f}}), "the scale of adapter 0 is 20000; must be from -10000 to 10000");
  const ModelFile other(RequestOf("nomic-bert"));
  const auto refused = Embedder::Open(other.path(), {.adapters = {MakeAdapter(*base)}});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("general.architecture is 'bert'"),
            std::string_view::npos)
      << refused.status().message();
}

TEST(EmbedderAdaptersMemory, IsCounted) {
  for (const char* architecture : {"bert", "qwen3"}) {
    const ModelFile file(RequestOf(architecture));
    const auto base = GgufFile::Open(file.path()).value();
    const auto with = file.Open({.threads = 1, .adapters = {MakeAdapter(*base)}});
    EXPECT_GT(with->MemoryBytes(), file.Open({.threads = 1})->MemoryBytes() + 1000);
  }
}

// What a call's inputs are named in messages.
TEST(EmbedErrors, CountFromTheCallsFirstInput) {
  const ModelFile file(RequestOf("bert"));
  const auto embedder = file.Open();
  const auto result = embedder->Embed(Inputs{{5}, {}}, {.first_input = 40});
  EXPECT_EQ(result.status().message(), "input 41 has no tokens");
}

}  // namespace
}  // namespace kvcache::embedder_test
