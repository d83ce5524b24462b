// The keys and tensors that each family accepts and refuses, in files made tensor by tensor,
// without data.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "gguf/gguf_writer.h"
#include "kvcache/cpu_backend.h"
#include "make_model/architecture.h"
#include "model/model.h"

namespace kvcache::architectures_test {
namespace {

using make_model::Shape;
using make_model::TensorSpec;

// The changes of a test to a family's file.
struct Changes {
  std::function<void(GgufHeader&)> header = [](GgufHeader&) {};
  std::function<void(std::vector<TensorSpec>&)> tensors = [](std::vector<TensorSpec>&) {};
};

class ArchitecturesTest : public ::testing::Test {
 protected:
  Status Load(std::string_view name, const Shape& shape, const Changes& changes = {}) {
    const auto* const family = *make_model::FindArchitecture(name);
    GgufHeader header;
    header.SetString("general.architecture", name);
    family->add_metadata(shape, header);
    changes.header(header);
    std::vector<TensorSpec> specs = family->tensors(shape);
    changes.tensors(specs);
    for (const TensorSpec& spec : specs) header.AddTensor(spec.name, GgmlType::kF32, spec.dims);
    std::string bytes = *header.Serialize();
    const std::size_t data = bytes.size();
    bytes.resize(data + header.data_bytes());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].values.empty()) continue;  // most tensors stay zero: few values matter
      std::memcpy(bytes.data() + data + header.tensors()[i].offset, specs[i].values.data(),
                  specs[i].values.size() * sizeof(float));
    }
    const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes.data(), bytes.size())), "m");
    EXPECT_TRUE(file.ok()) << file.status().message();
    auto model = LoadModel(**file, *backend_);
    if (!model.ok()) return std::move(model).TakeStatus();
    EXPECT_EQ((*model)->info().architecture, name);
    // An encoder-decoder's layers have the encoder output's memory as well; falcon-h1's have a state beside
    // keys and values.
    const int kinds = (*model)->info().decoder_start < 0 && name != "falcon-h1" ? 1 : 2;
    const bool is_encoder = (*model)->info().is_encoder;
    EXPECT_EQ(is_encoder, IsTextEncoder(**file));
    EXPECT_EQ((*model)->info().memory.size(),
              static_cast<std::size_t>(is_encoder ? 0 : shape.layers * kinds));
    return Status::Ok();
  }

  static std::function<void(std::vector<TensorSpec>&)> Without(const std::string& name) {
    return [name](std::vector<TensorSpec>& specs) {
      EXPECT_EQ(std::erase_if(specs, [&](const TensorSpec& s) { return s.name == name; }), 1u);
    };
  }
  static std::function<void(std::vector<TensorSpec>&)> With(const std::string& name,
                                                            std::vector<std::int64_t> dims) {
    return [name, dims](std::vector<TensorSpec>& specs) {
      specs.push_back({.name = name, .dims = dims});
    };
  }

  static Shape Routed() {
    Shape shape;
    shape.experts = 4;
    return shape;
  }

  std::unique_ptr<Backend> backend_ = std::move(MakeCpuBackend({.threads = 1})).value();
};

TEST_F(ArchitecturesTest, EachLoads) {
  for (const std::string& name : SupportedArchitectures()) {
    const auto experts = (*make_model::FindArchitecture(name))->experts;
    const Status status =
        Load(name, experts == make_model::ExpertUse::kNeeded ? Routed() : Shape());
    EXPECT_TRUE(status.ok()) << name << ": " << status.message();
  }
}

