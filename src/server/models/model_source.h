// The models that a server offers: their names, how to open them, and how clients change the list.
//
// Thread safety: ModelSource from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/status.h"
#include "kvcache_engine/embedder.h"
#include "kvcache_engine/engine.h"
#include "server/request/fields.h"

namespace kvcache::server {

// An adapter of a model.
struct ServedAdapter {
  std::string name;  // that clients use
  std::string path;
  float scale = 1.0f;      // for requests that choose none
  bool is_offered = true;  // also as a model of its own
};

// A model as clients see it: weights, and what its prompts and its sampling begin with.
struct ServedModel {
  std::string name;
  std::int64_t created = 0;           // seconds since 1970
  std::int64_t bytes = 0;             // of the files of the weights and of the draft
  std::int64_t context = 0;           // tokens of a prompt with its answer; 0: unknown
  std::int64_t trained_context = 0;   // that the model was made for; 0: unknown
  bool is_stored = false;             // in the store of models; else a file
  std::string digest{};               // of the weights: 64 hexadecimal digits; empty: unknown
  std::string family{};               // the architecture; empty: unknown
  std::int64_t parameter_count = 0;   // values of the weights; 0: unknown
  std::int64_t embedding_length = 0;  // values of a token's state; 0: unknown
  std::string quantization{};         // the type of the weights, such as "Q4_K_M"; empty: unknown
  std::string path{};                 // of the weights
  std::string draft{};                // the file of its DRAFT; empty: it has none
  std::string projector{};            // the file of its vision tower; empty: it has none
  std::vector<ServedAdapter> adapters{};  // that are opened with it
  int adapter = -1;      // the only one of requests that name this model; -1: as the scales say
  std::string parent{};  // the model's name without the adapter; empty: this is one without
  std::string chat_template{};  // instead of the one in the weights; empty: that one
  FilePurpose purpose = FilePurpose::kGeneration;  // of the weights
  bool embeds = false;  // it is loaded to embed or to rank, not to generate
  // What prompts begin with if they have no system message, and the messages after it.
  std::string system{};
  Json messages = Json::array();
  // Sampling parameters for requests that do not give them, by Ollama's names.
  Json parameters = Json::object();

  // Models with equal keys are loaded once.
  std::string key() const { return key_of_both_uses() + (embeds ? "\nembeds" : ""); }
  // The same whether it is loaded to embed or to generate.
  std::string key_of_both_uses() const {
    std::string files = path + '\n' + draft + '\n' + projector + '\n';
    for (const ServedAdapter& each : adapters) files += each.path + '\n';
    return files + parameters.value("num_ctx", Json()).dump() + '\n' + chat_template;
  }
};

// Returns what clients see of a model: itself, and a model for each adapter that is offered.
std::vector<ServedModel> WithAdapters(const ServedModel& model);

// A model that a client describes. It starts from one that the server has.
struct NewModel {
  std::string name;
  std::string from;
  std::optional<std::string> system{};
  std::optional<std::string> chat_template{};
  Json messages = Json::array();
  Json parameters = Json::object();
  std::vector<std::string> licenses{};
};

// What a pull does now, in the words of Ollama's /api/pull.
struct PullStep {
  std::string status;
  std::string digest{};  // of the blob that is fetched; empty: none is
  std::uint64_t total = 0;
  std::uint64_t completed = 0;
};
// Who waits for a pull. Both are called on the pull's thread.
struct PullWatch {
  std::function<void(const PullStep& step)> report;  // often, while bytes come
  std::function<bool()> has_left;  // asked about once a second, also while no byte comes
};

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  // Returns all models; the first is the one of requests that name none.
  virtual std::vector<ServedModel> List() = 0;
  // Finds a model by its name, with or without ":latest". Errors: kNotFound.
  virtual Result<ServedModel> Find(const std::string& name) = 0;
  // Opens the weights to generate, which may take long.
  virtual Result<std::shared_ptr<Engine>> Open(const ServedModel& model) = 0;
  // Opens the weights to embed or to rank.
  virtual Result<std::shared_ptr<Embedder>> OpenEmbedder(const ServedModel& model);

  // Errors: kInvalidArgument for names and values; kNotFound for the old model; kUnsupported if the
  // list cannot be changed.
  virtual Status Create(const NewModel& model);
  virtual Status Copy(const std::string& from, const std::string& to);
  virtual Status Remove(const std::string& name);
  // Fetches a model, which may take hours. Errors: also those of the network, and kCancelled.
  virtual Status Pull(const std::string& name, const PullWatch& watch);
};

// Returns a source with one model, whose engine must outlive it.
std::unique_ptr<ModelSource> OneModel(Engine& engine, ServedModel model);

// Returns whether a request's name means the model.
bool MeansModel(const std::string& asked, const std::string& name);

}  // namespace kvcache::server
