#include "app/flags/fetch_flags.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "app/flags/draft_flags.h"
#include "app/flags/model_store.h"
#include "app/terminal/pull_progress.h"
#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "base/strings.h"
#include "pull/pull.h"

namespace kvcache::app {
namespace {

// Returns whether a variable says yes. Values that are no word for "no" count as yes, so that a mistake asks nobody.
bool IsSet(const char* name) {
  const char* const value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  constexpr std::array<std::string_view, 5> kNo = {"", "0", "false", "off", "no"};
  return std::find(kNo.begin(), kNo.end(), text) == kNo.end();
}

// Returns whether a text with slashes is rather the path of a file that is not there than a name: its first part is a folder
// here, or stands where a host would and is none.
bool LooksLikePath(const std::string& model) {
  const std::size_t slash = model.find('/');
  if (slash == std::string::npos) return false;
  const std::string first = model.substr(0, slash);
  std::error_code ignored;
  if (std::filesystem::is_directory(first, ignored)) return true;
  const bool has_host = model.find('/', slash + 1) != std::string::npos;
  return has_host && first.find_first_of(".:") == std::string::npos && first != "localhost";
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
  if (model.empty() || offline() || LooksLikePath(model)) return Status::Ok();
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

Status FetchFlags::FetchDraft(const std::string& draft) const {
  return NamesDraftFile(draft) ? Fetch(draft).WithContext("--draft") : Status::Ok();
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