TEST_F(ArchitecturesTest, TensorsAreThoseOfTheFamily) {
  const struct {
    const char* name;
    Shape shape;
    std::function<void(std::vector<TensorSpec>&)> change;
    const char* message;
  } kCases[] = {
      {"gemma2",
       {},
       Without("blk.0.post_attention_norm.weight"),
       "m: tensor 'blk.0.post_attention_norm.weight' is missing"},
      {"gemma2",
       {},
       With("blk.0.attn_q_norm.weight", {32}),
       "m: tensor 'blk.0.attn_q_norm.weight' is unknown: this architecture does not use it"},
      {"gemma3",
       {},
       Without("blk.1.attn_q_norm.weight"),
       "m: tensor 'blk.1.attn_q_norm.weight' is missing"},
      {"gemma3n",
       {},
       Without("blk.1.altup_correct_scale.weight"),
       "m: tensor 'blk.1.altup_correct_scale.weight' is missing"},
      {"gemma3n",
       {},
       With("blk.0.layer_output_scale.weight", {1}),
       "m: tensor 'blk.0.layer_output_scale.weight' is unknown: this architecture does not use it"},
      {"gemma4",
       {},
       With("blk.0.ffn_gate_inp.weight", {128, 4}),
       "m: tensor 'blk.0.ffn_gate_inp.weight' is unknown: this architecture does not use it"},
      {"gemma4",
       {},
       Without("blk.0.inp_gate.weight"),
       "m: tensor 'blk.0.inp_gate.weight' is missing"},
      {"gpt-oss", Routed(), Without("blk.1.attn_sinks.weight"),
       "m: tensor 'blk.1.attn_sinks.weight' is missing"},
      {"gpt-oss", Routed(), Without("blk.0.ffn_up_exps.bias"),
       "m: tensor 'blk.0.ffn_up_exps.bias' is missing"},
      {"qwen2", {}, Without("blk.1.attn_k.bias"), "m: tensor 'blk.1.attn_k.bias' is missing"},
      {"qwen3",
       {},
       Without("blk.0.attn_q_norm.weight"),
       "m: tensor 'blk.0.attn_q_norm.weight' is missing"},
      {"qwen3",
       {},
       With("blk.0.attn_q.bias", {128}),
       "m: tensor 'blk.0.attn_q.bias' is unknown: this architecture does not use it"},
      {"llama",
       {},
       With("blk.0.attn_q_norm.weight", {32}),
       "m: tensor 'blk.0.attn_q_norm.weight' is unknown: this architecture does not use it"},
      {"qwen3moe", Routed(), Without("blk.1.ffn_up_exps.weight"),
       "m: tensor 'blk.1.ffn_up_exps.weight' is missing"},
      {"qwen3moe", Routed(), With("blk.1.ffn_up_shexp.weight", {128, 64}),
       "m: tensor 'blk.1.ffn_up_shexp.weight' is unknown: this architecture does not use it"},
      {"qwen3moe", Routed(),
       [](std::vector<TensorSpec>& specs) {
         for (TensorSpec& spec : specs) {
           if (spec.name == "blk.0.ffn_down_exps.weight") spec.dims = {64, 128, 3};
         }
       },
       "m: tensor 'blk.0.ffn_down_exps.weight' has shape [64, 128, 3]; must be [64, 128, 4]"},
      {"phi3", {}, Without("blk.1.attn_qkv.weight"), "m: tensor 'blk.1.attn_q.weight' is missing"},
      {"olmo2",
       {},
       With("blk.0.ffn_norm.weight", {128}),
       "m: tensor 'blk.0.ffn_norm.weight' is unknown: this architecture does not use it"},
      {"cohere2",
       {},
       With("blk.0.attn_norm.bias", {128}),
       "m: tensor 'blk.0.attn_norm.bias' is unknown: this architecture does not use it"},
      {"glm4moe", Routed(), Without("blk.1.post_attention_norm.weight"),
       "m: tensor 'blk.1.post_attention_norm.weight' is missing"},
      {"llama4", Routed(), Without("blk.1.ffn_up_shexp.weight"),
       "m: tensor 'blk.1.ffn_up_shexp.weight' is missing"},
      {"llama4", Routed(), With("blk.0.ffn_gate_inp.weight", {128, 4}),
       "m: tensor 'blk.0.ffn_gate_inp.weight' is unknown: this architecture does not use it"},
      {"deepseek2", Routed(), With("blk.0.attn_kv_b.weight", {64, 256}),
       "m: tensor 'blk.0.attn_kv_b.weight' is unknown: this architecture does not use it"},
      {"t5",
       {},
       Without("dec.blk.1.cross_attn_norm.weight"),
       "m: tensor 'dec.blk.1.cross_attn_norm.weight' is missing"},
      {"t5",
       {},
       With("enc.blk.1.attn_rel_b.weight", {4, 32}),
       "m: tensor 'enc.blk.1.attn_rel_b.weight' is unknown: this architecture does not use it"},
      {"deepseek2", Routed(), Without("blk.1.attn_v_b.weight"),
       "m: tensor 'blk.1.attn_v_b.weight' is missing"},
      {"lfm2",
       {},
       Without("blk.0.shortconv.conv.weight"),
       "m: tensor 'blk.0.shortconv.conv.weight' is missing"},
      {"lfm2",
       {},
       [](std::vector<TensorSpec>& specs) {
         for (TensorSpec& spec : specs) {
           if (spec.name == "blk.0.shortconv.in_proj.weight") spec.dims = {128, 256};
         }
       },
       "m: tensor 'blk.0.shortconv.in_proj.weight' has shape [128, 256]; must be [128, 384]"},
      {"lfm2",
       {},
       With("blk.1.shortconv.conv.weight", {3, 128}),
       "m: tensor 'blk.1.shortconv.conv.weight' is unknown: this architecture does not use it"},
      {"qwen3next", Routed(), Without("blk.0.ssm_a"), "m: tensor 'blk.0.ssm_a' is missing"},
      {"qwen35",
       {},
       Without("blk.0.ssm_beta.weight"),
       "m: tensor 'blk.0.ssm_beta.weight' is missing"},
      {"falcon-h1", {}, Without("blk.1.ssm_d"), "m: tensor 'blk.1.ssm_d' is missing"},
      {"mamba2",
       {},
       Without("blk.0.ssm_norm.weight"),
       "m: tensor 'blk.0.ssm_norm.weight' is missing"},
      {"nemotron_h",
       {},
       With("blk.0.ffn_up.weight", {128, 64}),
       "m: tensor 'blk.0.ffn_up.weight' is unknown: this architecture does not use it"},
      {"qwen3next", Routed(), Without("blk.1.ffn_gate_inp_shexp.weight"),
       "m: tensor 'blk.1.ffn_gate_inp_shexp.weight' is missing"},
      {"granitehybrid",
       {},
       Without("blk.0.ssm_norm.weight"),
       "m: tensor 'blk.0.ssm_norm.weight' is missing"},
      {"granitehybrid", Routed(), Without("blk.0.ffn_up_shexp.weight"),
       "m: tensor 'blk.0.ffn_up_shexp.weight' is missing"},
      {"bert",
       {},
       Without("blk.1.layer_output_norm.bias"),
       "m: tensor 'blk.1.layer_output_norm.bias' is missing"},
      {"bert",
       {},
       With("blk.0.ffn_gate.weight", {128, 256}),
       "m: tensor 'blk.0.ffn_gate.weight' is unknown: this architecture does not use it"},
      {"nomic-bert",
       {},
       With("position_embd.weight", {128, 2048}),
       "m: tensor 'position_embd.weight' is unknown: this architecture does not use it"},
      {"modern-bert",
       {},
       Without("blk.1.attn_norm.weight"),
       "m: tensor 'blk.1.attn_norm.weight' is missing"},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(Load(c.name, c.shape, {.tensors = c.change}).message(), c.message);
  }
}

