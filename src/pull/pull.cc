#include "pull/pull.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "pull/blob_fetch.h"
#include "pull/fetcher.h"
#include "pull/plan.h"
#include "pull/this_machine.h"
#include "pull/url.h"

namespace kvcache::pull {
namespace {

constexpr const char* kHub = "hf.co";
constexpr int kListStalls =
    10;  // a list or a manifest may take so many times the time of a silent server

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Returns the hub's token as its own tools find it; empty: there is none.
std::string HubToken() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    const std::string token = Variable(name);
    if (!token.empty()) return token;
  }
  std::string path = Variable("HF_TOKEN_PATH");
  const std::string home = Variable("HF_HOME");
  if (path.empty() && !home.empty()) path = home + "/token";
  if (path.empty()) path = Variable("HOME") + "/.cache/huggingface/token";
  std::string token;
  std::ifstream(path) >> token;
  return token;
}

Result<std::string> HubOrigin() {
  const std::string endpoint = Variable("HF_ENDPOINT");
  if (endpoint.empty()) return StrCat("https://", kHub);
  auto url = ParseUrl(endpoint);
  if (!url.ok()) return std::move(url).TakeStatus().WithContext("HF_ENDPOINT");
  std::string text = url->Text();
  while (text.ends_with('/')) text.pop_back();
  return text;
}

Result<Plan> PlanHub(Fetcher& fetcher, const ModelName& name) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string origin, HubOrigin());
  const std::string token = HubToken();
  const auto is_bad = [](char c) { return c <= ' ' || c >= '\x7f'; };
  if (std::any_of(token.begin(), token.end(), is_bad)) {
    return InvalidArgument("the hub's token (HF_TOKEN) has a byte that no token has");
  }
  KVCACHE_ASSIGN_OR_RETURN(const Url url, ParseUrl(origin));
  fetcher.Trust(url.host);
  if (!token.empty()) fetcher.UseToken(url.host, token);
  auto plan = PlanFromHub(fetcher, origin, name);
  // The short name of the hub leads to its long one, which wants the token as well. No other hub's token leaves its host.
  const Url last = fetcher.last();
  const bool moved = url.host == kHub && last.scheme == "https" && last.host != url.host;
  if (token.empty() || !moved) return plan;
  fetcher.UseToken(last.host, token);
  return plan.status().code() == StatusCode::kUnsupported ? PlanFromHub(fetcher, origin, name)
                                                          : plan;
}

Result<Plan> MakePlan(Fetcher& fetcher, const ModelName& name) {
  if (IsHubName(name)) return PlanHub(fetcher, name);
  fetcher.Trust(name.host);
  const std::string scheme = NamesThisMachine(name.host) ? "http" : "https";
  return PlanFromRegistry(fetcher, StrCat(scheme, "://", name.host), name);
}

std::vector<ManifestLayer> BlobsOf(const Plan& plan) {
  std::vector<ManifestLayer> blobs;
  for (const PlannedLayer& planned : plan.layers) blobs.push_back(planned.layer);
  if (!plan.config_url.empty()) blobs.push_back(plan.config);
  return blobs;
}

// Refuses what does not fit, before hours of fetching.
Status CheckRoom(const ModelStore& store, const std::vector<ManifestLayer>& blobs) {
  const std::uint64_t missing = store.MissingBytes(blobs);
  std::error_code error;
  const auto disk = std::filesystem::space(store.root(), error);
  if (error || missing <= disk.available) return Status::Ok();
  return {StatusCode::kIo, StrCat("the disk of ", store.root(), " has ", disk.available,
                                  " bytes free; ", missing, " more are needed")};
}

// Refuses a blob that no command could load.
Status CheckIsGguf(const ModelStore& store, const PlannedLayer& planned) {
  const std::string& type = planned.layer.media_type;
  if (type != media_type::kModel && type != media_type::kDraft) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, store.BlobPath(planned.layer));
  std::array<char, 4> magic{};
  std::ifstream(path, std::ios::binary).read(magic.data(), magic.size());
  if (std::string_view(magic.data(), magic.size()) == "GGUF") return Status::Ok();
  return Unsupported(
      StrCat(PlaceOf(planned.url), ": it is no GGUF file: its first bytes are not 'GGUF'"));
}

// Fetches what the plan says, and returns the manifest, whose config may not be stored yet.
Result<Manifest> FetchAll(const ModelStore& store, Fetcher& fetcher, const Plan& plan,
                          const PullOptions& options) {
  Manifest manifest;
  manifest.config = plan.config;
  for (const PlannedLayer& planned : plan.layers) {
    KVCACHE_RETURN_IF_ERROR(FetchBlob(store, fetcher, planned, options));
    KVCACHE_RETURN_IF_ERROR(CheckIsGguf(store, planned));
    manifest.layers.push_back(planned.layer);
  }
  if (plan.config_url.empty()) return manifest;
  KVCACHE_RETURN_IF_ERROR(FetchBlob(store, fetcher, {plan.config, plan.config_url}, options));
  return manifest;
}

void Report(const PullOptions& options, const char* status) {
  if (options.report) options.report({.status = status});
}

// Fetches the blobs of a plan and writes its manifest. REQUIRES: the blobs are claimed.
Status Fulfil(const ModelStore& store, const ModelName& name, Fetcher& fetcher, const Plan& plan,
              const PullOptions& options) {
  KVCACHE_RETURN_IF_ERROR(CheckRoom(store, BlobsOf(plan)));
  KVCACHE_ASSIGN_OR_RETURN(Manifest manifest, FetchAll(store, fetcher, plan, options));
  Report(options, "writing manifest");
  KVCACHE_ASSIGN_OR_RETURN(StoreLock lock, store.Lock(options.cancelled));
  if (plan.config_url.empty()) {
    KVCACHE_ASSIGN_OR_RETURN(manifest.config,
                             store.AddBytes(lock, media_type::kConfig, plan.config_text));
  }
  return store.Write(lock, name, manifest);
}

}  // namespace

bool IsHubName(const ModelName& name) {
  return name.host == kHub;
}

Status PullModel(const ModelStore& store, const ModelName& name, HttpClient& client,
                 const PullOptions& options) {
  Fetcher fetcher(client, kListStalls * options.stall_seconds);
  Report(options, "pulling manifest");
  KVCACHE_ASSIGN_OR_RETURN(const Plan plan, MakePlan(fetcher, name));
  const std::vector<ManifestLayer> blobs = BlobsOf(plan);
  KVCACHE_ASSIGN_OR_RETURN(const auto claim, store.Claim(name, blobs, options.cancelled));
  Status status = Fulfil(store, name, fetcher, plan, options);
  if (status.ok() || !store.HasPartOf(blobs)) claim->Finish();
  KVCACHE_RETURN_IF_ERROR(std::move(status));
  Report(options, "success");
  return Status::Ok();
}

Status PullModel(const ModelStore& store, const ModelName& name, const PullOptions& options) {
  KVCACHE_ASSIGN_OR_RETURN(
      const auto client,
      MakeCurlClient({.stall_seconds = options.stall_seconds, .cancelled = options.cancelled}));
  return PullModel(store, name, *client, options);
}

}  // namespace kvcache::pull
