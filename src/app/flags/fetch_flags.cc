#include "app/flags/fetch_flags.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "app/flags/model_store.h"
#include "app/terminal/pull_progress.h"
#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "base/strings.h"
#include "pull/pull.h"

namespace kvcache::app {
namespace {

bool IsSet(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

}  // namespace

void FetchFlags::Add(FlagSet command) {
  command.AddSwitch("--offline", &offline_,
                    "never fetch a model that is not here (also: KVCACHE_OFFLINE=1)");
}

bool FetchFlags::offline() const {
  return offline_ || IsSet("KVCACHE_OFFLINE") || IsSet("HF_HUB_OFFLINE");
}

Status FetchFlags::Fetch(const std::string& model) const {
  if (model.empty() || offline()) return Status::Ok();
  const auto located = LocateModel(model);
  const auto name = ModelName::Parse(model);
  if (located.status().code() != StatusCode::kNotFound || !name.ok()) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const ModelStore store, OpenModelStore());
  // A model that is here and lacks a blob may be one that was made here.
  if (store.Read(*name).status().code() != StatusCode::kNotFound) return Status::Ok();
  Status pulled = PullWithProgress(*name, pull::PullOptions{}.stall_seconds);
  if (pulled.ok()) return pulled;
  return {pulled.code(),
          StrCat(located.status().message(), "; it was not fetched: ", pulled.message())};
}

Status PullWithProgress(const ModelName& name, int stall_seconds) {
  KVCACHE_ASSIGN_OR_RETURN(const ModelStore store, OpenModelStore());
  PullProgress progress;
  (void)CatchInterrupt();
  Status status = pull::PullModel(store, name,
                                  {.report = [&](const auto& state) { progress.Show(state); },
                                   .cancelled = [] { return Interrupted(); },
                                   .stall_seconds = stall_seconds});
  progress.Clear();
  if (status.code() != StatusCode::kCancelled) return status;
  return {StatusCode::kCancelled, "stopped; the same command continues where this one ended"};
}

}  // namespace kvcache::app