TEST_F(ArchitecturesTest, LlamaTakesBiasesWhereTheyAre) {
  EXPECT_TRUE(Load("llama", {}, {.tensors = With("blk.0.attn_q.bias", {128})}).ok());
  EXPECT_TRUE(Load("llama", {}, {.tensors = With("blk.1.attn_output.bias", {128})}).ok());
}

TEST_F(ArchitecturesTest, SettingsThatNobodyKnowsAreNamedWithTheirValue) {
  const struct {
    const char* name;
    Shape shape;
    std::function<void(GgufHeader&)> change;
    const char* message;
  } kCases[] = {
      {"gemma2",
       {},
       [](GgufHeader& h) { h.SetFloat32("gemma2.rope.freq_base_swa", 5e5f); },
       "m: gemma2.rope.freq_base_swa is 5e+05: not supported"},
      {"gemma3",
       {},
       [](GgufHeader& h) { h.SetFloat32("gemma3.attn_logit_softcapping", 50.0f); },
       "m: gemma3.attn_logit_softcapping is 50: not supported"},
      {"gemma3n",
       {},
       [](GgufHeader& h) { h.SetUint32("gemma3n.altup.num_inputs", 3); },
       "m: gemma3n.altup.num_inputs is 3: not supported"},
      {"gemma3n",
       {},
       [](GgufHeader& h) { h.SetUint32("gemma3n.altup.active_idx", 1); },
       "m: gemma3n.altup.active_idx is 1: not supported"},
      {"gemma3n",
       {},
       [](GgufHeader& h) { h.SetBool("gemma3n.altup.correct_scale", false); },
       "m: gemma3n.altup.correct_scale is false: not supported"},
      {"gemma3n",
       {},
       [](GgufHeader& h) { h.SetFloat32("gemma3n.altup.coef_clip", 120.0f); },
       "m: gemma3n.altup.coef_clip is 120: not supported"},
      {"qwen3",
       {},
       [](GgufHeader& h) { h.SetUint32("qwen3.attention.sliding_window", 4096); },
       "m: qwen3.attention.sliding_window is 4096: not supported"},
      {"qwen2",
       {},
       [](GgufHeader& h) { h.SetBool("qwen2.attention.causal", false); },
       "m: qwen2.attention.causal is false: not supported"},
      {"qwen3",
       {},
       [](GgufHeader& h) { h.SetUint32("qwen3.expert_count", 4); },
       "m: qwen3.expert_count is 4: not supported"},
      {"qwen3",
       {},
       [](GgufHeader& h) { h.SetString("qwen3.rope.scaling.type", "longrope"); },
       "m: qwen3.rope.scaling.type is 'longrope': not supported"},
      {"qwen3moe", Routed(), [](GgufHeader& h) { h.SetUint32("qwen3moe.expert_gating_func", 2); },
       "m: qwen3moe.expert_gating_func is 2: not supported"},
      {"qwen3moe", Routed(), [](GgufHeader& h) { h.SetUint32("qwen3moe.expert_shared_count", 1); },
       "m: qwen3moe.expert_shared_count is 1: not supported"},
      {"llama4", Routed(),
       [](GgufHeader& h) { h.SetUint32("llama4.attention.sliding_window", 4096); },
       "m: llama4.attention.sliding_window is 4096: not supported"},
      {"llama4", Routed(), [](GgufHeader& h) { h.SetBool("llama4.expert_weights_norm", true); },
       "m: llama4.expert_weights_norm is true: not supported"},
      {"deepseek2", Routed(),
       [](GgufHeader& h) { h.SetFloat32("deepseek2.attention.temperature_scale", 0.1f); },
       "m: deepseek2.attention.temperature_scale is 0.1: not supported"},
      {"deepseek2", Routed(),
       [](GgufHeader& h) {
         h.SetString("deepseek2.rope.scaling.type", "linear");
         h.SetFloat32("deepseek2.rope.scaling.factor", 4.0f);
       },
       "m: deepseek2.rope.scaling.type is 'linear': not supported"},
      {"cohere2",
       {},
       [](GgufHeader& h) { h.SetFloat32("cohere2.rope.freq_base_swa", 5e5f); },
       "m: cohere2.rope.freq_base_swa is 5e+05: not supported"},
      {"ernie4_5-moe", Routed(),
       [](GgufHeader& h) { h.SetFloat32("ernie4_5-moe.expert_weights_scale", 2.0f); },
       "m: ernie4_5-moe.expert_weights_scale is 2: not supported"},
      {"glm4",
       {},
       [](GgufHeader& h) { h.SetUint32("glm4.rope.dimension_sections", 8); },
       "m: glm4.rope.dimension_sections is 8: not supported"},
      {"glm4moe", Routed(), [](GgufHeader& h) { h.SetUint32("glm4moe.attention.chunk_size", 3); },
       "m: glm4moe.attention.chunk_size is 3: not supported"},
      {"gemma-embedding",
       {},
       [](GgufHeader& h) { h.SetBool("gemma-embedding.attention.causal", true); },
       "m: gemma-embedding.attention.causal is true: not supported"},
      {"bert",
       {},
       [](GgufHeader& h) { h.SetFloat32("bert.rope.freq_base", 1e4f); },
       "m: bert.rope.freq_base is 10000: not supported"},
      {"jina-bert-v2",
       {},
       [](GgufHeader& h) { h.SetFloat32("jina-bert-v2.attention.max_alibi_bias", 4.0f); },
       "m: jina-bert-v2.attention.max_alibi_bias is 4: not supported"},
      {"modern-bert",
       {},
       [](GgufHeader& h) { h.SetString("modern-bert.hidden_activation", "relu"); },
       "m: modern-bert.hidden_activation is 'relu': not supported"},
      {"mistral3",
       {},
       [](GgufHeader& h) { h.SetFloat32("mistral3.rope.scaling.alpha", 2.0f); },
       "m: mistral3.rope.scaling.alpha is 2: not supported"},
  };
  for (const auto& c : kCases) {
    const Status status = Load(c.name, c.shape, {.header = c.change});
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_EQ(status.message(), c.message);
  }
}

