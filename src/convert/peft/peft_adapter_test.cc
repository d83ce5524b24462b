#include "convert/peft/peft_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/strings.h"
#include "gguf/gguf.h"
#include "import/hf_writer.h"
#include "make_model/make_model.h"

namespace kvcache::peft_adapter_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kQ = "base_model.model.model.layers.0.self_attn.q_proj";
constexpr std::int64_t kHidden = 128, kQueries = 128, kHeadDim = 32;  // of make_model's shape

// A tensor of f32 whose value at i is first + i.
HfTensor Counting(const std::string& name, std::int64_t rows, std::int64_t columns,
                  float first = 0.0f) {
  std::vector<float> values(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {name, "F32", {rows, columns}, bytes};
}

std::vector<HfTensor> PairOf(const std::string& module, std::int64_t inputs, std::int64_t outputs,
                             std::int64_t rank = 2) {
  return {Counting(module + ".lora_A.weight", rank, inputs),
          Counting(module + ".lora_B.weight", outputs, rank)};
}

json Config() {
  return {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 8}, {"bias", "none"}};
}

class PeftAdapterTest : public ::testing::Test {
 protected:
  void SetUp() override { Load({.architecture = "llama", .type = DType::kF32}); }

  void Load(const make_model::Request& request) {
    const std::string path = ::testing::TempDir() + "peft." + std::to_string(getpid()) + ".gguf";
    ASSERT_TRUE(make_model::MakeModel(request, path).ok());
    base_ = GgufFile::Open(path).value();
    std::filesystem::remove(path);
  }
  Result<std::vector<std::byte>> Convert(const json& config, const std::vector<HfTensor>& tensors) {
    const std::string text = SafetensorsBytes(tensors);
    return ConvertPeftAdapter(config.dump(), std::as_bytes(std::span(text)), "a.safetensors",
                              *base_);
  }
  std::string Message(const json& config, const std::vector<HfTensor>& tensors) {
    const auto image = Convert(config, tensors);
    return image.ok() ? "" : image.status().message();
  }
  std::unique_ptr<GgufFile> Read(const json& config, const std::vector<HfTensor>& tensors) {
    auto image = Convert(config, tensors);
    EXPECT_TRUE(image.ok()) << image.status().message();
    image_ = std::move(image).value();
    return GgufFile::Parse(image_, "image").value();
  }
  static std::vector<float> Values(const GgufFile& file, const std::string& name) {
    const GgufTensor* const tensor = file.FindTensor(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (tensor == nullptr) return {};
    std::vector<float> values(tensor->bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
    return values;
  }

  std::unique_ptr<GgufFile> base_;
  std::vector<std::byte> image_;
};

TEST_F(PeftAdapterTest, RowsOfQueriesChangePlacesAsTheirWeightsDo) {
  auto tensors = PairOf(kQ, kHidden, kQueries);
  const std::string v = "base_model.model.model.layers.1.self_attn.v_proj";
  for (HfTensor& more : PairOf(v, kHidden, 64)) tensors.push_back(more);
  const auto file = Read(Config(), tensors);
  EXPECT_EQ(*file->GetString("general.type"), "adapter");
  EXPECT_EQ(*file->GetString("adapter.type"), "lora");
  EXPECT_EQ(*file->GetFloat("adapter.lora.alpha"), 8.0);
  ASSERT_EQ(file->tensors().size(), 4);
  const auto b = Values(*file, "blk.0.attn_q.weight.lora_b");
  ASSERT_EQ(b.size(), 2 * kQueries);
  for (std::int64_t row = 0; row < kQueries; ++row) {  // row 2 i + h is row i of half h
    const std::int64_t at = row % kHeadDim;
    const std::int64_t from = row - at + at % 2 * kHeadDim / 2 + at / 2;
    EXPECT_EQ(b[static_cast<std::size_t>(2 * row)], static_cast<float>(2 * from)) << row;
    EXPECT_EQ(b[static_cast<std::size_t>(2 * row + 1)], static_cast<float>(2 * from + 1)) << row;
  }
  const auto a = Values(*file, "blk.0.attn_q.weight.lora_a");
  const auto of_v = Values(*file, "blk.1.attn_v.weight.lora_b");
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], static_cast<float>(i));
  for (std::size_t i = 0; i < of_v.size(); ++i) EXPECT_EQ(of_v[i], static_cast<float>(i));
  EXPECT_EQ(file->FindTensor("blk.0.attn_q.weight.lora_a")->dims[0], kHidden);
  EXPECT_EQ(file->FindTensor("blk.0.attn_q.weight.lora_a")->dims[1], 2);
}

