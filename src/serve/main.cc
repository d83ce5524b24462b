// kvcache serve: the server's program. Exit status 0: ended by a signal; 1: failed, and one line on
// stderr says why; 2: the command line is wrong.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "app/flags/command_line.h"
#include "app/flags/draft_flags.h"
#include "app/flags/engine_flags.h"
#include "app/flags/model_store.h"
#include "app/flags/store_flags.h"
#include "app/terminal/checked_output.h"
#include "base/strings.h"
#include "kvcache_engine/scheduler.h"
#include "platform/mapped_file_faults.h"
#include "platform/system_memory.h"
#include "serve/model_catalog.h"
#include "server/log.h"
#include "server/server.h"

namespace kvcache::serve {
namespace {

struct ServeFlags {
  app::EngineFlags engine;
  app::StoreFlags store;
  std::string draft;  // empty: the DRAFT of a stored model
  std::string api_keys;
  std::string tls_certificate, tls_key;
  std::string volatile_lines;
  bool ignore_images = false;
  std::vector<std::string> origins;
  std::string host = "127.0.0.1";
  int port = 11500;
  std::vector<std::string> models;
  int sequences = 16;
  int most_models = 8;
  int keep_alive = -1;
  int step_ms = SchedulerOptions{}.step_ms;
  int stop_seconds = 5;
  server::LogLevel log_level = server::LogLevel::kInfo;
  server::LogForm log_form = server::LogForm::kText;
};

Result<server::LogLevel> ParseLogLevel(const std::string& text) {
  if (text == "off") return server::LogLevel::kOff;
  if (text == "error") return server::LogLevel::kError;
  if (text == "info") return server::LogLevel::kInfo;
  return Status(StatusCode::kInvalidArgument, Quoted(text) + " is not off, error or info");
}

Result<server::LogForm> ParseLogForm(const std::string& text) {
  if (text == "text") return server::LogForm::kText;
  if (text == "json") return server::LogForm::kJson;
  return Status(StatusCode::kInvalidArgument, Quoted(text) + " is not text or json");
}

void AddFlags(app::FlagSet command, ServeFlags& flags) {
  command
      .AddText(
          "MODEL", &flags.models,
          "a .gguf file, or a name that 'kvcache list' shows; several are loaded when requests "
          "ask for them (default: all that 'kvcache list' shows, and story for requests that "
          "name none)")
      .ValueName("…");
  flags.engine.AddWithoutModel(command);
  flags.store.Add(command);
  const char* const group = "Server";
  command
      .AddNumber("--models", &flags.most_models,
                 "models that are loaded at once; those that were used last stay")
      .Range(1, 1024)
      .Group(group)
      .ValueName("N")
      .ShowDefault();
  command
      .AddNumber("--keep-alive", &flags.keep_alive,
                 "seconds that a model stays loaded without requests; -1: until another one needs "
                 "its place")
      .Range(-1, 1 << 30)
      .Group(group)
      .ValueName("N")
      .ShowDefault();
  command
      .AddText("--host", &flags.host,
               "the IP address to listen on; others than loopback are open "
               "to everyone who reaches it")
      .Group(group)
      .ValueName("ADDRESS")
      .ShowDefault();
  command
      .AddText(
          "--draft", &flags.draft,
          "who proposes tokens, which the model verifies several at a time; answers are the "
          "same: a smaller model with the same vocabulary or a draft head for this model (a .gguf "
          "file, or a name that 'kvcache list' shows), head (the one in the model's file), ngram "
          "(what followed the same tokens before, also in other requests of the same user), or "
          "none (default: the DRAFT of a model that has one)")
      .Group("Speculation")
      .ValueName("MODEL|head|ngram|none");
  command
      .AddText(
          "--api-keys", &flags.api_keys,
          "a file with one key per line; requests then need one ('Authorization: Bearer KEY' or "
          "'x-api-key: KEY'), and users share nothing (default: everyone who reaches the server)")
      .Group(group)
      .ValueName("FILE");
  command
      .AddText(
          "--tls-cert", &flags.tls_certificate,
          "a PEM file with a certificate; the server then speaks HTTPS only; SIGHUP reads it and "
          "its key again")
      .Group(group)
      .ValueName("FILE");
  command.AddText("--tls-key", &flags.tls_key, "a PEM file with the certificate's key")
      .Group(group)
      .ValueName("FILE");
  command
      .AddText("--volatile-lines", &flags.volatile_lines,
               "a file with lines that clients change on every call, such as clocks; they are "
               "removed from conversations or moved to their end, so that prompts share their "
               "beginnings (default: none)")
      .Group(group)
      .ValueName("FILE");
  command
      .AddSwitch("--ignore-images", &flags.ignore_images,
                 "puts a note in the place of pictures, files and sounds in requests; without it "
                 "such requests are refused, because models read text only")
      .Group(group);
  command
      .AddText("--cors", &flags.origins,
               "an origin whose pages may read answers, such as https://chat.example; *: all; may "
               "be given "
               "several times")
      .Group(group)
      .ValueName("ORIGIN");
  command.AddNumber("--port", &flags.port, "the port; 0: any free one")
      .Range(0, 65535)
      .Group(group)
      .ValueName("N")
      .ShowDefault();
  command
      .AddNumber("--sequences", &flags.sequences, "requests that are computed at once; others wait")
      .Range(1, 256)
      .Group(group)
      .ValueName("N")
      .ShowDefault();
  command
      .AddNumber("--step-ms", &flags.step_ms,
                 "milliseconds that prompts, which are read in parts, add at most to each wait for "
                 "a token of another request; less makes long prompts slower")
      .Range(1, SchedulerOptions::kMostStepMs)
      .Group(group)
      .ValueName("MS")
      .ShowDefault();
  command
      .AddNumber("--stop-seconds", &flags.stop_seconds,
                 "after SIGTERM or SIGINT, running requests may end for this long")
      .Range(0, 86400)
      .Group(group)
      .ValueName("N")
      .ShowDefault();
}

void AddLogFlags(app::FlagSet command, ServeFlags& flags) {
  const auto level = [&flags](const std::string& text) -> Status {
    KVCACHE_ASSIGN_OR_RETURN(flags.log_level, ParseLogLevel(text));
    return Status::Ok();
  };
  command
      .AddParsed("--log", level,
                 "what is written to standard error: off, error, or info (default): each request "
                 "with its numbers, and models that come and go; never texts")
      .Group("Server")
      .ValueName("LEVEL");
  const auto form = [&flags](const std::string& text) -> Status {
    KVCACHE_ASSIGN_OR_RETURN(flags.log_form, ParseLogForm(text));
    return Status::Ok();
  };
  command.AddParsed("--log-form", form, "lines of text (default) or json")
      .Group("Server")
      .ValueName("FORM");
}

// Each connection is a descriptor.
void AllowAllDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// The signals that the server waits for: with TLS, SIGHUP says that the certificate has changed; without, it ends
// the server, unless whoever started the server let it be ignored, as nohup does.
class Signals {
 public:
  // Blocks them, so that only Wait takes them. REQUIRES: no thread runs beside the caller's.
  explicit Signals(bool has_tls) : has_tls_(has_tls) {
    struct sigaction inherited {};
    (void)sigaction(SIGHUP, nullptr, &inherited);
    (void)sigemptyset(&set_);
    (void)sigaddset(&set_, SIGINT);
    (void)sigaddset(&set_, SIGTERM);
    if (has_tls || inherited.sa_handler != SIG_IGN) (void)sigaddset(&set_, SIGHUP);
    if (has_tls) (void)std::signal(SIGHUP, SIG_DFL);  // one that is ignored may never come
    (void)pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }

