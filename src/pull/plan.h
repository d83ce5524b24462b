// What a pull fetches: the layers of a model, and where each of them is.
//
// Thread safety: values and free functions.
#pragma once

#include <string>
#include <vector>

#include "kvcache/status.h"
#include "model_store/manifest.h"
#include "model_store/model_name.h"
#include "pull/fetcher.h"

namespace kvcache::pull {

struct PlannedLayer {
  ManifestLayer layer;
  std::string url;
};

struct Plan {
  std::vector<PlannedLayer> layers{};  // those of the manifest, in order
  ManifestLayer config{};              // as in the manifest; without a digest: `config_text` is it
  std::string config_url{};
  std::string config_text{};
};

// Asks a registry (Docker's API, version 2) for a model's manifest. Errors: those of Fetcher;
// kNotFound: it has no such model; kCorrupt, kUnsupported: those of ParseManifest, or it is no model.
Result<Plan> PlanFromRegistry(Fetcher& fetcher, const std::string& origin, const ModelName& name);

// Asks a hub for the files of a repository, and chooses those of the tag: a quantization, or "latest".
// Errors: those of Fetcher and ChooseFiles; kCorrupt: another answer than a list.
Result<Plan> PlanFromHub(Fetcher& fetcher, const std::string& origin, const ModelName& name);

}  // namespace kvcache::pull