TEST_F(PeftAdapterTest, OtherFamiliesKeepTheOrderOfRows) {
  Load({.architecture = "qwen3", .type = DType::kF32});
  const auto file = Read(Config(), PairOf(kQ, kHidden, kQueries));
  const auto b = Values(*file, "blk.0.attn_q.weight.lora_b");
  for (std::size_t i = 0; i < b.size(); ++i) EXPECT_EQ(b[i], static_cast<float>(i));
}

TEST_F(PeftAdapterTest, TheEmbeddingIsTransposedAndTheHeadIsNot) {
  const std::string embed = "base_model.model.model.embed_tokens";
  const auto file = Read(Config(), {Counting(embed + ".lora_embedding_A", 2, 512),
                                    Counting(embed + ".lora_embedding_B", kHidden, 2),
                                    Counting("base_model.model.lm_head.lora_A.weight", 2, kHidden),
                                    Counting("base_model.model.lm_head.lora_B.weight", 512, 2)});
  const auto a = Values(*file, "token_embd.weight.lora_a");
  EXPECT_EQ(file->FindTensor("token_embd.weight.lora_a")->dims[0], 2);
  for (std::size_t token = 0; token < 512; ++token) {
    EXPECT_EQ(a[2 * token], static_cast<float>(token));
    EXPECT_EQ(a[2 * token + 1], static_cast<float>(512 + token));
  }
  EXPECT_EQ(file->FindTensor("output.weight.lora_b")->dims[1], 512);
}

TEST_F(PeftAdapterTest, TheBasesOwnWeightsAreSkipped) {
  const std::string embed = "base_model.model.model.embed_tokens";
  const std::string head = "base_model.model.lm_head";
  std::vector<HfTensor> tensors = {Counting(embed + ".lora_embedding_A", 2, 512),
                                   Counting(embed + ".lora_embedding_B", kHidden, 2),
                                   Counting(head + ".lora_A.weight", 2, kHidden),
                                   Counting(head + ".lora_B.weight", 512, 2)};
  (void)Read(Config(), tensors);
  const std::vector<std::byte> without = image_;
  tensors.push_back(Counting(embed + ".base_layer.weight", 512, kHidden));
  tensors.push_back(Counting(head + ".base_layer.weight", 512, kHidden));
  (void)Read(Config(), tensors);
  EXPECT_EQ(image_, without);
  tensors.back() = Counting(head + ".base_layer.weight", 513, kHidden);
  EXPECT_THAT(Message(Config(), tensors),
              HasSubstr("lm_head.base_layer.weight' is no matrix of 512"));
  tensors.back() = Counting(std::string(kQ) + ".base_layer.weight", 4, 4);
  EXPECT_THAT(Message(Config(), tensors), HasSubstr("belongs to no pair"));
}

TEST_F(PeftAdapterTest, AModuleHasOneRankAndOneAlpha) {
  json config = Config();
  const auto tensors = PairOf(kQ, kHidden, kQueries);
  config["alpha_pattern"] = {{"q_proj", 3}, {"self_attn.q_proj", 5}};
  EXPECT_THAT(Message(config, tensors), HasSubstr("alpha_pattern has 3 by 'q_proj' and 5 by"));
  config["alpha_pattern"] = {{"q_proj", 3}, {"self_attn.q_proj", 3}, {"v_proj", 5}};
  EXPECT_EQ(Message(config, tensors), "");
  config["rank_pattern"] = {{"q_proj", 2}, {"^model.layers.0.self_attn.q_proj", 4}};
  EXPECT_THAT(Message(config, tensors), HasSubstr("rank_pattern has"));
}

TEST_F(PeftAdapterTest, UnknownKeysAreRefusedIfTheySaySomething) {
  const auto tensors = PairOf(kQ, kHidden, kQueries);
  const auto with = [&](const char* key, const json& value) {
    json config = Config();
    config[key] = value;
    return Message(config, tensors);
  };
  for (const char* key : {"use_bdlora", "ensure_weight_tying", "megatron_config", "foo"}) {
    EXPECT_THAT(with(key, true), HasSubstr(StrCat(key, " is"))) << key;
    for (const json& nothing : {json(nullptr), json(false), json::object()}) {
      EXPECT_EQ(with(key, nothing), "") << key;
    }
  }
  EXPECT_EQ(with("megatron_core", "megatron.core"), "");
  EXPECT_EQ(with("qalora_group_size", 16), "");
}