  // Waits for a signal that ends the server.
  void Wait(server::Server& server) const {
    int signal = 0;
    while (sigwait(&set_, &signal) == 0 && has_tls_ && signal == SIGHUP) {
      const Status read = server.ReloadCertificate();
      const char* const outcome = read.ok() ? "read again" : "not read again";
      server::Json event = {{"outcome", outcome}};
      if (!read.ok()) event["error"] = read.message();
      server::LogEvent(read.ok() ? server::LogLevel::kInfo : server::LogLevel::kError,
                       "certificate", event);
    }
  }

  // Ends the process at the next signal that would end the server.
  void EndAtNext() const {
    struct sigaction action {};
    action.sa_handler = [](int) { _exit(1); };
    (void)sigaction(SIGINT, &action, nullptr);
    (void)sigaction(SIGTERM, &action, nullptr);
    if (has_tls_) action.sa_handler = SIG_IGN;
    if (sigismember(&set_, SIGHUP) == 1) (void)sigaction(SIGHUP, &action, nullptr);
    (void)pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
  }

 private:
  const bool has_tls_;
  sigset_t set_{};
};

// Returns a function that asks each store what it holds; none if there are no stores.
std::function<std::vector<server::TierBytes>()> AskTiers(
    const std::vector<app::StoreFlags::OpenStore>& stores) {
  if (stores.empty()) return nullptr;
  return [stores] {
    std::vector<server::TierBytes> tiers;
    for (const auto& [name, store] : stores) {
      const auto stats = store->Usage();
      if (!stats.ok()) continue;
      tiers.push_back({.tier = app::StoreFlags::TierOf(name),
                       .held = stats->held_bytes,
                       .budget = stats->budget_bytes,
                       .evicted = stats->evicted});
    }
    return tiers;
  };
}

// Opens models as the flags say. A file for --draft is for the first model; others, and without the flag all,
// have the DRAFT of the stored model, if they can use it. With "head", models that have none go without.
class Opener {
 public:
  Opener(const ServeFlags& flags, std::shared_ptr<Store> store)
      : flags_(flags), store_(std::move(store)) {}

