#include "model_store/stored_model.h"

#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/strings.h"
#include "gguf/split_file.h"
#include "model_store/bounded_json.h"

namespace kvcache {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxTextBytes = std::size_t{16} << 20;

// Returns the text that a Modelfile has for a value, or nothing for null, arrays and objects.
std::optional<std::string> ValueText(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_number()) return value.dump();
  return std::nullopt;
}

// Returns the value of a text: a number or a boolean if it is one, else the text.
json ValueOf(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  const char* const end = text.data() + text.size();
  std::int64_t integer = 0;
  const auto whole = std::from_chars(text.data(), end, integer);
  if (whole.ec == std::errc{} && whole.ptr == end) return integer;
  double number = 0;
  const auto real = std::from_chars(text.data(), end, number);
  if (real.ec == std::errc{} && real.ptr == end) return number;
  return text;
}

Status AddParameter(const std::string& name, const json& value,
                    std::vector<StoredParameter>* parameters) {
  const auto text = ValueText(value);
  if (!text) {
    return Corrupt(StrCat("parameter ", Quoted(name), " is not a text, a number or a boolean"));
  }
  parameters->emplace_back(name, *text);
  return Status::Ok();
}

std::string Dump(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// Reads the layers of a manifest into a model.
class Reader {
 public:
  Reader(const ModelStore& store, const Manifest& manifest, StoredModel* model)
      : store_(store), manifest_(manifest), model_(model) {}

  Status Read() {
    KVCACHE_RETURN_IF_ERROR(ReadWeights());
    KVCACHE_ASSIGN_OR_RETURN(model_->config, store_.ReadText(manifest_.config, kMaxTextBytes));
    KVCACHE_RETURN_IF_ERROR(ReadOnly(media_type::kPrompt, &model_->chat_template));
    KVCACHE_RETURN_IF_ERROR(ReadOnly(media_type::kTemplate, &model_->chat_template));
    KVCACHE_RETURN_IF_ERROR(ReadOnly(media_type::kSystem, &model_->system));
    std::optional<std::string> text;
    KVCACHE_RETURN_IF_ERROR(ReadOnly(media_type::kParameters, &text));
    if (text) {
      KVCACHE_ASSIGN_OR_RETURN(model_->parameters, ParseParameters(*text));
    }
    text.reset();
    KVCACHE_RETURN_IF_ERROR(ReadOnly(media_type::kMessages, &text));
    if (text) {
      KVCACHE_ASSIGN_OR_RETURN(model_->messages, ParseMessages(*text));
    }
    return ReadLicenses();
  }

 private:
  Status ReadWeights() {
    KVCACHE_ASSIGN_OR_RETURN(model_->adapters, PathsOf(media_type::kAdapter));
    KVCACHE_ASSIGN_OR_RETURN(const auto files, PathsOf(media_type::kModel));
    if (files.empty()) return Unsupported("it has no weights in the form of a GGUF file");
    model_->path = JoinedPath(files);
    KVCACHE_ASSIGN_OR_RETURN(const auto draft, PathsOf(media_type::kDraft));
    if (!draft.empty()) model_->draft = JoinedPath(draft);
    KVCACHE_ASSIGN_OR_RETURN(const auto projectors, PathsOf(media_type::kProjector));
    if (!projectors.empty()) model_->projector = projectors.front();
    return Status::Ok();
  }

  // Returns the paths of a type's blobs, in order: several of weights are the parts of a split file.
  Result<std::vector<std::string>> PathsOf(std::string_view type) const {
    std::vector<std::string> paths;
    for (const ManifestLayer& layer : manifest_.layers) {
      if (layer.media_type != type) continue;
      KVCACHE_ASSIGN_OR_RETURN(std::string path, store_.BlobPath(layer));
      paths.push_back(std::move(path));
    }
    return paths;
  }

  Status ReadOnly(std::string_view type, std::optional<std::string>* text) {
    KVCACHE_ASSIGN_OR_RETURN(const ManifestLayer* layer, manifest_.Only(type));
    if (layer == nullptr) return Status::Ok();
    KVCACHE_ASSIGN_OR_RETURN(*text, store_.ReadText(*layer, kMaxTextBytes));
    return Status::Ok();
  }

  Status ReadLicenses() {
    for (const ManifestLayer& layer : manifest_.layers) {
      if (layer.media_type != media_type::kLicense) continue;
      KVCACHE_ASSIGN_OR_RETURN(std::string text, store_.ReadText(layer, kMaxTextBytes));
      model_->licenses.push_back(std::move(text));
    }
    return Status::Ok();
  }

  const ModelStore& store_;
  const Manifest& manifest_;
  StoredModel* model_;
};

}  // namespace

std::string ParametersJson(const std::vector<StoredParameter>& parameters) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, text] : parameters) {
    if (name == "stop") {
      object[name].push_back(text);
    } else {
      object[name] = ValueOf(text);
    }
  }
  return Dump(object);
}

std::string MessagesJson(const std::vector<StoredMessage>& messages) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const StoredMessage& message : messages) {
    nlohmann::ordered_json object;
    object["role"] = message.role;
    object["content"] = message.content;
    list.push_back(std::move(object));
  }
  return Dump(list);
}

Result<std::vector<StoredParameter>> ParseParameters(std::string_view text) {
  KVCACHE_ASSIGN_OR_RETURN(const json object, ParseBoundedJson(text, kMaxTextBytes));
  if (!object.is_object()) return Corrupt("its parameters are not a JSON object");
  std::vector<StoredParameter> parameters;
  for (const auto& [name, value] : object.items()) {
    if (!value.is_array()) {
      KVCACHE_RETURN_IF_ERROR(AddParameter(name, value, &parameters));
      continue;
    }
    for (const json& element : value) {
      KVCACHE_RETURN_IF_ERROR(AddParameter(name, element, &parameters));
    }
  }
  return parameters;
}

Result<std::vector<StoredMessage>> ParseMessages(std::string_view text) {
  KVCACHE_ASSIGN_OR_RETURN(const json list, ParseBoundedJson(text, kMaxTextBytes));
  if (!list.is_array()) return Corrupt("its messages are not a JSON array");
  std::vector<StoredMessage> messages;
  for (const json& object : list) {
    const bool whole = object.is_object() && object.contains("role") &&
                       object["role"].is_string() && object.contains("content") &&
                       object["content"].is_string();
    if (!whole) return Corrupt("one of its messages has no texts for role and content");
    messages.push_back({object["role"].get<std::string>(), object["content"].get<std::string>()});
  }
  return messages;
}

Result<StoredModel> ReadStoredModel(const ModelStore& store, const ModelName& name) {
  KVCACHE_ASSIGN_OR_RETURN(const Manifest manifest, store.Read(name));
  StoredModel model;
  model.name = name.Short();
  Status status = Reader(store, manifest, &model).Read();
  if (!status.ok()) return std::move(status).WithContext(StrCat("model '", model.name, "'"));
  return model;
}

}  // namespace kvcache
