// The table of known architectures, by their name in general.architecture. A new architecture adds
// one row here and one file.
#include "model/families/architectures.h"

#include "base/errors.h"
#include "base/strings.h"
#include "gguf/gguf.h"
#include "model/model.h"

namespace kvcache {
namespace {

struct Architecture {
  std::string_view name;
  ArchitectureLoader load;
};

constexpr Architecture kArchitectures[] = {
    {"deepseek2", LoadDeepSeek2},
    {"gemma2", LoadGemma},
    {"gemma3", LoadGemma},
    {"gemma4", LoadGemma4},
    {"gpt-oss", LoadGptOss},
    {"granitehybrid", LoadGraniteHybrid},
    {"lfm2", LoadLfm2},
    {"lfm2moe", LoadLfm2},
    {"llama", LoadLlama},
    {"llama4", LoadLlama4},
    {"mistral3", LoadMistral3},
    {"mllama", LoadMllama},
    {"qwen2", LoadQwen2},
    {"qwen3", LoadQwen3},
    {"qwen3moe", LoadQwen3},
    {"qwen3next", LoadQwen3Next},
    {"t5", LoadT5},
};

}  // namespace

Status Model::Encode(std::span<const std::int32_t> /*tokens*/, SequenceId /*sequence*/,
                     Cache& /*cache*/) {
  return Unsupported(StrCat("architecture ", info().architecture, " has no encoder"));
}

Status Model::LoadHead(const GgufFile& /*file*/) {
  return {StatusCode::kUnsupported,
          StrCat("models of architecture ", info().architecture, " have no draft heads here")};
}
Status Model::FinalStates(std::span<const std::int32_t> /*rows*/, float* /*states*/) {
  return {StatusCode::kUnsupported, "the model has no draft head"};
}
Status Model::BeginDrafts(Cache& /*cache*/, std::span<const SequenceLength> /*rows*/) {
  return {StatusCode::kUnsupported, "the model has no draft head that reads its cache"};
}
Status Model::Draft(std::span<const std::int32_t> /*tokens*/,
                    std::span<const Position> /*positions*/, const float* /*states*/,
                    Cache& /*cache*/, float* /*logits*/, float* /*next_states*/) {
  return {StatusCode::kUnsupported, "the model has no draft head"};
}

Status Model::EncodeStates(const TensorView& /*states*/, SequenceId /*sequence*/,
                           Cache& /*cache*/) {
  return Unsupported(StrCat("architecture ", info().architecture, " takes no images"));
}

Result<std::unique_ptr<Model>> LoadModel(const GgufFile& file, Backend& backend) {
  if (HasOnlyDraftHead(file)) {
    return Status(
        StatusCode::kInvalidArgument,
        StrCat(file.path(), ": the file has a draft head and no model; '--draft' takes it"));
  }
  auto name = file.GetString("general.architecture");
  if (!name.ok()) return std::move(name).TakeStatus().WithContext(file.path());
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name != *name) continue;
    auto model = architecture.load(file, architecture.name, backend);
    if (!model.ok()) return std::move(model).TakeStatus().WithContext(file.path());
    return model;
  }
  std::string known;
  for (const std::string& each : SupportedArchitectures()) known += " " + each;
  return Unsupported(
      StrCat(file.path(), ": architecture ", Quoted(*name), " is not known; known are:", known));
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
