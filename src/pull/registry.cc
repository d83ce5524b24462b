#include <algorithm>

#include "base/errors.h"
#include "base/strings.h"
#include "pull/plan.h"

namespace kvcache::pull {
namespace {

// Registries that know several forms of manifests are asked for the one that models have.
constexpr std::string_view kAccepted =
    "application/vnd.docker.distribution.manifest.v2+json, "
    "application/vnd.oci.image.manifest.v1+json";

}  // namespace

Result<Plan> PlanFromRegistry(Fetcher& fetcher, const std::string& origin, const ModelName& name) {
  const std::string base = StrCat(origin, "/v2/", name.space, "/", name.model);
  const std::string url = StrCat(base, "/manifests/", name.tag);
  auto fetched = fetcher.GetText(url, {{"Accept", std::string(kAccepted)}}, kMaxManifestBytes);
  if (fetched.status().code() == StatusCode::kNotFound) {
    return NotFound(
        StrCat("the registry has no model '", name.Short(), "': ", fetched.status().message()));
  }
  if (!fetched.ok()) return std::move(fetched).TakeStatus();
  auto manifest = ParseManifest(*fetched);
  if (!manifest.ok()) {
    return std::move(manifest).TakeStatus().WithContext(StrCat(PlaceOf(url), ": the manifest"));
  }
  const auto is_model = [](const ManifestLayer& layer) {
    return layer.media_type == media_type::kModel;
  };
  if (std::none_of(manifest->layers.begin(), manifest->layers.end(), is_model)) {
    return Unsupported(StrCat(PlaceOf(url), ": it has no layer of type ", media_type::kModel,
                              "; it is no model in the form of a GGUF file"));
  }
  const auto url_of = [&](const ManifestLayer& layer) {
    return StrCat(base, "/blobs/", layer.digest);
  };
  Plan plan{.config = manifest->config, .config_url = url_of(manifest->config)};
  for (ManifestLayer& layer : manifest->layers) {
    std::string place = url_of(layer);
    plan.layers.push_back({std::move(layer), std::move(place)});
  }
  return plan;
}

}  // namespace kvcache::pull
