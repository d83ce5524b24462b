#include "inspect/inspect.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "dialect/model_dialect.h"
#include "inspect/describe_model.h"
#include "model/load/key_reader.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {
namespace {

constexpr std::uint64_t kMaxElements = 8;  // of an array

MetadataElement ElementAt(const GgufEntry& entry, std::uint64_t i) {
  switch (entry.element) {
    case GgufType::kFloat32:
    case GgufType::kFloat64: return GgufFloatAt(entry, i);
    case GgufType::kBool: return GgufIntAt(entry, i) != 0;
    case GgufType::kUint64: return static_cast<std::uint64_t>(GgufIntAt(entry, i));
    default: return GgufIntAt(entry, i);
  }
}

std::vector<MetadataElement> FirstElements(const GgufEntry& entry) {
  std::vector<MetadataElement> elements;
  const std::uint64_t count = std::min(entry.count, kMaxElements);
  if (entry.element == GgufType::kString) {
    const GgufStrings strings(entry);
    for (auto it = strings.begin(); elements.size() < count; ++it) elements.emplace_back(*it);
  } else {
    for (std::uint64_t i = 0; i < count; ++i) elements.push_back(ElementAt(entry, i));
  }
  return elements;
}

std::vector<MetadataValue> DescribeMetadata(const GgufFile& file) {
  std::vector<MetadataValue> metadata;
  for (const GgufEntry& entry : file.entries()) {
    metadata.push_back({.key = entry.key,
                        .is_array = entry.type == GgufType::kArray,
                        .element = entry.element,
                        .count = entry.count,
                        .first = FirstElements(entry)});
  }
  std::ranges::sort(metadata, {}, &MetadataValue::key);
  return metadata;
}

std::vector<TypeTotal> DescribeTypes(const GgufFile& file) {
  std::map<const GgmlTypeInfo*, TypeTotal> totals;
  for (const GgufTensor& tensor : file.tensors()) {
    TypeTotal& total = totals[tensor.type];
    total.type = tensor.type;
    total.tensors += 1;
    total.parameters += tensor.elements();
    total.bytes += static_cast<std::int64_t>(tensor.bytes.size());
  }
  std::vector<TypeTotal> types;
  types.reserve(totals.size());
  for (const auto& [type, total] : totals) types.push_back(total);
  std::ranges::stable_sort(types, std::greater{}, &TypeTotal::bytes);
  return types;
}

// Returns a string of the metadata; nothing if it is missing or not a string.
std::optional<std::string_view> StringOrNothing(const GgufFile& file, std::string_view key) {
  const auto value = file.GetString(key);
  return value.ok() ? std::optional(*value) : std::nullopt;
}

// Sets the settings beside the layers' sizes, if the name of the architecture is known. Such a file
// may still fail to load.
void AddSettings(const GgufFile& file, ModelDescription& description) {
  if (!description.architecture) return;
  const std::vector<std::string> known = SupportedArchitectures();
  if (std::ranges::find(known, ArchitectureOf(*description.architecture)) == known.end()) return;
  KeyReader keys(file, *description.architecture);
  const auto params = ReadLayerParams(keys, LayerKinds::kHybrid);
  if (!params.ok()) return;
  description.rope = ReadRopeSummary(keys, *params);
  description.experts = ReadExpertParams(keys, *params, {.sigmoid = true, .groups = true});
}

using MadeTokenizer = Result<std::unique_ptr<Tokenizer>>;

Result<TokenizerDescription> DescribeTokenizer(const MadeTokenizer& made) {
  if (!made.ok()) return made.status();
  const Tokenizer& tokenizer = **made;
  return TokenizerDescription{.kind = std::string(tokenizer.KindName()),
                              .description = tokenizer.Describe(),
                              .tokens = tokenizer.vocabulary_size(),
                              .bos = tokenizer.bos(),
                              .eos = tokenizer.eos(),
                              .eot = tokenizer.eot(),
                              .unknown = tokenizer.unknown(),
                              .add_bos = tokenizer.vocabulary().add_bos(),
                              .add_eos = tokenizer.vocabulary().add_eos(),
                              .notes = tokenizer.notes()};
}

Result<ChatDescription> DescribeChat(const GgufFile& file, const Tokenizer& tokenizer) {
  KVCACHE_ASSIGN_OR_RETURN(
      const ModelDialect dialect,
      ModelDialect::Make(
          [&](ToolUse tools) { return ChatFormat::ForModel(file, tokenizer, tools); }, tokenizer));
  return ChatDescription{.format = dialect.format(/*tools=*/nullptr).name(),
                         .dialect = dialect.dialect()->name,
                         .calls = dialect.dialect()->has_calls(),
                         .thinks = dialect.reasons()};
}

// Returns the model's info, or an error if its vocabulary does not fit.
Result<ModelInfo> DescribeLoadable(const GgufFile& file, const MadeTokenizer& tokenizer) {
  KVCACHE_ASSIGN_OR_RETURN(ModelInfo info, DescribeModel(file));
  if (tokenizer.ok())
    KVCACHE_RETURN_IF_ERROR(CheckTokenCount(info, (*tokenizer)->vocabulary_size()));
  return info;
}

Result<CacheDescription> DescribeCache(const Result<ModelInfo>& model,
                                       const InspectOptions& options) {
  if (!model.ok()) return model.status();
  KVCACHE_RETURN_IF_ERROR(CheckCacheTypes(model->memory, options.k_type, options.v_type));
  return CacheDescription{
      .k_type = options.k_type, .v_type = options.v_type, .layers = model->memory};
}

}  // namespace

ModelDescription DescribeModelFile(const GgufFile& file, const InspectOptions& options) {
  const MadeTokenizer tokenizer = MakeTokenizer(file);
  const Result<ModelInfo> model = DescribeLoadable(file, tokenizer);
  ModelDescription description = {.path = file.path(),
                                  .version = file.version(),
                                  .files = file.parts().size(),
                                  .size_bytes = file.size_bytes(),
                                  .architecture = StringOrNothing(file, "general.architecture"),
                                  .name = StringOrNothing(file, "general.name"),
                                  .supported = model.ok(),
                                  .rope = {},
                                  .experts = {},
                                  .tokenizer = {},
                                  .chat = {},
                                  .metadata = DescribeMetadata(file),
                                  .types = DescribeTypes(file),
                                  .tensors = file.tensors(),
                                  .cache = DescribeCache(model, options)};
  for (const GgufTensor& tensor : file.tensors()) description.parameters += tensor.elements();
  if (file.Find("tokenizer.ggml.model") != nullptr) {
    description.tokenizer = DescribeTokenizer(tokenizer);
    if (tokenizer.ok()) description.chat = DescribeChat(file, **tokenizer);
  }
  AddSettings(file, description);
  return description;
}

}  // namespace kvcache