TEST_F(ArchitecturesTest, AWindowOfLlamaCountsAndOneOfQwen2DoesNot) {
  const auto with_window = [](const char* key, std::uint32_t window) {
    return [=](GgufHeader& h) { h.SetUint32(key, window); };
  };
  EXPECT_TRUE(Load("qwen2", {}, {.header = with_window("qwen2.attention.sliding_window", 4)}).ok());
  EXPECT_TRUE(Load("llama", {}, {.header = with_window("llama.attention.sliding_window", 0)}).ok());
  EXPECT_EQ(Load("llama", {}, {.header = with_window("llama.attention.sliding_window", 1U << 31)})
                .message(),
            "m: llama.attention.sliding_window is 2147483648; must be 1 to 1073741824");
}

// A layer that shares keys and values needs no matrices for them, though older files have them. It
// needs a layer to share with.
TEST_F(ArchitecturesTest, Gemma4SharesWithTheLastLayerOfItsKind) {
  Shape shape;
  shape.layers = 4;
  EXPECT_TRUE(Load("gemma4", shape).ok());
  EXPECT_TRUE(Load("gemma4", shape, {.tensors = With("blk.2.attn_k.weight", {128, 64})}).ok());
  EXPECT_TRUE(Load("gemma4", shape, {.tensors = With("v.patch_embd.weight", {128, 64})}).ok());
  shape.window_pattern = 3;  // of the layers w w . w, the first two have their own keys and values
  EXPECT_EQ(Load("gemma4", shape).message(),
            "m: gemma4.attention.shared_kv_layers is 2: layer 2 needs an earlier layer "
            "with the same window that has keys and values");
}