  Result<std::shared_ptr<Engine>> Open(const server::ServedModel& model, int context) const {
    const bool is_first = model.path == first_path;
    if (flags_.draft == "head" || (is_first && app::NamesDraftFile(flags_.draft))) {
      auto opened = OpenWith(model, context, flags_.draft, "--draft");
      if (opened.ok() || is_first) return opened;
    }
    if (model.draft.empty()) {
      return OpenWith(model, context, "none", "");
    }
    auto opened = OpenWith(model, context, model.draft, "DRAFT");
    if (opened.ok()) return opened;
    auto without = OpenWith(model, context, "none", "");
    if (without.ok()) {
      server::LogEvent(server::LogLevel::kError, "draft not used",
                       {{"model", model.name}, {"reason", std::string(opened.status().message())}});
    }
    return without;
  }

  std::string first_path{};

 private:
  // `said_by`: what named the draft, for errors.
  Result<std::shared_ptr<Engine>> OpenWith(const server::ServedModel& model, int context,
                                           const std::string& draft, const char* said_by) const {
    app::EngineFlags::ForRequests wanted{.path = model.path,
                                         .sequences = flags_.sequences,
                                         .pool_bytes = flags_.store.cache_budget(),
                                         .context = context};
    auto head = app::FindDraftHead(draft, model.path);
    if (!head.ok()) return std::move(head).TakeStatus().WithContext(said_by);
    wanted.draft_head = std::move(*head);
    KVCACHE_ASSIGN_OR_RETURN(std::shared_ptr<Engine> engine, flags_.engine.OpenForRequests(wanted));
    if (app::NamesDraftFile(draft) && wanted.draft_head.empty()) {
      KVCACHE_RETURN_IF_ERROR(UseDraftModel(*engine, draft).WithContext(said_by));
    }
    app::StoreFlags::Use(*engine, store_);
    return engine;
  }

  // Its memory is a part of the model's budget, at most half of it, and leaves the model what a request needs.
  Status UseDraftModel(Engine& engine, const std::string& draft) const {
    KVCACHE_ASSIGN_OR_RETURN(const std::string path, app::FindModel(draft));
    KVCACHE_ASSIGN_OR_RETURN(std::shared_ptr<Engine> small,
                             Engine::Open(path, {.threads = engine.options().threads,
                                                 .context = engine.context(),
                                                 .max_sequences = engine.options().max_sequences}));
    std::int64_t budget = flags_.store.cache_budget();
    if (budget == 0) budget = AvailableMemory().value_or(0) / 2;
    std::size_t models = static_cast<std::size_t>(flags_.most_models);
    if (!flags_.models.empty()) models = std::min(models, flags_.models.size());
    const std::int64_t own = budget / static_cast<std::int64_t>(models);
    const std::int64_t most = std::min(own / 2, own - Scheduler::LeastBudget(engine));
    return engine.UseDraftModel(std::move(small), std::max<std::int64_t>(most, 1))
        .WithContext(path);
  }

