#include "model_store/manifest.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "model_store/blob_digest.h"
#include "model_store/bounded_json.h"

namespace kvcache {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kSchemaVersion = 2;

Result<std::string> TextOf(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    return Corrupt(StrCat("it has no text for ", Quoted(key)));
  }
  return found->get<std::string>();
}

Result<ManifestLayer> ParseLayer(const json& object) {
  if (!object.is_object()) return Corrupt("it is not an object");
  ManifestLayer layer;
  KVCACHE_ASSIGN_OR_RETURN(layer.media_type, TextOf(object, "mediaType"));
  KVCACHE_ASSIGN_OR_RETURN(layer.digest, TextOf(object, "digest"));
  if (!IsBlobDigest(layer.digest)) {
    return Corrupt(StrCat("its digest ", Quoted(layer.digest),
                          " is not 'sha256:' and 64 lower-case hexadecimal digits"));
  }
  const auto size = object.find("size");
  if (size == object.end() || !size->is_number_unsigned()) {
    return Corrupt("it has no size, a number of bytes");
  }
  layer.size = size->get<std::uint64_t>();
  if (layer.size > kMaxLayerBytes)
    return Corrupt(StrCat("its size ", layer.size, " is impossible"));
  return layer;
}

Status AddLayer(const json& object, std::size_t index, Manifest* manifest) {
  auto layer = ParseLayer(object);
  if (!layer.ok()) return std::move(layer).TakeStatus().WithContext(StrCat("layer ", index));
  manifest->layers.push_back(std::move(layer).value());
  return Status::Ok();
}

ordered_json LayerJson(const ManifestLayer& layer) {
  ordered_json object;
  object["mediaType"] = layer.media_type;
  object["digest"] = layer.digest;
  object["size"] = layer.size;
  return object;
}

}  // namespace

Result<const ManifestLayer*> Manifest::Only(std::string_view type) const {
  const ManifestLayer* found = nullptr;
  for (const ManifestLayer& layer : layers) {
    if (layer.media_type != type) continue;
    if (found != nullptr) {
      return Unsupported(StrCat("it has several layers of type ", type, "; one is supported"));
    }
    found = &layer;
  }
  return found;
}

Result<Manifest> ParseManifest(std::string_view text) {
  KVCACHE_ASSIGN_OR_RETURN(const json object, ParseBoundedJson(text, kMaxManifestBytes));
  if (!object.is_object()) return Corrupt("it is not a JSON object");
  const auto version = object.find("schemaVersion");
  if (version == object.end() || !version->is_number_integer()) {
    return Corrupt("it has no schemaVersion");
  }
  if (*version != kSchemaVersion) return Unsupported("its schemaVersion is not 2");
  Manifest manifest;
  const auto config = object.find("config");
  if (config == object.end()) return Corrupt("it has no config");
  auto layer = ParseLayer(*config);
  if (!layer.ok()) return std::move(layer).TakeStatus().WithContext("config");
  manifest.config = std::move(layer).value();
  const auto layers = object.find("layers");
  if (layers == object.end() || !layers->is_array()) return Corrupt("it has no array of layers");
  if (layers->size() > kMaxManifestLayers) {
    return Corrupt(
        StrCat("it has ", layers->size(), " layers; at most ", kMaxManifestLayers, " are read"));
  }
  for (std::size_t i = 0; i < layers->size(); ++i) {
    KVCACHE_RETURN_IF_ERROR(AddLayer((*layers)[i], i, &manifest));
  }
  return manifest;
}

std::string ManifestText(const Manifest& manifest) {
  ordered_json object;
  object["schemaVersion"] = kSchemaVersion;
  object["mediaType"] = media_type::kManifest;
  object["config"] = LayerJson(manifest.config);
  object["layers"] = ordered_json::array();
  for (const ManifestLayer& layer : manifest.layers) object["layers"].push_back(LayerJson(layer));
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace kvcache
