#include "inspect/inspect.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

#include "base/strings.h"
#include "inspect/describe_model.h"
#include "model/load/hyperparameters.h"
#include "model/load/key_reader.h"
#include "model/load/rope_scaling.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr std::uint64_t kShownElements = 8;  // of an array

json Number(const GgufEntry& entry, std::uint64_t i) {
  switch (entry.element) {
    case GgufType::kFloat32: return static_cast<float>(GgufFloatAt(entry, i));
    case GgufType::kFloat64: return GgufFloatAt(entry, i);
    case GgufType::kBool: return GgufIntAt(entry, i) != 0;
    case GgufType::kUint64: return static_cast<std::uint64_t>(GgufIntAt(entry, i));
    default: return GgufIntAt(entry, i);
  }
}

std::vector<json> FirstElements(const GgufEntry& entry) {
  std::vector<json> elements;
  const std::uint64_t count = std::min(entry.count, kShownElements);
  if (entry.element == GgufType::kString) {
    const GgufStrings strings(entry);
    for (auto it = strings.begin(); elements.size() < count; ++it) elements.emplace_back(*it);
  } else {
    for (std::uint64_t i = 0; i < count; ++i) elements.push_back(Number(entry, i));
  }
  return elements;
}

json Value(const GgufEntry& entry) {
  std::vector<json> elements = FirstElements(entry);
  if (entry.type != GgufType::kArray) return elements[0];
  return {{"array", GgufTypeName(entry.element)},
          {"count", entry.count},
          {"first", std::move(elements)}};
}

json Metadata(const GgufFile& file) {
  json metadata = json::object();
  for (const GgufEntry& entry : file.entries()) metadata[std::string(entry.key)] = Value(entry);
  return metadata;
}

json Tensors(const GgufFile& file) {
  json tensors = json::array();
  for (const GgufTensor& tensor : file.tensors()) {
    const std::vector<std::int64_t> dims(tensor.dims.begin(), tensor.dims.begin() + tensor.rank);
    tensors.push_back({{"name", tensor.name},
                       {"type", tensor.type->name},
                       {"dims", dims},
                       {"bytes", tensor.bytes.size()},
                       {"offset", tensor.offset}});
  }
  return tensors;
}

struct TypeTotal {
  std::int64_t tensors = 0;
  std::int64_t parameters = 0;
  std::int64_t bytes = 0;
};

json Types(const GgufFile& file) {
  std::map<const GgmlTypeInfo*, TypeTotal> totals;
  for (const GgufTensor& tensor : file.tensors()) {
    TypeTotal& total = totals[tensor.type];
    total.tensors += 1;
    total.parameters += tensor.elements();
    total.bytes += static_cast<std::int64_t>(tensor.bytes.size());
  }
  std::vector<std::pair<const GgmlTypeInfo*, TypeTotal>> sorted(totals.begin(), totals.end());
  std::ranges::stable_sort(sorted, std::greater{},
                           [](const auto& row) { return row.second.bytes; });
  json types = json::array();
  for (const auto& [type, total] : sorted) {
    types.push_back({{"type", type->name},
                     {"served", type->dtype.has_value()},
                     {"tensors", total.tensors},
                     {"parameters", total.parameters},
                     {"bytes", total.bytes}});
  }
  return types;
}

// A string of the metadata; null if it is not there, or is none.
json StringOrNull(const GgufFile& file, std::string_view key) {
  const auto value = file.GetString(key);
  return value.ok() ? json(*value) : json();
}

// Is its name known? Its file may still be one that cannot be loaded.
bool IsKnown(const json& architecture) {
  const std::vector<std::string> known = SupportedArchitectures();
  return architecture.is_string() &&
         std::ranges::find(known, architecture.get<std::string>()) != known.end();
}

json LayerJson(const LayerMemory& layer, const InspectOptions& options) {
  json described = {
      {"layer", layer.layer},
      {"kind", NameOf(layer.kind)},
      {"bytes_per_token", BytesPerToken(layer, options.k_type, options.v_type)},
      {"bytes_per_sequence", BytesPerSequence(layer, options.k_type, options.v_type)}};
  if (layer.kind == LayerMemory::Kind::kRecurrent) {
    described["state_values"] = layer.state_values;
    return described;
  }
  described["kv_heads"] = layer.kv.kv_heads;
  described["k_dim"] = layer.kv.k_dim;
  described["v_dim"] = layer.kv.v_dim;
  if (layer.kv.v_in_k) described["v_in_k"] = true;
  if (layer.kind == LayerMemory::Kind::kSliding) {
    described["window"] = layer.window;
    described["retained_tokens"] = layer.retained_tokens;
  }
  if (layer.kind == LayerMemory::Kind::kChunked) described["chunk"] = layer.chunk;
  return described;
}