// The last layers share keys and values of the last layers before them: by default those behind the 20th.
TEST_F(ArchitecturesTest, Gemma3nSharesBehindTheTwentiethLayer) {
  Shape shape;
  shape.layers = 22;
  EXPECT_TRUE(Load("gemma3n", shape).ok());
  shape.layers = 4;
  shape.family.shared_layers = 1;
  EXPECT_TRUE(Load("gemma3n", shape).ok());
  EXPECT_TRUE(Load("gemma3n", shape, {.tensors = Without("blk.3.attn_k.weight")}).ok());
  EXPECT_EQ(Load("gemma3n", shape, {.tensors = Without("blk.2.attn_k.weight")}).message(),
            "m: tensor 'blk.2.attn_k.weight' is missing");
  shape.window_pattern = 4;  // of the layers w w w ., the last one has no window
  EXPECT_EQ(Load("gemma3n", shape).message(),
            "m: gemma3n.attention.shared_kv_layers is 1: layer 3 needs an earlier layer "
            "with the same window that has keys and values");
}

TEST_F(ArchitecturesTest, SparsityOfEachLayerIsANumberOrNone) {
  const auto with = [](std::vector<float> values) {
    return [values](GgufHeader& h) { h.SetFloats("gemma3n.activation_sparsity_scale", values); };
  };
  EXPECT_TRUE(Load("gemma3n", {}, {.header = with({1.0f, -HUGE_VALF})}).ok());
  EXPECT_EQ(Load("gemma3n", {}, {.header = with({1.0f})}).message(),
            "m: gemma3n.activation_sparsity_scale has 1 values for 2 layers");
  EXPECT_EQ(Load("gemma3n", {}, {.header = with({1.0f, NAN})}).message(),
            "m: gemma3n.activation_sparsity_scale has the value nan; must be at most 100");
}

