#include <nlohmann/json.hpp>
#include <variant>

#include "base/strings.h"
#include "inspect/inspect.h"
#include "tokenizer/vocabulary.h"

namespace kvcache {
namespace {

using nlohmann::json;

json ErrorJson(const Status& status) {
  return {{"error", status.message()}};
}

json StringJson(const std::optional<std::string_view>& text) {
  return text ? json(*text) : json();
}

json ValueJson(const MetadataValue& value) {
  std::vector<json> elements;
  for (const MetadataElement& element : value.first) {
    elements.push_back(std::visit([](const auto& v) { return json(v); }, element));
  }
  if (!value.is_array) return elements[0];
  return {{"array", GgufTypeName(value.element)},
          {"count", value.count},
          {"first", std::move(elements)}};
}

json MetadataJson(const std::vector<MetadataValue>& metadata) {
  json object = json::object();
  for (const MetadataValue& value : metadata) object[std::string(value.key)] = ValueJson(value);
  return object;
}

// `is_split`: the model has several files.
json TensorsJson(std::span<const GgufTensor> tensors, bool is_split) {
  json array = json::array();
  for (const GgufTensor& tensor : tensors) {
    const std::vector<std::int64_t> dims(tensor.dims.begin(), tensor.dims.begin() + tensor.rank);
    array.push_back({{"name", tensor.name},
                     {"type", tensor.type->name},
                     {"dims", dims},
                     {"bytes", tensor.bytes.size()},
                     {"offset", tensor.offset}});
    if (is_split) array.back()["part"] = tensor.part + 1;
  }
  return array;
}

json TypesJson(const std::vector<TypeTotal>& types) {
  json array = json::array();
  for (const TypeTotal& total : types) {
    array.push_back({{"type", total.type->name},
                     {"served", total.type->dtype.has_value()},
                     {"tensors", total.tensors},
                     {"parameters", total.parameters},
                     {"bytes", total.bytes}});
  }
  return array;
}

json RopeJson(const std::optional<Result<RopeSummary>>& rope) {
  if (!rope) return nullptr;
  if (!rope->ok()) return ErrorJson(rope->status());
  return {{"scaling", (*rope)->scaling},
          {"factor", (*rope)->factor},
          {"original_context", (*rope)->original_context}};
}

json ExpertsJson(const std::optional<Result<ExpertParams>>& experts) {
  if (!experts) return nullptr;
  if (!experts->ok()) return ErrorJson(experts->status());
  if ((*experts)->count == 0) return nullptr;
  return {{"count", (*experts)->count}, {"used", (*experts)->used}, {"ffn", (*experts)->ffn}};
}

json TokenizerJson(const std::optional<Result<TokenizerDescription>>& tokenizer) {
  if (!tokenizer) return nullptr;
  if (!tokenizer->ok()) return ErrorJson(tokenizer->status());
  const TokenizerDescription& made = **tokenizer;
  const auto id = [](std::int32_t token) { return token == kNoToken ? json() : json(token); };
  return {{"kind", made.kind},           {"description", made.description},
          {"tokens", made.tokens},       {"bos", id(made.bos)},
          {"eos", id(made.eos)},         {"eot", id(made.eot)},
          {"unknown", id(made.unknown)}, {"add_bos", made.add_bos},
          {"add_eos", made.add_eos},     {"notes", made.notes}};
}

json ChatJson(const std::optional<Result<ChatDescription>>& chat) {
  if (!chat) return nullptr;
  if (!chat->ok()) return ErrorJson(chat->status());
  const ChatDescription& made = **chat;
  return {{"format", made.format},
          {"dialect", made.dialect},
          {"calls", made.calls},
          {"thinks", made.thinks}};
}

json LayerJson(const LayerMemory& layer, const CacheDescription& cache) {
  json described = {{"layer", layer.layer},
                    {"kind", NameOf(layer.kind)},
                    {"bytes_per_token", BytesPerToken(layer, cache.k_type, cache.v_type)},
                    {"bytes_per_sequence", BytesPerSequence(layer, cache.k_type, cache.v_type)}};
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

json CacheJson(const Result<CacheDescription>& cache) {
  if (!cache.ok()) return ErrorJson(cache.status());
  json layers = json::array();
  for (const LayerMemory& layer : cache->layers) layers.push_back(LayerJson(layer, *cache));
  return {{"k_type", InfoOf(cache->k_type).name},
          {"v_type", InfoOf(cache->v_type).name},
          {"bytes_per_token", BytesPerToken(cache->layers, cache->k_type, cache->v_type)},
          {"bytes_per_sequence", BytesPerSequence(cache->layers, cache->k_type, cache->v_type)},
          {"layers", std::move(layers)}};
}

}  // namespace

json DescriptionJson(const ModelDescription& description) {
  return {{"path", description.path},
          {"format", StrCat("GGUF ", description.version)},
          {"files", description.files},
          {"bytes", description.size_bytes},
          {"architecture", StringJson(description.architecture)},
          {"name", StringJson(description.name)},
          {"supported", description.supported},
          {"parameters", description.parameters},
          {"rope", RopeJson(description.rope)},
          {"experts", ExpertsJson(description.experts)},
          {"tokenizer", TokenizerJson(description.tokenizer)},
          {"chat", ChatJson(description.chat)},
          {"metadata", MetadataJson(description.metadata)},
          {"types", TypesJson(description.types)},
          {"tensors", TensorsJson(description.tensors, description.files > 1)},
          {"cache", CacheJson(description.cache)}};
}

}  // namespace kvcache
