// Opens models for the server as the flags of `kvcache serve` say.
//
// A file of --draft is for the first model. Other models, and without the flag all, have the DRAFT of the stored
// model, if they can use it. With "head", models that have no draft head run without one.
//
// Thread safety: Open from any thread, after SetFirst.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "app/flags/serve_flags.h"
#include "kvcache/store.h"
#include "kvcache_engine/embedder.h"
#include "kvcache_engine/engine.h"
#include "server/models/model_source.h"

namespace kvcache::app {

class ModelOpener {
 public:
  // `flags` must outlive it. `store`: for the prefixes of all models; null: none.
  ModelOpener(const ServeFlags& flags, std::shared_ptr<Store> store)
      : flags_(flags), store_(std::move(store)) {}

  // Names the weights of the model that --draft is for.
  void SetFirst(std::string path) { first_path_ = std::move(path); }

  // Opens a model for a context of so many tokens; 0: the default. Errors name the flag or the file. A DRAFT that
  // cannot be used is an event of the log.
  Result<std::shared_ptr<Engine>> Open(const server::ServedModel& model, int context) const;

  // The same for a model that embeds or ranks; 0: as many tokens as the model was made for.
  Result<std::shared_ptr<Embedder>> OpenEmbedder(const server::ServedModel& model,
                                                 int context) const;

 private:
  // `source`: what names the draft, for errors.
  Result<std::shared_ptr<Engine>> OpenWith(const server::ServedModel& model, int context,
                                           const std::string& draft, const char* source) const;
  Status UseTower(Engine& engine, const server::ServedModel& model) const;
  Status UseDraftModel(Engine& engine, const std::string& draft) const;

  const ServeFlags& flags_;
  const std::shared_ptr<Store> store_;
  std::string first_path_;
};

}  // namespace kvcache::app
