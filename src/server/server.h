// Serves HTTP APIs for text generation.
//
// Thread safety: one thread at a time, except that requests come from anywhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "server/api_keys.h"
#include "server/http/http_server.h"
#include "server/models/model_host.h"
#include "server/request/volatile_lines.h"
#include "server/tier_sampler.h"

namespace kvcache::server {

struct ServerOptions {
  HttpOptions http{};
  std::int64_t max_running = 512;  // requests at a time, waiting ones included
  std::int64_t memory_budget = 0;  // bytes, as SchedulerOptions::budget_bytes
  int step_ms = 100;               // as in SchedulerOptions
  bool look_up_drafts =
      false;  // as in SchedulerOptions; an engine's draft head or model is used always
  // As in ModelHostOptions.
  std::size_t max_models = 8;
  std::int64_t models_bytes = 0;
  double stay_seconds = kForever;
  std::string dialect{};
  // Requests that wait to be read, and the bytes of their bodies.
  std::size_t max_queued = 256;
  std::size_t queued_bytes = std::size_t{64} << 20;
  // Asks the stores what they hold; empty: there are none. Called on a thread of its own.
  std::function<std::vector<TierBytes>()> ask_tiers{};
  // Lines that are taken out of conversations.
  VolatileLines volatile_lines{};
  bool ignore_images = false;  // pictures in requests become notes; else such requests are refused
  // Who may use the server; none: everyone who reaches it, as one administrator.
  std::optional<ApiKeys> keys{};
};

class Server {
 public:
  // Starts to serve the models of a source, and loads the first. Errors: those of HttpServer::Start, of
  // ModelSource::Open and of TextService::Make.
  static Result<std::unique_ptr<Server>> Start(std::unique_ptr<ModelSource> source,
                                               const ServerOptions& options);
  // Starts to serve `engine`, which must outlive the server.
  static Result<std::unique_ptr<Server>> Start(Engine& engine, ServedModel model,
                                               const ServerOptions& options);
  // Ends all requests.
  virtual ~Server() = default;
  // Takes no more connections and requests, waits for those that run, for at most `max`, and ends the
  // others with status 503 or an error event.
  virtual void Stop(std::chrono::milliseconds max) = 0;
  // As HttpServer::ReloadCertificate.
  virtual Status ReloadCertificate() = 0;
  virtual std::uint16_t port() const = 0;
  virtual ModelHost& host() = 0;
};

}  // namespace kvcache::server
