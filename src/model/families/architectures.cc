// The table of known architectures, by their name in general.architecture. A new architecture adds
// one row here, one declaration in architectures.h and one file.
#include "model/families/architectures.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "gguf/gguf.h"
#include "model/model.h"

namespace kvcache {
namespace {

struct Architecture {
  std::string_view name;
  MakeDecoder make;
  bool is_encoder = false;
};

constexpr Architecture kArchitectures[] = {
    {"apertus", MakeApertus},
    {"bailingmoe2", MakeDots1},
    {"bert", MakeBert, true},
    {"cohere2", MakeCohere2},
    {"deepseek2", MakeDeepSeek2},
    {"dots1", MakeDots1},
    {"ernie4_5", MakeErnie},
    {"ernie4_5-moe", MakeErnie},
    {"exaone4", MakeExaone4},
    {"falcon-h1", MakeFalconH1},
    {"gemma-embedding", MakeGemmaEmbedding, true},
    {"gemma2", MakeGemma},
    {"gemma3", MakeGemma},
    {"gemma3n", MakeGemma3n},
    {"gemma4", MakeGemma4},
    {"glm4", MakeGlm4},
    {"glm4moe", MakeGlm4Moe},
    {"gpt-oss", MakeGptOss},
    {"granite", MakeGranite},
    {"granitehybrid", MakeGraniteHybrid},
    {"granitemoe", MakeGranite},
    {"hunyuan-dense", MakeHunyuan},
    {"hunyuan-moe", MakeHunyuan},
    {"jina-bert-v2", MakeBert, true},
    {"jina-bert-v3", MakeBert, true},
    {"lfm2", MakeLfm2},
    {"lfm2moe", MakeLfm2},
    {"llama", MakeLlama},
    {"llama4", MakeLlama4},
    {"mamba2", MakeNemotronH},
    {"minimax-m2", MakeMiniMaxM2},
    {"mistral3", MakeMistral3},
    {"mllama", MakeMllama},
    {"modern-bert", MakeModernBert, true},
    {"nemotron_h", MakeNemotronH},
    {"nemotron_h_moe", MakeNemotronH},
    {"nomic-bert", MakeBert, true},
    {"nomic-bert-moe", MakeBert, true},
    {"olmo2", MakeOlmo2},
    {"phi3", MakePhi3},
    {"qwen2", MakeQwen2},
    {"qwen2vl", MakeQwen2},
    {"qwen3", MakeQwen3},
    {"qwen35", MakeQwen3Next},
    {"qwen35moe", MakeQwen3Next},
    {"qwen3moe", MakeQwen3},
    {"qwen3next", MakeQwen3Next},
    {"seed_oss", MakeSeedOss},
    {"smollm3", MakeSmolLm3},
    {"t5", MakeT5},
};

Result<std::unique_ptr<Model>> Load(const GgufFile& file, const Architecture& architecture,
                                    Backend& backend) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string_view written, file.GetString("general.architecture"));
  ModelSource source{architecture.name, backend, KeyReader(file, written),
                     WeightReader(file, backend)};
  KVCACHE_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder, architecture.make(source));
  KVCACHE_RETURN_IF_ERROR(source.keys.CheckAllUsed());
  KVCACHE_RETURN_IF_ERROR(decoder->Load(source.weights, file));
  return std::unique_ptr<Model>(std::move(decoder));
}

}  // namespace

Result<std::unique_ptr<Model>> LoadModel(const GgufFile& file, Backend& backend) {
  if (HasOnlyDraftHead(file)) {
    return InvalidArgument(
        StrCat(file.path(), ": the file has a draft head and no model; '--draft' takes it"));
  }
  auto name = file.GetString("general.architecture");
  if (!name.ok()) return std::move(name).TakeStatus().WithContext(file.path());
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name != ArchitectureOf(*name)) continue;
    auto model = Load(file, architecture, backend);
    if (!model.ok()) return std::move(model).TakeStatus().WithContext(file.path());
    return model;
  }
  std::string known;
  for (const std::string& each : SupportedArchitectures()) known += " " + each;
  return Unsupported(
      StrCat(file.path(), ": architecture ", Quoted(*name), " is not known; known are:", known));
}

bool IsTextEncoder(const GgufFile& file) {
  const auto name = file.GetString("general.architecture");
  if (!name.ok()) return false;
  const auto* const found = std::ranges::find(kArchitectures, *name, &Architecture::name);
  return found != std::end(kArchitectures) && found->is_encoder;
}

Status CheckTokenCount(const ModelInfo& info, std::int32_t tokens) {
  if (tokens == info.vocabulary) return Status::Ok();
  return Corrupt(StrCat("the vocabulary has ", tokens, " tokens, but the output has ",
                        info.vocabulary, " rows; there must be one row for each token"));
}

std::vector<std::string> SupportedArchitectures() {
  std::vector<std::string> names;
  for (const Architecture& architecture : kArchitectures) names.emplace_back(architecture.name);
  return names;
}

}  // namespace kvcache
