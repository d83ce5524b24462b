#include "convert/import_model.h"

#include <array>
#include <filesystem>
#include <map>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "convert/embedding/hf_modules.h"
#include "convert/hf_import.h"

namespace kvcache {
namespace {

struct Family {
  std::string_view hf_class;
  std::string_view architecture;
  Status (*plan)(HfImport& import);
};

constexpr std::array kFamilies = {
    Family{"LlamaForCausalLM", "llama", PlanHfLlama},
    Family{"MistralForCausalLM", "llama", PlanHfLlama},
    Family{"MixtralForCausalLM", "llama", PlanHfLlama},
    Family{"Qwen2ForCausalLM", "qwen2", PlanHfLlama},
    Family{"Qwen3ForCausalLM", "qwen3", PlanHfLlama},
    Family{"Qwen3MoeForCausalLM", "qwen3moe", PlanHfLlama},
    Family{"Qwen3NextForCausalLM", "qwen3next", PlanHfQwen3Next},
    Family{"Qwen3Model", "qwen3", PlanHfLlama},
    Family{"Gemma3TextModel", "gemma-embedding", PlanHfGemma},
    Family{"BertModel", "bert", PlanHfBert},
    Family{"BertForSequenceClassification", "bert", PlanHfBert},
    Family{"RobertaModel", "bert", PlanHfBert},
    Family{"RobertaForSequenceClassification", "bert", PlanHfBert},
    Family{"XLMRobertaModel", "bert", PlanHfBert},
    Family{"XLMRobertaForSequenceClassification", "bert", PlanHfBert},
    Family{"NomicBertModel", "nomic-bert", PlanHfNomicBert},
    Family{"ModernBertModel", "modern-bert", PlanHfModernBert},
    Family{"ModernBertForSequenceClassification", "modern-bert", PlanHfModernBert},
    Family{"Gemma2ForCausalLM", "gemma2", PlanHfGemma},
    Family{"Gemma3ForCausalLM", "gemma3", PlanHfGemma},
    Family{"Gemma3ForConditionalGeneration", "gemma3", PlanHfGemma},
    Family{"Gemma4ForCausalLM", "gemma4", PlanHfGemma4},
    Family{"Gemma4ForConditionalGeneration", "gemma4", PlanHfGemma4},
    Family{"Gemma4AssistantForCausalLM", "gemma4-assistant", PlanHfGemma4Assistant},
    Family{"Gemma4UnifiedAssistantForCausalLM", "gemma4-assistant", PlanHfGemma4Assistant},
};

Result<const Family*> FindFamily(const HfConfig& config) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<std::string> classes, config.Strings("architectures"));
  std::string known;
  for (const Family& family : kFamilies) {
    if (!classes.empty() && family.hf_class == classes[0]) return &family;
    known += StrCat(" ", family.hf_class);
  }
  return config.Refuse("architectures", "known are:" + known);
}

// Returns a name for people: the directory's, or in a Hugging Face cache the model's.
std::string NameOf(const std::string& directory) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::canonical(directory, error);
  if (path.parent_path().filename() != "snapshots") return path.filename().string();
  const std::string name = path.parent_path().parent_path().filename().string();
  const std::size_t dashes = name.rfind("--");
  return dashes == std::string::npos ? name : name.substr(dashes + 2);
}

// Returns general.file_type: that of most values.
std::uint32_t FileTypeOf(const std::vector<TensorPlan>& plans) {
  std::map<GgmlType, std::int64_t> values;
  for (const TensorPlan& plan : plans) {
    if (plan.dims.size() > 1) values[plan.type] += plan.elements();
  }
  GgmlType max = GgmlType::kF32;
  for (const auto& [type, count] : values) {
    if (count > values[max]) max = type;
  }
  if (max == GgmlType::kBF16) return 32;
  return max == GgmlType::kF16 ? 1 : 0;
}

bool IsEncoderArchitecture(std::string_view architecture) {
  return architecture.find("bert") != architecture.npos || architecture == "gemma-embedding";
}

Status CheckPlain(const HfConfig& config) {
  if (!config.Has("quantization_config")) return Status::Ok();
  return config.Refuse("quantization_config",
                       "the weights must not be quantized; import the original model and use "
                       "--quantize");
}

}  // namespace

Result<ImportResult> ImportModel(const ImportRequest& request) {
  KVCACHE_ASSIGN_OR_RETURN(const HfDirectory directory, HfDirectory::Open(request.directory));
  KVCACHE_ASSIGN_OR_RETURN(const HfConfig outer, HfConfig::Read(directory, "config.json"));
  KVCACHE_ASSIGN_OR_RETURN(const Family* family, FindFamily(outer));
  KVCACHE_RETURN_IF_ERROR(CheckPlain(outer));
  KVCACHE_ASSIGN_OR_RETURN(const auto text_config, outer.Object("text_config"));
  const HfConfig& config = text_config ? *text_config : outer;
  KVCACHE_RETURN_IF_ERROR(CheckPlain(config));
  KVCACHE_ASSIGN_OR_RETURN(HfWeights weights, HfWeights::Open(directory));
  HfPlanner planner(weights);
  GgufHeader header;
  header.SetString("general.architecture", family->architecture);
  header.SetString("general.name", NameOf(request.directory));
  HfImport import{.architecture = std::string(family->architecture),
                  .config = config,
                  .outer = outer,
                  .planner = planner,
                  .header = header,
                  .hf_class = std::string(family->hf_class)};
  import.embeds = IsEncoderArchitecture(family->architecture);
  KVCACHE_RETURN_IF_ERROR(family->plan(import));
  const std::int64_t rows = planner.RowsOf(import.embedding);
  KVCACHE_ASSIGN_OR_RETURN(HfModules modules,
                           AddHfModules(directory, import, planner.ColumnsOf(import.embedding)));
  weights.LeaveOutHeads();
  KVCACHE_ASSIGN_OR_RETURN(std::vector<TensorPlan> plans, planner.Finish());
  for (TensorPlan& plan : modules.plans) plans.push_back(std::move(plan));
  ImportResult result;
  if (weights.left_out() > 0) {
    result.notes.push_back(StrCat(weights.left_out(),
                                  " tensors were left out: encoders of images and sound, and heads "
                                  "for several tokens"));
  }
  KVCACHE_RETURN_IF_ERROR(AddHfTokenizer(directory, outer, {rows, import.fallback, import.embeds},
                                         &header, &result.notes));
  if (request.scheme) ApplyScheme(*request.scheme, &plans);
  header.SetUint32("general.file_type",
                   request.scheme ? request.scheme->file_type : FileTypeOf(plans));
  KVCACHE_RETURN_IF_ERROR(WriteTensors(std::move(header), plans, request.path, request.threads));
  return result;
}

}  // namespace kvcache
