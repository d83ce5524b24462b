// Loads models when requests ask for them, and unloads them when nobody does any more.
//
// A model is in use as long as a lease of it lives: every function that a request leaves behind holds one.
// It is unloaded when it was not in use for its time to stay, or when another model needs its place: of
// those that are loaded, the one whose last use is oldest. If that one is in use, requests for it wait
// from then on, so that the other model's turn comes.
//
// A budget of bytes is for all models together (SchedulerOptions::budget_bytes): those that are loaded have equal
// parts of it. Before one gets its first request, the others give back what they have above their new part. A model
// that needs more than its part for one request of a whole context takes the place of others; if it needs more than
// the budget, it is loaded alone.
//
// What a model had cached is in the engine's store, if there is one, and comes back with the model.
//
// Thread safety: any thread. Functions are called on the host's thread or on the caller's, and must return
// soon.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "server/models/embedding_service.h"
#include "server/models/model_source.h"
#include "server/models/text_service.h"

namespace kvcache::server {

inline constexpr double kForever = std::numeric_limits<double>::infinity();

struct ModelHostOptions {
  std::size_t max_loaded = 8;  // models at a time
  std::int64_t max_bytes = 0;  // of the files of several models together; 0: any
  double stay_seconds = kForever;
  std::size_t max_waiting = 256;   // requests that wait for a model
  std::int64_t max_running = 512;  // as in TextService::Make
  std::string dialect{};           // as in TextService::Make
  SchedulerOptions scheduler{};    // of each model, with a part of the budget
};

// Keeps a model loaded: one that generates, one that embeds, and any.
using ModelLease = std::shared_ptr<TextService>;
using EmbeddingLease = std::shared_ptr<EmbeddingService>;
using ServiceLease = std::shared_ptr<ModelService>;

struct LoadedModel {
  ServedModel model;
  ServiceLease service;
  ModelLease lease;                // the same if the model generates; else null
  double seconds_left = kForever;  // before it is unloaded, if nobody asks for it
};

class ModelHost {
 public:
  static std::unique_ptr<ModelHost> Make(std::unique_ptr<ModelSource> source,
                                         ModelHostOptions options);
  // REQUIRES: nobody else holds a lease, except functions of requests that have not ended.
  virtual ~ModelHost() = default;

  virtual ModelSource& source() = 0;
  // Calls `ready` with the model, at once if it is loaded. `stay_seconds`: how long the model stays after
  // its last use from now on. Errors: those of opening it; kCacheFull: too many requests wait;
  // kCancelled after StopAccepting.
  void Acquire(const ServedModel& model, std::optional<double> stay_seconds,
               std::function<void(Result<ModelLease>)> ready);
  // The same for a model that embeds or ranks. A model may be loaded for both uses at a time.
  void AcquireEmbedder(const ServedModel& model, std::optional<double> stay_seconds,
                       std::function<void(Result<EmbeddingLease>)> ready);
  // Unloads the model when it is not in use any more, if it is loaded for the use that `model` says.
  virtual void Unload(const ServedModel& model) = 0;
  // Returns the loaded models, the one that was asked for last first. A lease from here is no use of the model.
  virtual std::vector<LoadedModel> Loaded() = 0;
  // Returns those of them that generate.
  std::vector<LoadedModel> LoadedToGenerate();

  // The sums over all models that were ever loaded.
  virtual ServiceCounters counters() const = 0;
  // Returns whether no request waits or runs.
  virtual bool idle() const = 0;
  virtual void StopAccepting() = 0;
  // Ends all requests with kCancelled.
  virtual void EndAll() = 0;

 protected:
  // Acquires the model for the use that it says.
  virtual void AcquireService(const ServedModel& model, std::optional<double> stay_seconds,
                              std::function<void(Result<ServiceLease>)> ready) = 0;
};

}  // namespace kvcache::server
