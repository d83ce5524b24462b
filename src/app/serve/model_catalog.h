// The models of kvcache serve: those of the command line, or all that the machine has.
//
// Thread safety: Make from one thread; the source from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/flags/adapter_flags.h"
#include "kvcache/status.h"
#include "server/models/model_source.h"

namespace kvcache::app {

struct CatalogOptions {
  // Files, or names that the machine has, the first of which is the default; empty: all that the machine
  // has, and the model that ships first.
  std::vector<std::string> models{};
  std::vector<GivenAdapter> adapters{};  // of the first model
  bool uses_drafts = true;               // false: models have no DRAFT
  int context = 0;                       // tokens that all models get; 0: each its own
  bool is_offline = false;               // clients cannot pull
  // Whether the server stops: pulls end then. Is asked from any thread.
  std::function<bool()> stopping{};
  // Opens weights for a context of `context` tokens (0: the default).
  std::function<Result<std::shared_ptr<Engine>>(const server::ServedModel& model, int context)>
      open;
  // Opens weights to embed or to rank.
  std::function<Result<std::shared_ptr<Embedder>>(const server::ServedModel& model, int context)>
      open_embedder;
};

// Errors: those of finding the given models.
Result<std::unique_ptr<server::ModelSource>> MakeCatalog(CatalogOptions options);

}  // namespace kvcache::app
