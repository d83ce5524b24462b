// Adapters that do not fit their base. What adapters compute is src/engine/adapters_test.cc's.
#include "model/adapter/adapter_bank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvcache/cpu_backend.h"
#include "make_model/make_model.h"
#include "model/model.h"
#include "support/random_adapter.h"

namespace kvcache::adapter_bank_test {
namespace {

using testing::AdapterTensor;
using ::testing::HasSubstr;

class AdapterBankTest : public ::testing::Test {
 protected:
  void Load(const make_model::Request& request) {
    path_ = ::testing::TempDir() + "bank." + std::to_string(getpid()) + ".gguf";
    const Status made = make_model::MakeModel(request, path_);
    ASSERT_TRUE(made.ok()) << made.message();
    base_ = GgufFile::Open(path_).value();
    std::filesystem::remove(path_);
    model_ = LoadModel(*base_, *backend_).value();
  }
  // Adds an adapter after a change, and returns the error.
  std::string Add(const std::function<void(std::vector<AdapterTensor>&)>& change,
                  std::string architecture = "") {
    auto tensors = testing::AdapterTensors(*base_, {});
    change(tensors);
    if (architecture.empty()) architecture = *base_->GetString("general.architecture");
    bytes_.push_back(testing::GgufBytes(testing::AdapterHeader(architecture, 8.0f), tensors));
    auto file = AdapterFile::Parse(bytes_.back(), "a.gguf");
    EXPECT_TRUE(file.ok()) << file.status().message();
    if (!file.ok()) return "";
    files_.push_back(std::move(*file));
    const Status added = model_->AddAdapter(*files_.back());
    // The model without its weights says the same.
    const std::unique_ptr<Backend> shapes = MakeShapeBackend();
    const auto described = LoadModel(*base_, *shapes).value();
    EXPECT_EQ(described->AddAdapter(*files_.back()).message(), added.message());
    return added.message();
  }
  // Changes the pair of one tensor only.
  std::string Only(const std::string& name, std::vector<std::int64_t> a,
                   std::vector<std::int64_t> b) {
    return Add([&](std::vector<AdapterTensor>& tensors) {
      const auto make = [&](const char* suffix, const std::vector<std::int64_t>& dims) {
        std::int64_t count = 1;
        for (const std::int64_t size : dims) count *= size;
        return AdapterTensor{name + suffix, dims,
                             std::vector<float>(static_cast<std::size_t>(count), 0.1f)};
      };
      tensors = {make(".lora_a", a), make(".lora_b", b)};
    });
  }
  static void Same(std::vector<AdapterTensor>&) {}

  std::unique_ptr<Backend> backend_ = MakeCpuBackend({.threads = 1}).value();
  std::string path_;
  std::unique_ptr<GgufFile> base_;
  std::unique_ptr<Model> model_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::unique_ptr<AdapterFile>> files_;
};

TEST_F(AdapterBankTest, WhatDoesNotFitIsNamed) {
  Load({.architecture = "llama", .type = DType::kF32});
  const auto dims = base_->FindTensor("blk.0.attn_q.weight")->dims;
  const std::int64_t in = dims[0], out = dims[1];
  EXPECT_EQ(Add(Same), "");
  EXPECT_THAT(Add(Same, "qwen3"), HasSubstr("general.architecture is 'qwen3'"));
  EXPECT_EQ(Only("blk.0.attn_q.weight", {in, 2}, {2, out}), "");
  EXPECT_THAT(Only("blk.0.attn_q.weight", {in + 1, 2}, {2, out}),
              HasSubstr("tensor 'blk.0.attn_q.weight.lora_a'"));
  EXPECT_THAT(Only("blk.0.attn_q.weight", {in, 2}, {2, out - 1}),
              HasSubstr("tensor 'blk.0.attn_q.weight.lora_b'"));
  EXPECT_THAT(Only("blk.0.attn_q.weight", {in, 2, 2}, {2, out, 2}),
              HasSubstr("does not fit the base"));
  EXPECT_THAT(Only("blk.99.attn_q.weight", {in, 2}, {2, out}),
              HasSubstr("'blk.99.attn_q.weight', which is no matrix of this 'llama'"));
  EXPECT_THAT(Only("blk.0.attn_norm.weight", {in, 2}, {2, 1}), HasSubstr("is no matrix"));
  const auto embedding = base_->FindTensor("token_embd.weight")->dims;
  EXPECT_EQ(Only("token_embd.weight", {2, embedding[1]}, {2, embedding[0]}), "");
  EXPECT_THAT(Only("token_embd.weight", {2, embedding[1] - 1}, {2, embedding[0]}),
              HasSubstr("do not fit the base, whose embedding has"));
}

TEST_F(AdapterBankTest, OtherSpellingsOfNamesAreOneArchitecture) {
  Load({.architecture = "olmo2", .type = DType::kF32});
  EXPECT_EQ(Add(Same, "olmo3"), "");
  make_model::Request request{.architecture = "gpt-oss", .type = DType::kF32};
  request.shape.experts = 4;
  request.shape.expert_ffn = request.shape.ffn;
  Load(request);
  EXPECT_EQ(Add(Same, "gptoss"), "");
  const auto rename = [](std::vector<AdapterTensor>& tensors) {
    for (AdapterTensor& tensor : tensors) {
      const std::size_t at = tensor.name.find("attn_output");
      if (at != std::string::npos) tensor.name.replace(at, 11, "attn_out");
    }
  };
  EXPECT_EQ(Add(rename, "gptoss"), "");
  EXPECT_THAT(Add(rename, "gpt-oss"), HasSubstr("attn_out.weight', which is no matrix"));
}

TEST_F(AdapterBankTest, ATiedOutputHasNoAdapterOfItsOwn) {
  make_model::Request request{.architecture = "llama", .type = DType::kF32};
  request.shape.output = make_model::Output::kTied;
  Load(request);
  const auto dims = base_->FindTensor("token_embd.weight")->dims;
  EXPECT_THAT(Only("output.weight", {dims[0], 2}, {2, dims[1]}), HasSubstr("is no matrix"));
}

TEST_F(AdapterBankTest, ExpertsNeedAMatrixEach) {
  make_model::Request request{.architecture = "qwen3moe", .type = DType::kF32};
  request.shape.experts = 4;
  Load(request);
  const auto dims = base_->FindTensor("blk.0.ffn_up_exps.weight")->dims;
  EXPECT_EQ(Only("blk.0.ffn_up_exps.weight", {dims[0], 2, 4}, {2, dims[1], 4}), "");
  EXPECT_THAT(Only("blk.0.ffn_up_exps.weight", {dims[0], 2, 3}, {2, dims[1], 3}),
              HasSubstr("4 experts"));
  EXPECT_THAT(Only("blk.0.ffn_up_exps.weight", {dims[0], 2}, {2, dims[1]}), HasSubstr("4 experts"));
}

TEST_F(AdapterBankTest, MatricesOfAbsorbedAttentionAreRefused) {
  make_model::Request request{.architecture = "deepseek2", .type = DType::kF32};
  request.shape.experts = 4;
  Load(request);
  const auto dims = base_->FindTensor("blk.0.attn_k_b.weight")->dims;
  EXPECT_THAT(Only("blk.0.attn_k_b.weight", {dims[0], 2, dims[2]}, {2, dims[1], dims[2]}),
              HasSubstr("is no matrix of this 'deepseek2' that adapters can change"));
}

}  // namespace
}  // namespace kvcache::adapter_bank_test
