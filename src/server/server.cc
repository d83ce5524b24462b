#include "server/server.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "server/access.h"
#include "server/api/routes.h"
#include "server/http/cors.h"
#include "server/route_runner.h"
#include "server/router.h"

namespace kvcache::server {
namespace {

class ServerImpl final : public Server, private HttpHandler {
 public:
  ServerImpl(std::unique_ptr<ModelSource> source, const ServerOptions& options)
      : access_(options.http, options.keys),
        allowed_origins_(options.http.allowed_origins),
        tiers_(options.ask_tiers),
        runner_({.max_queued = options.max_queued,
                 .queued_bytes = options.queued_bytes,
                 .volatile_lines = options.volatile_lines,
                 .ignore_images = options.ignore_images}),
        host_(ModelHost::Make(std::move(source),
                              {.max_loaded = options.max_models,
                               .max_bytes = options.models_bytes,
                               .stay_seconds = options.stay_seconds,
                               .max_running = options.max_running,
                               .dialect = options.dialect,
                               .scheduler = {.step_ms = options.step_ms,
                                             .budget_bytes = options.memory_budget,
                                             .look_up_drafts = options.look_up_drafts}})) {}
  ~ServerImpl() override {
    http_.reset();
    runner_.End();
  }

  // Loads the first model, so that its errors are the server's.
  Status LoadFirst() {
    const std::vector<ServedModel> models = host_->source().List();
    if (models.empty()) return {StatusCode::kNotFound, "there is no model to serve"};
    std::mutex mutex;
    std::condition_variable done;
    std::optional<Status> status;
    const auto ready = [&](auto lease) {
      const std::lock_guard lock(mutex);
      status = lease.ok() ? Status::Ok() : std::move(lease).TakeStatus();
      done.notify_one();
    };
    if (models.front().purpose == FilePurpose::kGeneration) {
      host_->Acquire(models.front(), std::nullopt, ready);
    } else {
      host_->AcquireEmbedder(models.front(), std::nullopt, ready);
    }
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return status.has_value(); });
    return std::move(*status);
  }

  Status Listen(const HttpOptions& options) {
    KVCACHE_ASSIGN_OR_RETURN(http_, HttpServer::Start(options, *this));
    return Status::Ok();
  }

  void Stop(std::chrono::milliseconds max) override {
    http_->StopAccepting();
    host_->StopAccepting();
    const auto end = std::chrono::steady_clock::now() + max;
    const auto wait = [&](std::chrono::steady_clock::time_point until) {
      while (!(runner_.idle() && host_->idle())) {
        if (std::chrono::steady_clock::now() >= until) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    };
    wait(end);
    host_->EndAll();
    wait(std::chrono::steady_clock::now() + kLastAnswers);
    (void)http_->WaitUntilSent(kLastAnswers);
  }

  Status ReloadCertificate() override { return http_->ReloadCertificate(); }
  std::uint16_t port() const override { return http_->port(); }
  ModelHost& host() override { return *host_; }

 private:
  // Requests that were ended have this long to be answered, and the answers to be sent.
  static constexpr std::chrono::milliseconds kLastAnswers{1000};

  void Handle(HttpRequest request, Reply reply) override {
    RouteMatch match = router_.Find(request.method, request.path);
    ServerContext context{.host = *host_,
                          .responses = responses_,
                          .tiers = tiers_,
                          .requests = requests_,
                          .api = ApiOf(request.path),
                          .path = request.path,
                          .parameter = std::move(match.parameter),
                          .query = request.query,
                          .reply = std::move(reply)};
    if (const auto error = access_.CheckHost(request)) return context.Refuse(*error);
    if (IsPreflight(request, allowed_origins_)) return SendPreflight(request, *context.reply);
    if (const auto error = access_.Identify(request, match.audience, &context.user)) {
      return context.Refuse(*error);
    }
    if (!IsRead(request.method)) {
      auto recorded = std::make_shared<RecordedReply>(std::move(context.reply), requests_, request,
                                                      context.user);
      context.entry = recorded->entry();
      context.reply = std::move(recorded);
    }
    if (match.route == nullptr) return SendNoRoute(match, context, request.method);
    if (std::holds_alternative<ChangesModels>(match.route->kind)) {
      if (const auto error = access_.CheckChange(request, context.user)) {
        return context.Refuse(*error);
      }
    }
    runner_.Run(context, *match.route, std::move(request));
  }

  std::string ErrorBody(std::string_view path, int status, std::string_view message) override {
    return Dump(ErrorJson(ApiOf(path), {.status = status, .message = std::string(message)}));
  }

  const Router router_{AllRoutes()};
  ResponseStore responses_;  // before the host: answers of the models are put there
  RequestLog requests_;      // the same
  const Access access_;
  const std::vector<std::string> allowed_origins_;
  TierSampler tiers_;
  RouteRunner runner_;
  std::unique_ptr<ModelHost> host_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::Start(std::unique_ptr<ModelSource> source,
                                              const ServerOptions& options) {
  auto server = std::make_unique<ServerImpl>(std::move(source), options);
  KVCACHE_RETURN_IF_ERROR(server->LoadFirst());
  KVCACHE_RETURN_IF_ERROR(server->Listen(options.http));
  return std::unique_ptr<Server>(std::move(server));
}

Result<std::unique_ptr<Server>> Server::Start(Engine& engine, ServedModel model,
                                              const ServerOptions& options) {
  return Start(OneModel(engine, std::move(model)), options);
}

}  // namespace kvcache::server