TEST_F(ArchitecturesTest, ValuesThatCannotBeAreErrors) {
  const struct {
    const char* name;
    std::function<void(GgufHeader&)> change;
    const char* message;
  } kCases[] = {
      {"gemma3", [](GgufHeader& h) { h.SetFloat32("gemma3.rope.freq_base_swa", -1.0f); },
       "m: gemma3.rope.freq_base_swa is -1; must be above 0"},
      {"gemma3", [](GgufHeader& h) { h.SetFloat32("gemma3.final_logit_softcapping", -30.0f); },
       "m: gemma3.final_logit_softcapping is -30; must be at least 0 and below 1e30"},
      {"gemma3", [](GgufHeader& h) { h.SetInt32("gemma3.attention.sliding_window_pattern", -1); },
       "m: gemma3.attention.sliding_window_pattern is -1; must be at least 0"},
  };
  for (const auto& c : kCases) {
    const Status status = Load(c.name, {}, {.header = c.change});
    EXPECT_EQ(status.message(), c.message);
  }
}

// Files of whole models contain the vision encoder as well.
TEST_F(ArchitecturesTest, WhatMakesImagesStatesIsLeftOut) {
  Changes changes;
  changes.header = [](GgufHeader& h) { h.SetUint32("mllama.vision.block_count", 32); };
  changes.tensors = With("v.blk.0.attn_q.weight", {64, 64});
  EXPECT_TRUE(Load("mllama", {}, changes).ok());
  EXPECT_TRUE(Load("mllama", {}, {.tensors = With("mm.0.weight", {64, 128})}).ok());
  EXPECT_EQ(Load("mllama", {}, {.tensors = Without("blk.1.cross_attn_mlp_gate")}).message(),
            "m: tensor 'blk.1.cross_attn_mlp_gate' is missing");
  EXPECT_EQ(Load("mllama", {},
                 {.header =
                      [](GgufHeader& h) {
                        h.SetUint32("mllama.vision.image_size", 16000);
                        h.SetUint32("mllama.vision.patch_size", 1);
                        h.SetUint32("mllama.vision.max_num_tiles", 4);
                      }})
                .message(),
            "m: mllama.vision.image_size is 16000: 1024000004 tokens");
}

// T5's published files have this tensor; the computation does not use it.
TEST_F(ArchitecturesTest, BiasesOfCrossAttentionAreLeftOut) {
  EXPECT_TRUE(Load("t5", {}, {.tensors = With("dec.blk.0.cross_attn_rel_b.weight", {4, 32})}).ok());
}

TEST_F(ArchitecturesTest, LayersThatAllSeeEverythingNeedNoChunk) {
  const auto no_window = [](GgufHeader& h) { h.SetUint32("llama4.attention.sliding_window", 0); };
  EXPECT_TRUE(Load("llama4", Routed(), {.header = no_window}).ok());
}

