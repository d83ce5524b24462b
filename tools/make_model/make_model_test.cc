#include "make_model/make_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "base/strings.h"
#include "gguf/gguf.h"
#include "make_model/random_weights.h"
#include "tensor/quantize.h"

namespace kvcache::make_model {
namespace {

class MakeModelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "make_model_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
    path_ = directory_ + "/m.gguf";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Make(const Request& request) {
    const Status status = MakeModel(request, path_);
    EXPECT_TRUE(status.ok()) << status.message();
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string directory_;
  std::string path_;
};

std::uint64_t Fnv1a(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3u;
  return hash;
}

TEST_F(MakeModelTest, BytesDependOnTheRequestAlone) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    Request request{.type = type, .threads = 1};
    request.shape.vocab = 4000;  // more than one chunk
    const std::string once = Make(request);
    request.threads = 3;
    EXPECT_EQ(Fnv1a(Make(request)), Fnv1a(once)) << InfoOf(type).name;
    request.seed = 2;
    EXPECT_NE(Fnv1a(Make(request)), Fnv1a(once)) << InfoOf(type).name;
  }
}

// The file is the same on every machine, so that benchmarks of different machines use the same
// model.
TEST_F(MakeModelTest, BytesNeverChange) {
  EXPECT_EQ(Fnv1a(Make({.type = DType::kQ8_0})), 18230767404494853488u);
}

TEST_F(MakeModelTest, HasTheRequestedShape) {
  Request request{.type = DType::kQ8_0};
  request.shape = {.layers = 3,
                   .hidden_size = 96,
                   .heads = 6,
                   .kv_heads = 2,
                   .head_dim = 32,
                   .ffn = 160,
                   .vocab = 300,
                   .output = Output::kTied,
                   .context = 77,
                   .rope_base = 5000.0f};
  Make(request);
  const auto opened = GgufFile::Open(path_);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const GgufFile& file = **opened;
  EXPECT_EQ(*file.GetString("general.architecture"), "llama");
  EXPECT_EQ(*file.GetUint("llama.block_count"), 3u);
  EXPECT_EQ(*file.GetUint("llama.context_length"), 77u);
  EXPECT_EQ(*file.GetUint("llama.attention.head_count_kv"), 2u);
  EXPECT_EQ(*file.GetFloat("llama.rope.freq_base"), 5000.0);
  EXPECT_EQ(file.tensors().size(), 2u + 3 * 9);
  EXPECT_EQ(file.FindTensor("output.weight"), nullptr);
  EXPECT_THAT(file.FindTensor("blk.2.attn_k.weight")->dims, testing::ElementsAre(96, 64, 1, 1));
  EXPECT_THAT(file.FindTensor("blk.0.attn_output.weight")->dims,
              testing::ElementsAre(192, 96, 1, 1));
  EXPECT_EQ(file.FindTensor("blk.0.ffn_down.weight")->type->name, "q8_0");
  EXPECT_EQ(file.FindTensor("blk.0.ffn_norm.weight")->type->name, "f32");
}

TEST_F(MakeModelTest, FamiliesHaveTheirOwnKeysAndTensors) {
  Request request{.architecture = "qwen3moe", .type = DType::kF16};
  request.shape.experts = 6;
  Make(request);
  auto file = std::move(GgufFile::Open(path_)).value();
  EXPECT_THAT(file->FindTensor("blk.1.ffn_gate_exps.weight")->dims,
              testing::ElementsAre(128, 64, 6, 1));
  EXPECT_THAT(file->FindTensor("blk.1.ffn_down_exps.weight")->dims,
              testing::ElementsAre(64, 128, 6, 1));
  EXPECT_EQ(file->FindTensor("blk.1.ffn_up_exps.weight")->type->name, "f16");
  EXPECT_EQ(file->FindTensor("blk.1.ffn_gate_inp.weight")->type->name, "f32");
  EXPECT_EQ(file->FindTensor("blk.1.ffn_gate.weight"), nullptr);
  EXPECT_EQ(file->FindTensor("blk.0.attn_q_norm.weight")->elements(), 32);
  EXPECT_EQ(*file->GetUint("qwen3moe.expert_used_count"), 2u);
  EXPECT_EQ(*file->GetUint("qwen3moe.expert_feed_forward_length"), 64u);

  Make({.architecture = "qwen2"});
  file = std::move(GgufFile::Open(path_)).value();
  EXPECT_EQ(file->FindTensor("blk.0.attn_q.bias")->elements(), 128);
  EXPECT_EQ(file->FindTensor("blk.1.attn_v.bias")->elements(), 64);
}

TEST_F(MakeModelTest, RopeScalingSetsKeysOrDivisors) {
  Request request;
  request.shape.rope_scaling = RopeScaling::kYarn;
  Make(request);
  auto file = std::move(GgufFile::Open(path_)).value();
  EXPECT_EQ(*file->GetString("llama.rope.scaling.type"), "yarn");
  EXPECT_EQ(*file->GetFloat("llama.rope.scaling.factor"), 4.0);
  EXPECT_EQ(*file->GetUint("llama.rope.scaling.original_context_length"), 256u);

  request.shape.rope_scaling = RopeScaling::kLlama3;
  Make(request);
  file = std::move(GgufFile::Open(path_)).value();
  EXPECT_EQ(file->Find("llama.rope.scaling.type"), nullptr);
  const GgufTensor* divisors = file->FindTensor("rope_freqs.weight");
  ASSERT_EQ(divisors->elements(), 16);
  const auto* const values = divisors->View()->as<const float>();
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[15], 4.0f);
  EXPECT_TRUE(std::is_sorted(values, values + 16));
}