TEST_F(PeftAdapterTest, FactorsFollowRanksAndAlphas) {
  json config = Config();
  config["use_rslora"] = true;
  const auto rooted = Read(config, PairOf(kQ, kHidden, kQueries));
  EXPECT_FLOAT_EQ(static_cast<float>(*rooted->GetFloat("adapter.lora.alpha")),
                  static_cast<float>(8.0 / std::sqrt(2.0) * 2.0));
  // A module with other numbers than the first gets its factor in B: alpha / r is 6 / 3 instead of 4.
  config = Config();
  config["rank_pattern"] = {{"layers.1.self_attn.v_proj", 3}};
  config["alpha_pattern"] = {{"v_proj", 6}};
  auto tensors = PairOf(kQ, kHidden, kQueries);
  const std::string v = "base_model.model.model.layers.1.self_attn.v_proj";
  for (HfTensor& more : PairOf(v, kHidden, 64, 3)) tensors.push_back(more);
  const auto file = Read(config, tensors);
  EXPECT_EQ(*file->GetFloat("adapter.lora.alpha"), 8.0);
  const auto b = Values(*file, "blk.1.attn_v.weight.lora_b");
  // The file's factor for rank 3 is 8 / 3.
  for (std::size_t i = 0; i < b.size(); ++i) {
    EXPECT_FLOAT_EQ(b[i], static_cast<float>(i) * 2.0f * 3.0f / 8.0f) << i;
  }
  // A pattern is a name, and no part of one.
  config["alpha_pattern"] = {{"proj", 6}};
  const auto same = Read(config, tensors);
  EXPECT_FLOAT_EQ(Values(*same, "blk.1.attn_v.weight.lora_b")[1], 1.0f);
}

TEST_F(PeftAdapterTest, ExpertsBecomeStacks) {
  make_model::Request request{.architecture = "qwen3moe", .type = DType::kF32};
  request.shape.experts = 3;
  Load(request);
  std::vector<HfTensor> tensors;
  const auto module = [](int expert) {
    return StrCat("base_model.model.model.layers.0.mlp.experts.", expert, ".up_proj");
  };
  for (const int expert : {2, 0, 1}) {
    tensors.push_back(Counting(module(expert) + ".lora_A.weight", 2, kHidden,
                               1000.0f * static_cast<float>(expert)));
    tensors.push_back(Counting(module(expert) + ".lora_B.weight", 64, 2));
  }
  const auto file = Read(Config(), tensors);
  const auto a = Values(*file, "blk.0.ffn_up_exps.weight.lora_a");
  EXPECT_EQ(file->FindTensor("blk.0.ffn_up_exps.weight.lora_b")->dims[2], 3);
  for (std::size_t expert = 0; expert < 3; ++expert) {
    EXPECT_EQ(a[expert * 2 * kHidden], 1000.0f * static_cast<float>(expert));
  }
  tensors.resize(4);
  EXPECT_THAT(Message(Config(), tensors),
              HasSubstr("expert 1 of 'blk.0.ffn_up_exps.weight.lora_a'"));
}

TEST_F(PeftAdapterTest, WhatIsNotDoneIsRefusedByName) {
  const auto pair = PairOf(kQ, kHidden, kQueries);
  const auto with = [&](const char* key, const json& value) {
    json config = Config();
    config[key] = value;
    return Message(config, pair);
  };
  EXPECT_EQ(Message(Config(), pair), "");
  EXPECT_EQ(with("use_dora", false), "");
  EXPECT_EQ(with("modules_to_save", nullptr), "");
  EXPECT_EQ(with("modules_to_save", json::array()), "");
  EXPECT_EQ(with("init_lora_weights", "gaussian"), "");
  EXPECT_THAT(with("peft_type", "IA3"), HasSubstr("peft_type is"));
  EXPECT_THAT(with("use_dora", true), HasSubstr("use_dora is 'true'; DoRA is not supported"));
  EXPECT_THAT(with("bias", "lora_only"), HasSubstr("bias is"));
  EXPECT_THAT(with("lora_bias", true), HasSubstr("lora_bias is 'true'"));
  EXPECT_THAT(with("modules_to_save", {"lm_head"}), HasSubstr("modules_to_save"));
  EXPECT_THAT(with("alora_invocation_tokens", {1, 2}), HasSubstr("alora_invocation_tokens"));
  EXPECT_THAT(with("target_parameters", {"mlp.experts.down_proj"}), HasSubstr("target_parameters"));
  EXPECT_THAT(with("init_lora_weights", "pissa_niter_4"), HasSubstr("init_lora_weights"));
  EXPECT_THAT(with("r", 0), HasSubstr("r is '0'"));
  EXPECT_THAT(with("r", 4), HasSubstr("adapter_config.json says rank 4"));
  EXPECT_THAT(with("lora_alpha", 0), HasSubstr("lora_alpha"));
  EXPECT_THAT(with("alpha_pattern", {{".*q_proj", 3}}), HasSubstr("no regular expressions"));
  EXPECT_THAT(with("alpha_pattern", {{"q_proj", -3}}), HasSubstr("must be a number above 0"));
  EXPECT_THAT(with("rank_pattern", {{"q_proj", 2.5}}), HasSubstr("must be a whole number"));
}