TEST_F(ArchitecturesTest, LatentSizesMustAgree) {
  Shape whole = Routed();
  whole.family.whole_kv = true;
  EXPECT_TRUE(Load("deepseek2", whole).ok());
  EXPECT_EQ(Load("deepseek2", whole,
                 {.header =
                      [](GgufHeader& h) {
                        h.SetUint32("deepseek2.attention.key_length_mla", 64);
                        h.SetUint32("deepseek2.attention.value_length_mla", 32);
                      }})
                .message(),
            "m: layer 0 has 4 heads and 4 KV heads; must have 4 and 1");
  Shape grouped = Routed();
  grouped.family.expert_groups = 3;
  EXPECT_EQ(Load("deepseek2", grouped).message(),
            "m: deepseek2.expert_group_count is 3 with 1 used, for 2 of 4 experts");
}

// Files of this family with YaRN must state the scores' factor.
TEST_F(ArchitecturesTest, LatentAttentionWithYarnNeedsItsMultiplier) {
  Shape shape = Routed();
  shape.rope_scaling = make_model::RopeScaling::kYarn;
  EXPECT_TRUE(Load("deepseek2", shape).ok());
  shape.rope_scaling = make_model::RopeScaling::kNone;
  const auto yarn = [](GgufHeader& h) {
    h.SetString("deepseek2.rope.scaling.type", "yarn");
    h.SetFloat32("deepseek2.rope.scaling.factor", 4.0f);
  };
  EXPECT_EQ(Load("deepseek2", shape, {.header = yarn}).code(), StatusCode::kNotFound);
}

// State sizes that contradict each other or are not supported.
TEST_F(ArchitecturesTest, StatesAreChecked) {
  const auto message = [&](const char* name, const Shape& shape, int heads, int groups) {
    Shape changed = shape;
    changed.family.state_heads = heads;
    changed.family.state_groups = groups;
    return Load(name, changed).message();
  };
  EXPECT_EQ(message("qwen3next", Routed(), 6, 4),
            "m: qwen3next.ssm.inner_size is 192; must be a multiple of the 6 heads, and those of "
            "the 4 groups");
  EXPECT_EQ(message("qwen3next", Routed(), 6, 12),
            "m: qwen3next.ssm.group_count is 12; must be 1 to 6");
  EXPECT_EQ(
      Load("qwen3", {}, {.header = [](GgufHeader& h) { h.SetUint32("qwen3.ssm.conv_kernel", 4); }})
          .message(),
      "m: qwen3.ssm.conv_kernel is 4: not supported");
  EXPECT_EQ(
      Load("granitehybrid", {},
           {.header = [](GgufHeader& h) { h.SetFloat32("granitehybrid.ssm.dt_b_c_rms", 1.0f); }})
          .message(),
      "m: granitehybrid.ssm.dt_b_c_rms is 1: not supported");
}

// Heads that predict further tokens are no layers. Nothing runs them yet.
TEST_F(ArchitecturesTest, HeadsForFurtherTokensAreLeftOut) {
  Shape shape = Routed();
  shape.family.nextn_layers = 1;
  EXPECT_TRUE(Load("qwen3next", shape).ok());
  shape.family.nextn_layers = 2;
  EXPECT_TRUE(Load("qwen3next", shape).ok());
  EXPECT_TRUE(Load("qwen3next", shape, {.tensors = Without("blk.3.nextn.enorm.weight")}).ok());
  EXPECT_EQ(Load("qwen3", {},
                 {.header = [](GgufHeader& h) { h.SetUint32("qwen3.nextn_predict_layers", 2); }})
                .message(),
            "m: qwen3.nextn_predict_layers is 2; must be 1 to 1");
}

TEST_F(ArchitecturesTest, MoreExpertsOfATokenThanThereAreIsAnError) {
  Shape shape = Routed();
  shape.experts_used = 5;
  EXPECT_EQ(Load("qwen3moe", shape).message(),
            "m: qwen3moe.expert_used_count is 5; must be 1 to 4");
}

}  // namespace
}  // namespace kvcache::architectures_test
