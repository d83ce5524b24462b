// The table of families and the small ones' additions to the common parts.

#include "make_model/families.h"

#include <algorithm>
#include <vector>

#include "base/strings.h"
#include "make_model/architecture.h"
#include "make_model/decoder.h"
#include "make_model/families/blocks.h"

namespace kvcache::make_model {
namespace {

// llama has neither biases nor head norms. With experts it has Mixtral's form, with a window
// Mistral 0.1's.
void AddLlama(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("llama", shape, header);
  AddWindows("llama", shape, header);
}
std::vector<TensorSpec> PlainTensors(const Shape& shape) {
  return DecoderTensors(shape, AttentionExtras::kNone);
}

// mistral3 with YaRN has its own keys for the ramp, and the model cancels the magnitude. Queries
// grow with their position.
void AddMistral3(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("mistral3", shape, header);
  if (shape.rope_scaling != RopeScaling::kYarn) return;
  header.SetFloat32("mistral3.rope.scaling.yarn_beta_fast", 4.0f);
  header.SetFloat32("mistral3.rope.scaling.yarn_beta_slow", 1.0f);
  header.SetFloat32("mistral3.rope.scaling.yarn_log_multiplier", 1.0f);
  header.SetFloat32("mistral3.attention.temperature_scale", 0.1f);
}

void AddQwen2(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("qwen2", shape, header);
}
// A quarter of the pairs belongs to time, and the others to rows and columns, as in published files.
void AddQwen2Vl(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("qwen2vl", shape, header);
  const int pairs = shape.head_dim / 2;
  const int time = std::max(1, pairs / 4);
  const int rows = (pairs - time) / 2;
  header.SetInts("qwen2vl.rope.dimension_sections",
                 std::vector<std::int32_t>{time, rows, pairs - time - rows, 0});
}
std::vector<TensorSpec> Qwen2Tensors(const Shape& shape) {
  return DecoderTensors(shape, AttentionExtras::kBiases);
}

void AddQwen3(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("qwen3", shape, header);
  AddPooling("qwen3", shape, header);
}
void AddQwen3Moe(const Shape& shape, GgufHeader& header) {
  AddDecoderMetadata("qwen3moe", shape, header);
}
std::vector<TensorSpec> Qwen3Tensors(const Shape& shape) {
  std::vector<TensorSpec> tensors = DecoderTensors(shape, AttentionExtras::kHeadNorms);
  if (shape.family.labels > 0) {
    tensors.push_back({.name = "cls.output.weight",
                       .dims = {shape.hidden_size, shape.family.labels},
                       .scale = PerRoot(2.0f, shape.hidden_size)});
  }
  return tensors;
}

constexpr Architecture kArchitectures[] = {
    {"apertus", ExpertUse::kNone, AddBlocks<kApertus>, TensorsOfBlocks<kApertus>},
    {"bailingmoe2", ExpertUse::kNeeded, AddBlocks<kBailingMoe2>, TensorsOfBlocks<kBailingMoe2>},
    {"bert", ExpertUse::kNone, AddBert, BertTensors},
    {"cohere2", ExpertUse::kNone, AddBlocks<kCohere2>, TensorsOfBlocks<kCohere2>},
    {"deepseek2", ExpertUse::kNeeded, AddDeepSeek2, DeepSeek2Tensors},
    {"dots1", ExpertUse::kNeeded, AddBlocks<kDots1>, TensorsOfBlocks<kDots1>},
    {"ernie4_5", ExpertUse::kNone, AddBlocks<kErnie>, TensorsOfBlocks<kErnie>},
    {"ernie4_5-moe", ExpertUse::kNeeded, AddBlocks<kErnieMoe>, TensorsOfBlocks<kErnieMoe>},
    {"exaone4", ExpertUse::kNone, AddBlocks<kExaone4>, TensorsOfBlocks<kExaone4>},
    {"falcon-h1", ExpertUse::kNone, AddFalconH1, FalconH1Tensors},
    {"gemma-embedding", ExpertUse::kNone, AddGemmaEmbedding, GemmaEmbeddingTensors},
    {"gemma2", ExpertUse::kNone, AddGemma2, Gemma2Tensors},
    {"gemma3", ExpertUse::kNone, AddGemma3, Gemma3Tensors},
    {"gemma3n", ExpertUse::kNone, AddGemma3n, Gemma3nTensors},
    {"gemma4", ExpertUse::kAllowed, AddGemma4, Gemma4Tensors},
    {"gemma4-assistant", ExpertUse::kNone, AddGemma4Assistant, Gemma4AssistantTensors},
    {"glm4", ExpertUse::kNone, AddBlocks<kGlm4>, TensorsOfBlocks<kGlm4>},
    {"glm4moe", ExpertUse::kNeeded, AddBlocks<kGlm4Moe>, TensorsOfBlocks<kGlm4Moe>},
    {"gpt-oss", ExpertUse::kNeeded, AddGptOss, GptOssTensors},
    {"granite", ExpertUse::kNone, AddBlocks<kGranite>, TensorsOfBlocks<kGranite>},
    {"granitehybrid", ExpertUse::kAllowed, AddGraniteHybrid, GraniteHybridTensors},
    {"granitemoe", ExpertUse::kNeeded, AddBlocks<kGraniteMoe>, TensorsOfBlocks<kGraniteMoe>},
    {"hunyuan-dense", ExpertUse::kNone, AddBlocks<kHunyuan>, TensorsOfBlocks<kHunyuan>},
    {"hunyuan-moe", ExpertUse::kNeeded, AddBlocks<kHunyuanMoe>, TensorsOfBlocks<kHunyuanMoe>},
    {"jina-bert-v2", ExpertUse::kNone, AddJinaBertV2, JinaBertV2Tensors},
    {"jina-bert-v3", ExpertUse::kNone, AddJinaBertV3, JinaBertV3Tensors},
    {"lfm2", ExpertUse::kNone, AddLfm2, Lfm2Tensors},
    {"lfm2moe", ExpertUse::kNeeded, AddLfm2Moe, Lfm2Tensors},
    {"llama", ExpertUse::kAllowed, AddLlama, PlainTensors},
    {"llama4", ExpertUse::kNeeded, AddLlama4, Llama4Tensors},
    {"mamba2", ExpertUse::kNone, AddMamba2, Mamba2Tensors},
    {"minimax-m2", ExpertUse::kNeeded, AddBlocks<kMiniMaxM2>, TensorsOfBlocks<kMiniMaxM2>},
    {"mistral3", ExpertUse::kNone, AddMistral3, PlainTensors},
    {"mllama", ExpertUse::kNone, AddMllama, MllamaTensors},
    {"modern-bert", ExpertUse::kNone, AddModernBert, ModernBertTensors},
    {"nemotron_h", ExpertUse::kNone, AddNemotronH, NemotronHTensors},
    {"nemotron_h_moe", ExpertUse::kNeeded, AddNemotronHMoe, NemotronHTensors},
    {"nomic-bert", ExpertUse::kNone, AddNomicBert, NomicBertTensors},
    {"nomic-bert-moe", ExpertUse::kNeeded, AddNomicBertMoe, JinaBertV3Tensors},
    {"olmo2", ExpertUse::kNone, AddBlocks<kOlmo2>, TensorsOfBlocks<kOlmo2>},
    {"phi3", ExpertUse::kNone, AddBlocks<kPhi3>, TensorsOfBlocks<kPhi3>},
    {"qwen2", ExpertUse::kNone, AddQwen2, Qwen2Tensors},
    {"qwen2vl", ExpertUse::kNone, AddQwen2Vl, Qwen2Tensors},
    {"qwen3", ExpertUse::kNone, AddQwen3, Qwen3Tensors},
    {"qwen35", ExpertUse::kNone, AddQwen35, Qwen35Tensors},
    {"qwen35moe", ExpertUse::kNeeded, AddQwen35Moe, Qwen35Tensors},
    {"qwen3moe", ExpertUse::kNeeded, AddQwen3Moe, Qwen3Tensors},
    {"qwen3next", ExpertUse::kNeeded, AddQwen3Next, Qwen3NextTensors},
    {"seed_oss", ExpertUse::kNone, AddBlocks<kSeedOss>, TensorsOfBlocks<kSeedOss>},
    {"smollm3", ExpertUse::kNone, AddBlocks<kSmolLm3>, TensorsOfBlocks<kSmolLm3>},
    {"t5", ExpertUse::kNone, AddT5, T5Tensors},
};

}  // namespace

Result<const Architecture*> FindArchitecture(std::string_view name) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return &architecture;
    known += StrCat(known.empty() ? "" : ", ", architecture.name);
  }
  return Status(StatusCode::kNotFound,
                StrCat("architecture ", Quoted(name), " is not known; known are: ", known));
}

Status CheckExperts(const Architecture& architecture, const Shape& shape) {
  if (architecture.experts == ExpertUse::kNone && shape.experts > 0) {
    return {StatusCode::kInvalidArgument,
            StrCat("--experts is given; ", architecture.name, " has no experts")};
  }
  if (architecture.experts == ExpertUse::kNeeded && shape.experts == 0) {
    return {StatusCode::kInvalidArgument,
            StrCat("--experts is missing; ", architecture.name, " needs it")};
  }
  return Status::Ok();
}

}  // namespace kvcache::make_model
