// Makes a model in the local store, as a Modelfile describes it.
//
// Thread safety: free functions; those that change the store wait for each other.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "convert/quantize_model.h"
#include "kvcache/status.h"
#include "model_store/model_store.h"
#include "model_store/modelfile.h"

namespace kvcache::app {

struct CreateOptions {
  std::string folder = ".";              // relative paths in FROM and DRAFT begin here
  std::optional<WeightScheme> scheme{};  // that the weights are converted to; none: they stay
  std::optional<WeightScheme> draft_scheme{};
  // Is called with each name of FROM and DRAFT, before the store is locked; fetches a model that is not here. Empty: none is
  // fetched.
  std::function<Status(const std::string& name)> fetch{};
};

// Errors: those of files and stores; kUnsupported for templates that cannot be used here.
Status CreateModel(const ModelStore& store, const ModelName& name, Modelfile file,
                   const CreateOptions& options);

}  // namespace kvcache::app