TEST_F(PeftAdapterTest, WrongTensorsAreNamed) {
  auto pair = PairOf(kQ, kHidden, kQueries);
  const auto with = [&](HfTensor more) {
    auto tensors = pair;
    tensors.push_back(std::move(more));
    return Message(Config(), tensors);
  };
  EXPECT_THAT(Message(Config(), {}), HasSubstr("the adapter has no tensors"));
  EXPECT_THAT(Message(Config(), {pair[0]}), HasSubstr("needs lora_B"));
  EXPECT_THAT(Message(Config(), {pair[1]}), HasSubstr("needs lora_A"));
  EXPECT_THAT(with(Counting(std::string(kQ) + ".lora_magnitude_vector", 1, 4)), HasSubstr("DoRA"));
  EXPECT_THAT(with(Counting(std::string(kQ) + ".lora_B.bias", 1, 4)),
              HasSubstr("adapters change matrices only"));
  EXPECT_THAT(with(Counting("model.layers.0.x.lora_A.weight", 2, 4)),
              HasSubstr("adapters change matrices only"));
  for (const char* module : {"layers.0.self_attn.w_proj", "layers.x.self_attn.q_proj", "layers.0",
                             "layers.99999999.self_attn.q_proj", "block_sparse_moe.experts.7.w1"}) {
    EXPECT_THAT(Message(Config(), PairOf(StrCat("base_model.model.model.", module), 8, 8)),
                HasSubstr("has no place in architecture 'llama'"))
        << module;
  }
  pair[0].type = "I32";
  EXPECT_THAT(Message(Config(), pair), HasSubstr("is I32; must be F32, F16 or BF16"));
  pair = PairOf(kQ, kHidden, kQueries - 2);
  EXPECT_THAT(
      Message(Config(), pair),
      HasSubstr("lora_B.weight' gives 126 rows; the base's 'blk.0.attn_q.weight' needs 128"));
  EXPECT_THAT(
      Message(Config(), PairOf(kQ, kHidden + 1, kQueries)),
      HasSubstr("lora_A.weight' has 129 columns; the base's 'blk.0.attn_q.weight' needs 128"));
  EXPECT_THAT(Message(Config(), PairOf("base_model.model.model.layers.9.mlp.up_proj", 8, 8)),
              HasSubstr("is for 'blk.9.ffn_up.weight', which the base does not have"));
  const std::string embed = "base_model.model.model.embed_tokens";
  EXPECT_THAT(Message(Config(), {Counting(embed + ".lora_embedding_A", 2, 500),
                                 Counting(embed + ".lora_embedding_B", kHidden, 2)}),
              HasSubstr("has 500 columns; the base's 'token_embd.weight' needs 512"));
  pair[0].shape = {2 * kHidden};
  EXPECT_THAT(Message(Config(), pair), HasSubstr("is no matrix"));
  Load({.architecture = "phi3", .type = DType::kF32});
  EXPECT_THAT(Message(Config(), pair), HasSubstr("not read for architecture 'phi3'"));
}