  const ServeFlags& flags_;
  const std::shared_ptr<Store> store_;  // all models share it
};

Status Serve(ServeFlags& flags, const Signals& signals) {
  KVCACHE_RETURN_IF_ERROR(server::StartLog(flags.log_level, flags.log_form));
  const std::vector<app::StoreFlags::OpenStore> stores =
      flags.store.OpenEach(app::StoreFlags::Failed::kLater);
  Opener opener(flags, app::StoreFlags::Combine(stores));
  KVCACHE_ASSIGN_OR_RETURN(
      auto models, MakeCatalog({.models = flags.models,
                                .uses_drafts = flags.draft != "none" && flags.draft != "ngram",
                                .context = flags.engine.context(),
                                .open = [&](const auto& model, int context) {
                                  return opener.Open(model, context);
                                }}));
  const server::ServedModel first = models->List().front();
  opener.first_path = first.path;
  std::optional<server::ApiKeys> keys;
  if (!flags.api_keys.empty()) {
    auto read = server::ApiKeys::Read(flags.api_keys);
    if (!read.ok()) return std::move(read).TakeStatus().WithContext("--api-keys");
    keys = std::move(read).value();
  }
  server::VolatileLines volatile_lines;
  if (!flags.volatile_lines.empty()) {
    auto read = server::VolatileLines::Read(flags.volatile_lines);
    if (!read.ok()) return std::move(read).TakeStatus().WithContext("--volatile-lines");
    volatile_lines = std::move(read).value();
  }
  const server::ServerOptions options{.http = {.address = flags.host,
                                               .port = static_cast<std::uint16_t>(flags.port),
                                               .tls_certificate = flags.tls_certificate,
                                               .tls_key = flags.tls_key,
                                               .allowed_origins = flags.origins},
                                      .memory_budget = flags.store.cache_budget(),
                                      .step_ms = flags.step_ms,
                                      .look_up_drafts = flags.draft == "ngram",
                                      .most_models = static_cast<std::size_t>(flags.most_models),
                                      .models_bytes = AvailableMemory().value_or(0) / 2,
                                      .stay_seconds = flags.keep_alive < 0
                                                          ? server::kForever
                                                          : static_cast<double>(flags.keep_alive),
                                      .ask_tiers = AskTiers(stores),
                                      .volatile_lines = std::move(volatile_lines),
                                      .ignore_images = flags.ignore_images,
                                      .keys = std::move(keys)};
  KVCACHE_ASSIGN_OR_RETURN(auto server, server::Server::Start(std::move(models), options));
  const bool v6 = flags.host.find(':') != std::string::npos;
  (void)std::fprintf(stderr, "kvcache: serving %s at http%s://%s%s%s:%d\n", first.name.c_str(),
                     flags.tls_key.empty() ? "" : "s", v6 ? "[" : "", flags.host.c_str(),
                     v6 ? "]" : "", server->port());
  signals.Wait(*server);
  signals.EndAtNext();
  (void)std::fprintf(stderr, "kvcache: stopping\n");
  server->Stop(std::chrono::seconds(flags.stop_seconds));
  server.reset();  // writes what the stores lack
  return Status::Ok();
}

int Main(int argc, char** argv) {
  (void)std::signal(SIGPIPE, SIG_IGN);
  ReportCutFiles();
  AllowAllDescriptors();
  app::CommandLine line("kvcache", "Runs language models (GGUF files) on the CPU.",
                        "kvcache " KVCACHE_VERSION);
  ServeFlags flags;
  const app::FlagSet command =
      line.AddCommand("serve", "Serve models to clients of OpenAI's and other APIs");
  AddFlags(command, flags);
  AddLogFlags(command, flags);
  std::vector<std::string> words = {"serve"};
  words.insert(words.end(), argv + 1, argv + argc);
  const app::ParsedLine parsed = line.Parse(words);
  if (parsed.outcome == app::ParseOutcome::kShown) return 0;
  if (parsed.outcome == app::ParseOutcome::kWrong) {
    (void)std::fprintf(stderr, "kvcache serve: %s; see 'kvcache serve --help'\n",
                       OneLine(parsed.error).c_str());
    return 2;
  }
  const Status status = Serve(flags, Signals(!flags.tls_key.empty()));
  server::EndLog();
  if (status.ok()) return 0;
  (void)std::fprintf(stderr, "kvcache serve: %s\n", OneLine(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace kvcache::serve

int main(int argc, char** argv) {
  try {
    return kvcache::app::CheckOutput("kvcache serve", kvcache::serve::Main(argc, argv));
  } catch (const std::exception& error) {  // std::bad_alloc and the like, from libraries
    (void)std::fprintf(stderr, "kvcache serve: %s\n", kvcache::OneLine(error.what()).c_str());
    return 1;
  }
}