json RopeJson(KeyReader& keys, const LayerParams& params) {
  const auto rope = ReadRopeSummary(keys, params);
  if (!rope.ok()) return {{"error", rope.status().message()}};
  return {{"scaling", rope->scaling},
          {"factor", rope->factor},
          {"original_context", rope->original_context}};
}

json ExpertsJson(KeyReader& keys, const LayerParams& params) {
  const auto experts = ReadExpertParams(keys, params, {.sigmoid = true, .groups = true});
  if (!experts.ok()) return {{"error", experts.status().message()}};
  if (experts->count == 0) return nullptr;
  return {{"count", experts->count}, {"used", experts->used}, {"ffn", experts->ffn}};
}

// What the keys of an architecture that is known say beside the layers' sizes.
void AddSettings(const GgufFile& file, const json& architecture, json& description) {
  if (!IsKnown(architecture)) return;
  KeyReader keys(file, architecture.get<std::string>());
  const auto params = ReadLayerParams(keys, LayerKinds::kHybrid);
  if (!params.ok()) return;
  description["rope"] = RopeJson(keys, *params);
  description["experts"] = ExpertsJson(keys, *params);
}

json CacheJson(const Result<ModelInfo>& model, const InspectOptions& options) {
  if (!model.ok()) return {{"error", model.status().message()}};
  const Status types = CheckCacheTypes(model->memory, options.k_type, options.v_type);
  if (!types.ok()) return {{"error", types.message()}};
  json layers = json::array();
  for (const LayerMemory& layer : model->memory) {
    layers.push_back(LayerJson(layer, options));
  }
  return {{"k_type", InfoOf(options.k_type).name},
          {"v_type", InfoOf(options.v_type).name},
          {"bytes_per_token", BytesPerToken(model->memory, options.k_type, options.v_type)},
          {"bytes_per_sequence", BytesPerSequence(model->memory, options.k_type, options.v_type)},
          {"layers", std::move(layers)}};
}

using MadeTokenizer = Result<std::unique_ptr<Tokenizer>>;

json TokenizerJson(const MadeTokenizer& made) {
  if (!made.ok()) return {{"error", made.status().message()}};
  const Tokenizer& tokenizer = **made;
  const auto id = [](std::int32_t token) { return token == kNoToken ? json() : json(token); };
  return {{"kind", tokenizer.KindName()},
          {"description", tokenizer.Describe()},
          {"tokens", tokenizer.vocabulary_size()},
          {"bos", id(tokenizer.bos())},
          {"eos", id(tokenizer.eos())},
          {"eot", id(tokenizer.eot())},
          {"unknown", id(tokenizer.unknown())},
          {"add_bos", tokenizer.vocabulary().add_bos()},
          {"add_eos", tokenizer.vocabulary().add_eos()},
          {"notes", tokenizer.notes()}};
}

// The model, unless its vocabulary does not fit.
Result<ModelInfo> DescribeLoadable(const GgufFile& file, const MadeTokenizer& tokenizer) {
  KVCACHE_ASSIGN_OR_RETURN(ModelInfo info, DescribeModel(file));
  if (tokenizer.ok())
    KVCACHE_RETURN_IF_ERROR(CheckTokenCount(info, (*tokenizer)->vocabulary_size()));
  return info;
}

}  // namespace

json DescribeModelFile(const GgufFile& file, const InspectOptions& options) {
  std::int64_t parameters = 0;
  for (const GgufTensor& tensor : file.tensors()) parameters += tensor.elements();
  const json architecture = StringOrNull(file, "general.architecture");
  const bool has_tokenizer = file.Find("tokenizer.ggml.model") != nullptr;
  const MadeTokenizer tokenizer = MakeTokenizer(file);
  const Result<ModelInfo> model = DescribeLoadable(file, tokenizer);
  json description = {{"path", file.path()},
                      {"format", StrCat("GGUF ", file.version())},
                      {"bytes", file.size_bytes()},
                      {"architecture", architecture},
                      {"name", StringOrNull(file, "general.name")},
                      {"supported", model.ok()},
                      {"parameters", parameters},
                      {"rope", nullptr},
                      {"experts", nullptr},
                      {"tokenizer", has_tokenizer ? TokenizerJson(tokenizer) : json()},
                      {"metadata", Metadata(file)},
                      {"types", Types(file)},
                      {"tensors", Tensors(file)},
                      {"cache", CacheJson(model, options)}};
  AddSettings(file, architecture, description);
  return description;
}

}  // namespace kvcache