TEST_F(PeftAdapterTest, EncodersHaveNamesOfTheirOwn) {
  const auto tensor_of = [&](const char* architecture, const std::string& module,
                             std::int64_t outputs) {
    make_model::Request request{.architecture = architecture, .type = DType::kF32};
    request.shape.kv_heads = std::string_view(architecture) == "gemma-embedding" ? 2 : 4;
    request.shape.window = 16;
    request.shape.family.labels = 1;
    Load(request);
    const auto file = Read(Config(), PairOf("base_model.model." + module, kHidden, outputs));
    return std::string(file->tensors()[0].name);
  };
  const std::string kBert = "bert.encoder.layer.1.";
  EXPECT_EQ(tensor_of("bert", kBert + "attention.self.query", 128), "blk.1.attn_q.weight.lora_a");
  EXPECT_EQ(tensor_of("bert", "encoder.layer.0.attention.output.dense", 128),
            "blk.0.attn_output.weight.lora_a");
  EXPECT_EQ(tensor_of("bert", kBert + "intermediate.dense", 256), "blk.1.ffn_up.weight.lora_a");
  EXPECT_EQ(tensor_of("bert", "roberta.encoder.layer.1.attention.self.value", 128),
            "blk.1.attn_v.weight.lora_a");
  EXPECT_EQ(tensor_of("bert", "classifier.out_proj", 1), "cls.output.weight.lora_a");
  EXPECT_EQ(tensor_of("bert", "bert.pooler.dense", 128), "cls.weight.lora_a");
  EXPECT_EQ(tensor_of("nomic-bert", "encoder.layers.0.attn.Wqkv", 384),
            "blk.0.attn_qkv.weight.lora_a");
  EXPECT_EQ(tensor_of("nomic-bert", "encoder.layers.0.mlp.fc12", 256),
            "blk.0.ffn_gate.weight.lora_a");
  EXPECT_EQ(tensor_of("modern-bert", "model.layers.1.mlp.Wi", 512), "blk.1.ffn_up.weight.lora_a");
  EXPECT_EQ(tensor_of("modern-bert", "layers.1.attn.Wo", 128), "blk.1.attn_output.weight.lora_a");
  EXPECT_EQ(tensor_of("gemma-embedding", "layers.1.self_attn.v_proj", 64),
            "blk.1.attn_v.weight.lora_a");
}

// The file is sparse: neither the disk nor the memory has room for its values.
TEST_F(PeftAdapterTest, ShapesAreCheckedBeforeValuesAreRead) {
  namespace fs = std::filesystem;
  const std::string folder = ::testing::TempDir() + "sparse." + std::to_string(getpid());
  fs::create_directories(folder);
  WriteText(folder + "/adapter_config.json", Config().dump());
  constexpr std::int64_t kColumns = std::int64_t{1} << 33, kBytes = 8 * kColumns;
  const json header = {
      {StrCat(kQ, ".lora_A.weight"),
       {{"dtype", "F32"}, {"shape", {2, kColumns}}, {"data_offsets", {0, kBytes}}}},
      {StrCat(kQ, ".lora_B.weight"),
       {{"dtype", "F32"},
        {"shape", {kQueries, 2}},
        {"data_offsets", {kBytes, kBytes + 8 * kQueries}}}}};
  const std::string text = header.dump();
  const std::uint64_t size = text.size();
  std::string begin(sizeof(size), '\0');
  std::memcpy(begin.data(), &size, sizeof(size));
  const std::string file = folder + "/adapter_model.safetensors";
  WriteText(file, begin + text);
  fs::resize_file(file, begin.size() + size + kBytes + 8 * kQueries);
  EXPECT_THAT(ImportPeftAdapter(folder, *base_).status().message(),
              HasSubstr("has 8589934592 columns; the base's 'blk.0.attn_q.weight' needs 128"));
  fs::remove_all(folder);
}

TEST_F(PeftAdapterTest, DirectoriesAndFilesAreRead) {
  namespace fs = std::filesystem;
  const std::string folder = ::testing::TempDir() + "adapter." + std::to_string(getpid());
  fs::create_directories(folder);
  WriteText(folder + "/adapter_config.json", Config().dump());
  const auto missing = ImportPeftAdapter(folder, *base_);
  EXPECT_THAT(missing.status().message(), HasSubstr("adapter_model.safetensors"));
  WriteText(folder + "/adapter_model.safetensors", SafetensorsBytes(PairOf(kQ, kHidden, kQueries)));
  const auto image = ImportPeftAdapter(folder, *base_);
  ASSERT_TRUE(image.ok()) << image.status().message();
  EXPECT_EQ(*ImportPeftAdapter(folder + "/adapter_model.safetensors", *base_), *image);
  EXPECT_TRUE(IsPeftAdapter(folder));
  EXPECT_TRUE(IsPeftAdapter(folder + "/adapter_model.safetensors"));
  EXPECT_FALSE(IsPeftAdapter("a.gguf"));
  fs::remove(folder + "/adapter_config.json");
  EXPECT_THAT(ImportPeftAdapter(folder, *base_).status().message(),
              HasSubstr("there is no adapter_config.json"));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace kvcache::peft_adapter_test
