#include "app/serve/serve.h"

#include <sys/resource.h>
#include <atomic>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/serve/model_catalog.h"
#include "app/serve/model_opener.h"
#include "app/serve/signals.h"
#include "app/terminal/notes.h"
#include "server/log.h"
#include "server/server.h"

namespace kvcache::app {
namespace {

server::LogLevel LevelOf(const ServeFlags& flags) {
  if (flags.log == "off") return server::LogLevel::kOff;
  return flags.log == "error" ? server::LogLevel::kError : server::LogLevel::kInfo;
}

server::LogForm FormOf(const ServeFlags& flags) {
  return flags.log_form == "json" ? server::LogForm::kJson : server::LogForm::kText;
}

// Each connection is a descriptor.
void AllowAllDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// Returns a function that asks each store what it holds; none if there are no stores.
std::function<std::vector<server::TierBytes>()> AskTiers(
    const std::vector<StoreFlags::OpenStore>& stores) {
  if (stores.empty()) return nullptr;
  return [stores] {
    std::vector<server::TierBytes> tiers;
    for (const auto& [name, store] : stores) {
      const auto stats = store->Usage();
      if (!stats.ok()) continue;
      tiers.push_back({.tier = StoreFlags::TierOf(name),
                       .held = stats->held_bytes,
                       .budget = stats->budget_bytes,
                       .evicted = stats->evicted});
    }
    return tiers;
  };
}

// Reads the file that a flag names, if it is given. Errors name the flag.
template <typename Value>
Status ReadFile(const char* flag, const std::string& path, Value* value) {
  if (path.empty()) return Status::Ok();
  auto read = Value::Read(path);
  if (!read.ok()) return std::move(read).TakeStatus().WithContext(flag);
  *value = std::move(read).value();
  return Status::Ok();
}

Result<server::ServerOptions> OptionsOf(const ServeFlags& flags,
                                        const std::vector<StoreFlags::OpenStore>& stores) {
  const MemoryPlan plan = flags.store.plan();
  const bool stays = flags.keep_alive < 0;
  server::ServerOptions options{
      .http = {.address = flags.host,
               .port = static_cast<std::uint16_t>(flags.port),
               .tls_certificate = flags.tls_certificate,
               .tls_key = flags.tls_key,
               .allowed_origins = flags.origins},
      .memory_budget = plan.CacheBudget(),
      .step_ms = flags.step_ms,
      .look_up_drafts = flags.draft == "ngram",
      .max_models = static_cast<std::size_t>(flags.max_models),
      .models_bytes = plan.WeightBytes(),
      .stay_seconds = stays ? server::kForever : static_cast<double>(flags.keep_alive),
      .dialect = flags.dialect,
      .ask_tiers = AskTiers(stores),
      .ignore_images = flags.ignore_images};
  server::ApiKeys keys;
  KVCACHE_RETURN_IF_ERROR(ReadFile("--api-keys", flags.api_keys, &keys));
  if (!flags.api_keys.empty()) options.keys = std::move(keys);
  KVCACHE_RETURN_IF_ERROR(
      ReadFile("--volatile-lines", flags.volatile_lines, &options.volatile_lines));
  return options;
}

void PrintAddress(const ServeFlags& flags, const std::string& model, int port) {
  const bool v6 = flags.host.find(':') != std::string::npos;
  (void)std::fprintf(stderr, "kvcache: serving %s at http%s://%s%s%s:%d\n", model.c_str(),
                     flags.tls_key.empty() ? "" : "s", v6 ? "[" : "", flags.host.c_str(),
                     v6 ? "]" : "", port);
}

void ReloadCertificate(server::Server& server) {
  const Status read = server.ReloadCertificate();
  server::Json event = {{"outcome", read.ok() ? "read again" : "not read again"}};
  if (!read.ok()) event["error"] = read.message();
  server::LogEvent(read.ok() ? server::LogLevel::kInfo : server::LogLevel::kError, "certificate",
                   event);
}

void LogPackedWeights(packed::ModelPanels::Report report, const std::string& text) {
  const bool is_problem = report == packed::ModelPanels::Report::kProblem;
  server::LogEvent(is_problem ? server::LogLevel::kError : server::LogLevel::kInfo,
                   "packed weights", {{"text", text}});
}

Status ServeUntilSignal(const ServeFlags& flags, const Signals& signals) {
  KVCACHE_RETURN_IF_ERROR(server::StartLog(LevelOf(flags), FormOf(flags)));
  const std::vector<StoreFlags::OpenStore> stores =
      flags.store.OpenEach(StoreFlags::Failed::kLater);
  flags.store.UsePackedWeights(LogPackedWeights);
  std::atomic<bool> stopping{false};
  ModelOpener opener(flags, StoreFlags::Combine(stores));
  KVCACHE_ASSIGN_OR_RETURN(
      auto models,
      MakeCatalog(
          {.models = flags.models,
           .adapters = flags.adapters.given(),
           .uses_drafts = flags.draft != "none" && flags.draft != "ngram",
           .context = flags.engine.context(),
           .is_offline = flags.fetch.offline(),
           .stopping = [&] { return stopping.load(); },
           .open = [&](const auto& model, int context) { return opener.Open(model, context); },
           .open_embedder = [&](const auto& model,
                                int context) { return opener.OpenEmbedder(model, context); }}));
  const server::ServedModel first = models->List().front();
  opener.SetFirst(first.path);
  KVCACHE_ASSIGN_OR_RETURN(const server::ServerOptions options, OptionsOf(flags, stores));
  KVCACHE_ASSIGN_OR_RETURN(auto server, server::Server::Start(std::move(models), options));
  ShowNotes();
  PrintAddress(flags, first.name, server->port());
  signals.Wait([&] { ReloadCertificate(*server); });
  stopping.store(true);
  signals.EndAtNext();
  (void)std::fprintf(stderr, "kvcache: stopping\n");
  server->Stop(std::chrono::seconds(flags.stop_seconds));
  server.reset();  // writes what the stores lack
  return Status::Ok();
}

}  // namespace

Status Serve(const ServeFlags& flags) {
  AllowAllDescriptors();
  for (const std::string& model : flags.models) KVCACHE_RETURN_IF_ERROR(flags.fetch.Fetch(model));
  KVCACHE_RETURN_IF_ERROR(flags.fetch.FetchDraft(flags.draft));
  const Signals signals(!flags.tls_key.empty());  // before any thread starts
  Status status = ServeUntilSignal(flags, signals);
  server::EndLog();
  return status;
}

}  // namespace kvcache::app
