// What a manifest's blobs mean: the weights, and how the model is to be run.
//
// Thread safety: a value and free functions.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/status.h"
#include "model_store/model_store.h"

namespace kvcache {

struct StoredMessage {
  std::string role;
  std::string content;

  bool operator==(const StoredMessage&) const = default;
};

// A parameter and the text of its value, such as {"temperature", "0.5"}. One that is given several
// times ("stop") is here several times.
using StoredParameter = std::pair<std::string, std::string>;

struct StoredModel {
  std::string name;                   // ModelName::Short
  std::string path;                   // of the weights, a GGUF file or the parts of one (PartPaths)
  std::string draft;                  // of the draft model's weights, likewise; empty: none
  std::string projector;              // of its vision tower's file; empty: none
  std::vector<std::string> adapters;  // their files, in order
  std::string config;                 // JSON: family, size and types of the model; for display
  std::optional<std::string> chat_template;
  std::optional<std::string> system;
  std::vector<StoredParameter> parameters;
  std::vector<StoredMessage> messages;
  std::vector<std::string> licenses;
};

// Reads the model of a name. Errors: those of ModelStore::Read; kUnsupported: it has
// weights in another form than GGUF; kCorrupt: a blob that is not what its type says.
Result<StoredModel> ReadStoredModel(const ModelStore& store, const ModelName& name);

// Returns the JSON of a layer of parameters or messages, and reads it.
std::string ParametersJson(const std::vector<StoredParameter>& parameters);
std::string MessagesJson(const std::vector<StoredMessage>& messages);
Result<std::vector<StoredParameter>> ParseParameters(std::string_view json);
Result<std::vector<StoredMessage>> ParseMessages(std::string_view json);

}  // namespace kvcache
