// Repositories of the Hugging Face hub. Its API lists the files of a revision with their sizes and,
// of large files, SHA-256 hashes.
#include <nlohmann/json.hpp>

#include "base/errors.h"
#include "base/strings.h"
#include "model_store/blob_digest.h"
#include "model_store/manifest.h"
#include "pull/hub_files.h"
#include "pull/hub_list.h"
#include "pull/plan.h"

namespace kvcache::pull {
namespace {

constexpr std::size_t kMaxListBytes = std::size_t{16} << 20;

// Makes the plan's layers of files.
class Planner {
 public:
  // `place`: the address of the repository's files.
  explicit Planner(std::string place) : place_(std::move(place)) {}

  Status Add(std::string_view type, const HubFile& file) {
    const std::string digest = StrCat("sha256:", file.sha256);
    if (!IsBlobDigest(digest)) {
      return Unsupported(StrCat("the hub has no SHA-256 hash of ", Quoted(file.path)));
    }
    plan_.layers.push_back(
        {{std::string(type), digest, file.bytes}, StrCat(place_, EscapedPath(file.path))});
    return Status::Ok();
  }

  Result<Plan> Finish() {
    if (plan_.layers.size() > kMaxManifestLayers) {
      return Unsupported(StrCat("the model has ", plan_.layers.size(), " files; at most ",
                                kMaxManifestLayers, " are read"));
    }
    nlohmann::ordered_json config;
    config["model_format"] = "gguf";
    config["architecture"] = "amd64";
    config["os"] = "linux";
    config["rootfs"]["type"] = "layers";
    for (const PlannedLayer& one : plan_.layers) {
      config["rootfs"]["diff_ids"].push_back(one.layer.digest);
    }
    plan_.config_text = config.dump();
    return std::move(plan_);
  }

 private:
  const std::string place_;
  Plan plan_;
};

bool IsRevision(const std::string& text) {
  const bool hex = text.find_first_not_of("0123456789abcdef") == std::string::npos;
  return text.size() == 40 && hex;
}

}  // namespace

Result<Plan> PlanFromHub(Fetcher& fetcher, const std::string& origin, const ModelName& name) {
  const std::string repository = StrCat(name.space, "/", name.model);
  const std::string path = StrCat("/api/models/", repository, "/revision/main?blobs=true");
  auto fetched = fetcher.GetText(StrCat(origin, path), {}, kMaxListBytes);
  if (fetched.status().code() == StatusCode::kNotFound) {
    return NotFound(
        StrCat("the hub has no repository '", repository, "': ", fetched.status().message()));
  }
  if (!fetched.ok()) return std::move(fetched).TakeStatus();
  const std::string asked = PlaceOf(StrCat(origin, path));
  const auto in_list = [&](Status status) { return std::move(status).WithContext(asked); };
  const auto list = ParseHubList(*fetched);
  if (!list.ok()) return in_list(list.status());
  auto chosen = ChooseFiles(list->files, name.tag);
  if (!chosen.ok()) return in_list(std::move(chosen).TakeStatus());
  // All files are of one revision, also if somebody changes the repository meanwhile.
  const std::string& revision = list->revision;
  KVCACHE_ASSIGN_OR_RETURN(const Url asked_url, ParseUrl(origin));
  // A short name of the hub leads to its long one.
  const bool moved = fetcher.last().host != asked_url.host;
  Planner planner(StrCat(moved ? fetcher.last().Origin() : origin, "/", repository, "/resolve/",
                         IsRevision(revision) ? revision : "main", "/"));
  for (const HubFile& file : chosen->weights) {
    KVCACHE_RETURN_IF_ERROR(in_list(planner.Add(media_type::kModel, file)));
  }
  for (const HubFile& file : chosen->draft) {
    KVCACHE_RETURN_IF_ERROR(in_list(planner.Add(media_type::kDraft, file)));
  }
  if (chosen->projector) {
    KVCACHE_RETURN_IF_ERROR(in_list(planner.Add(media_type::kProjector, *chosen->projector)));
  }
  auto plan = planner.Finish();
  return plan.ok() ? std::move(plan) : in_list(std::move(plan).TakeStatus());
}

}  // namespace kvcache::pull