TEST_F(MakeModelTest, VocabularyHasDistinctPiecesOfEveryKind) {
  Request request;
  request.shape.vocab = 40000;
  Make(request);
  const auto file = GgufFile::Open(path_);
  ASSERT_TRUE(file.ok());
  const GgufStrings pieces = *(*file)->GetStrings("tokenizer.ggml.tokens");
  const std::set<std::string_view> distinct(pieces.begin(), pieces.end());
  EXPECT_EQ(distinct.size(), 40000u);
  EXPECT_TRUE(distinct.contains("<0x0A>"));
  EXPECT_TRUE(distinct.contains("\xe2\x96\x81the"));
  // A piece of letters consists of two shorter pieces, which are in the vocabulary too.
  for (const std::string_view piece : distinct) {
    if (piece.size() < 2 || piece[0] < 'a' || piece[0] > 'z') continue;
    EXPECT_TRUE(distinct.contains(piece.substr(1))) << piece;
  }
  EXPECT_EQ((*file)->GetFloats("tokenizer.ggml.scores")->size(), 40000u);
  const GgufInts types = *(*file)->GetInts("tokenizer.ggml.token_type");
  EXPECT_EQ(types[0], 2);
  EXPECT_EQ(types[2], 3);
  EXPECT_EQ(types[258], 6);
  EXPECT_EQ(types[259], 1);
}

TEST_F(MakeModelTest, RefusesImpossibleRequests) {
  const struct {
    std::string_view message;
    void (*change)(Request&);
  } kCases[] = {
      {"weights cannot have type i8", [](Request& r) { r.type = DType::kI8; }},
      {"--layers is 0; must be 1 to 4096", [](Request& r) { r.shape.layers = 0; }},
      {"--vocab is 258; must be 259 to 500000", [](Request& r) { r.shape.vocab = 258; }},
      {"--kv-heads is 5; must be 1 to 4", [](Request& r) { r.shape.kv_heads = 5; }},
      {"--heads is 4; must be a multiple of --kv-heads, 3",
       [](Request& r) { r.shape.kv_heads = 3; }},
      {"--head-dim is 33; must be even, as RoPE rotates pairs",
       [](Request& r) { r.shape.head_dim = 33; }},
      {"--ffn is 100; must be a multiple of 32, the block of q8_0",
       [](Request& r) { r.shape.ffn = 100, r.type = DType::kQ8_0; }},
      {"--heads times --head-dim is 40; must be a multiple of 32, the block of q8_0",
       [](Request& r) { r.shape.head_dim = 10, r.type = DType::kQ8_0; }},
      {"--rope-base is -1; must be above 0 and below 1e12",
       [](Request& r) { r.shape.rope_base = -1; }},
      {"--rope-factor is 0; must be above 0 and below 1e6",
       [](Request& r) { r.shape.rope_factor = 0; }},
      {"--experts-used is 9; must be 1 to 8",
       [](Request& r) { r.shape.experts = 8, r.shape.experts_used = 9; }},
      {"--expert-ffn is 40; must be a multiple of 32, the block of q8_0",
       [](Request& r) { r.shape.experts = 8, r.shape.expert_ffn = 40, r.type = DType::kQ8_0; }},
      {"--experts is given; qwen2 has no experts",
       [](Request& r) { r.architecture = "qwen2", r.shape.experts = 4; }},
      {"--experts is missing; qwen3moe needs it", [](Request& r) { r.architecture = "qwen3moe"; }},
  };
  for (const auto& c : kCases) {
    Request request;
    c.change(request);
    EXPECT_EQ(MakeModel(request, path_).message(), c.message);
  }
  EXPECT_THAT(MakeModel({.architecture = "gpt"}, path_).message(),
              testing::AllOf(testing::StartsWith("architecture 'gpt' is not known; known are: "),
                             testing::HasSubstr("granitehybrid, granitemoe, ")));
  EXPECT_EQ(MakeModel({}, directory_ + "/none/m.gguf").code(), StatusCode::kNotFound);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  EXPECT_EQ(PresetShape("9b").status().message(), "preset '9b' is not known; known are: tiny, 1b");
}

TEST(RandomWeights, HaveTheirDistribution) {
  std::vector<float> values(1 << 20);
  const RandomWeights weights(3, "w");
  weights.Fill(Distribution::kNormal, 2.0f, 0, values);
  double sum = 0;
  double squares = 0;
  for (const float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0.0, 5 * 2.0 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 2.0, 5 * 2.0 / std::sqrt(n));
  weights.Fill(Distribution::kSignedNorm, 1.0f, 0, values);
  int negative = 0;
  for (const float value : values) {
    ASSERT_GE(std::fabs(value), 0.5f);
    ASSERT_LE(std::fabs(value), 1.5f);
    negative += value < 0;
  }
  EXPECT_NEAR(negative / n, 0.5, 5 * 0.5 / std::sqrt(n));
}

TEST(RandomWeights, PartsEqualTheWhole) {
  std::vector<float> whole(1000);
  std::vector<float> part(100);
  const RandomWeights weights(3, "w");
  weights.Fill(Distribution::kNormal, 1.0f, 0, whole);
  weights.Fill(Distribution::kNormal, 1.0f, 555, part);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 555));
  RandomWeights(3, "v").Fill(Distribution::kNormal, 1.0f, 555, part);
  EXPECT_FALSE(std::equal(part.begin(), part.end(), whole.begin() + 555));
}

}  // namespace
}  // namespace kvcache::make_model
