#include "server/server.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/strings.h"
#include "engine/chat/json_text.h"
#include "server/http/url_text.h"
#include "server/http/worker.h"
#include "server/request/pictures.h"

namespace kvcache::server {
namespace {

using Reply = std::shared_ptr<HttpReply>;

char ToLower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

// Returns whether a Host header names this machine's loopback. A page of another site cannot.
bool IsLoopbackName(std::string_view host) {
  const std::size_t bracket = host.starts_with('[') ? host.find(']') : host.npos;
  const std::size_t end =
      std::min(bracket == host.npos ? host.find(':') : bracket + 1, host.size());
  const std::string_view port = host.substr(end);
  if (!port.empty() && (port[0] != ':' || port.find_first_not_of("0123456789", 1) != port.npos)) {
    return false;
  }
  std::string name(host.substr(0, end));
  std::transform(name.begin(), name.end(), name.begin(), ToLower);
  return host.empty() || name == "localhost" || name == "127.0.0.1" || name == "[::1]";
}

class ServerImpl final : public Server, private HttpHandler {
 public:
  ServerImpl(std::unique_ptr<ModelSource> source, const ServerOptions& options)
      : keys_(options.keys),
        http_options_(options.http),
        only_loopback_(options.http.address.starts_with("127.") || options.http.address == "::1"),
        volatile_lines_(options.volatile_lines),
        ignore_images_(options.ignore_images),
        tiers_(options.ask_tiers),
        worker_(options.most_queued, options.queued_bytes),
        manager_(options.most_queued, options.queued_bytes),
        host_(ModelHost::Make(std::move(source),
                              {.most_loaded = options.most_models,
                               .most_bytes = options.models_bytes,
                               .stay_seconds = options.stay_seconds,
                               .most_running = options.most_running,
                               .scheduler = {.step_ms = options.step_ms,
                                             .budget_bytes = options.memory_budget,
                                             .look_up_drafts = options.look_up_drafts}})) {}
  ~ServerImpl() override {
    http_.reset();
    manager_.End();
    worker_.End();
  }

  // Loads the first model, so that its errors are the server's.
  Status LoadFirst() {
    const std::vector<ServedModel> models = host_->source().List();
    if (models.empty()) return {StatusCode::kNotFound, "there is no model to serve"};
    std::mutex mutex;
    std::condition_variable done;
    std::optional<Status> status;
    host_->Acquire(models.front(), std::nullopt, [&](Result<ModelLease> lease) {
      const std::lock_guard lock(mutex);
      status = lease.ok() ? Status::Ok() : std::move(lease).TakeStatus();
      done.notify_one();
    });
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return status.has_value(); });
    return std::move(*status);
  }

  Status Listen(const HttpOptions& options) {
    KVCACHE_ASSIGN_OR_RETURN(http_, HttpServer::Start(options, *this));
    return Status::Ok();
  }

  void Stop(std::chrono::milliseconds most) override {
    http_->StopAccepting();
    host_->StopAccepting();
    const auto end = std::chrono::steady_clock::now() + most;
    const auto wait = [&](std::chrono::steady_clock::time_point until) {
      while (!(worker_.idle() && manager_.idle() && host_->idle())) {
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

  struct Route {
    std::string_view path;
    void (*get)(const ServerContext&, const Reply&) = nullptr;
    void (*post)(const RouteContext&, const Json&, const Reply&) = nullptr;
    // Changes the list of models.
    void (*manage)(const ServerContext&, const Json&, const Reply&) = nullptr;
    std::string_view method = "POST";  // of `post` and `manage`
  };

  // A request for a model.
  struct Asked {
    const Route& route;
    VolatileCounts volatile_lines{};
  };

  static const std::vector<Route>& Routes();

  void Handle(HttpRequest request, Reply reply) override {
    const Api api = ApiOf(request.path);
    if (only_loopback_ && !IsLoopbackName(request.host)) {
      return SendError(*reply, api,
                       {.status = 403,
                        .message = StrCat("the host ", Quoted(request.host),
                                          " is not a loopback name, and this server is local")});
    }
    if (request.method == "OPTIONS" && AllowsOrigin(http_options_, request.origin)) {
      return SendPreflight(request, *reply);
    }
    const std::optional<User> user = UserOf(request);
    if (!user) {
      return SendError(*reply, api,
                       {.status = 401,
                        .message = request.authorization.empty() && request.api_key.empty()
                                       ? "the request needs an API key"
                                       : "the API key is unknown",
                        .code = "invalid_api_key"});
    }
    if (!user->is_admin && request.path == "/metrics") {
      return SendError(*reply, api,
                       {.status = 403, .message = "/metrics needs an administrator's key"});
    }
    ServerContext context{*host_, responses_, tiers_, requests_, *user, request.query};
    const bool get = request.method == "GET" || request.method == "HEAD";
    if (!get) {
      auto recorded = std::make_shared<RecordedReply>(std::move(reply), requests_, request, *user);
      context.entry = recorded->entry();
      reply = std::move(recorded);
    }
    if (IsStoredResponse(request.path)) return HandleStored(context, std::move(request), reply);
    if (HandleNamed(context, request, *reply)) return;
    if (IsPageFile(request.path)) {
      if (get) return SendPageFile(request.path, *reply);
      return SendNotAllowed(request, "GET, HEAD", *reply);
    }
    for (const Route& route : Routes()) {
      if (route.path != request.path) continue;
      if (get && route.get != nullptr) return route.get(context, reply);
      const bool may_have_body = route.post != nullptr || route.manage != nullptr;
      if (may_have_body && request.method == route.method) {
        if (route.manage != nullptr && !MayManage(request, *user)) {
          return SendError(*reply, api,
                           {.status = 403,
                            .message = "only this machine or an administrator's key may change the "
                                       "list of models"});
        }
        return Read(context, route, std::move(request), std::move(reply));
      }
      return SendNotAllowed(request, route.get != nullptr ? "GET, HEAD" : std::string(route.method),
                            *reply);
    }
    SendError(*reply, api,
              {.status = 404, .message = StrCat("there is no route ", Quoted(request.path))});
  }

  void HandleStored(const ServerContext& context, HttpRequest request, const Reply& reply) {
    const std::size_t bytes = request.path.size();
    const bool added = worker_.Add(bytes, [context, request = std::move(request), reply] {
      HandleStoredResponse(context, request, *reply);
    });
    if (!added) SendBusy(*reply, Api::kOpenAi);
  }

  static void SendBusy(HttpReply& reply, Api api) {
    SendError(reply, api,
              {.status = 503, .message = "too many requests wait to be read; try again later"});
  }

  // Answers requests for one model. Returns whether it is one.
  bool HandleNamed(const ServerContext& context, const HttpRequest& request,
                   HttpReply& reply) const {
    constexpr std::string_view kModels = "/v1/models/";
    if (!request.path.starts_with(kModels)) return false;
    if (request.method != "GET" && request.method != "HEAD") {
      SendNotAllowed(request, "GET, HEAD", reply);
      return true;
    }
    const auto model = host_->source().Find(PercentDecoded(request.path.substr(kModels.size())));
    if (model.ok()) {
      SendJson(reply, ModelJson(context, *model));
    } else {
      SendNoModel(reply, Api::kOpenAi, model.status());
    }
    return true;
  }

  // With keys, administrators may; without, whoever is on this machine, but no page of another site that
  // a browser here shows.
  bool MayManage(const HttpRequest& request, const User& user) const {
    if (keys_) return user.is_admin;
    const char* const scheme = http_options_.tls_key.empty() ? "http://" : "https://";
    const bool is_foreign = !request.origin.empty() && request.origin != scheme + request.host;
    return request.from_loopback && (!is_foreign || AllowsOrigin(http_options_, request.origin));
  }

  static void SendNoModel(HttpReply& reply, Api api, const Status& status) {
    ApiError error = FromStatus(status);
    error.param = "model";
    if (error.status == 404) error.code = "model_not_found";
    SendError(reply, api, error);
  }

  // Returns the user with the request's key; none if it has to have one.
  std::optional<User> UserOf(const HttpRequest& request) const {
    if (!keys_) return User{.is_admin = true};
    // Whoever starts servers asks whether they run. The page asks for a key itself.
    const std::string& path = request.path;
    if (path == "/health" || path == "/v1/health" || IsPageFile(path)) return User{};
    std::string_view key = request.api_key;
    constexpr std::string_view kBearer = "bearer ";
    std::string scheme = request.authorization.substr(0, kBearer.size());
    std::transform(scheme.begin(), scheme.end(), scheme.begin(), ToLower);
    if (scheme == kBearer) key = std::string_view(request.authorization).substr(kBearer.size());
    const User* const user = keys_->Find(key);
    return user == nullptr ? std::nullopt : std::optional(*user);
  }

  // Says to a browser what a page of another origin may send.
  static void SendPreflight(const HttpRequest& request, HttpReply& reply) {
    const bool plain = std::all_of(request.asked_headers.begin(), request.asked_headers.end(),
                                   [](char c) { return c >= ' ' && c <= '~'; });
    HttpHeaders headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE"},
                           {"Access-Control-Max-Age", "86400"}};
    if (plain && !request.asked_headers.empty()) {
      headers.emplace_back("Access-Control-Allow-Headers", request.asked_headers);
    }
    reply.Send(204, "", std::move(headers));
  }

  void Read(const ServerContext& context, const Route& route, HttpRequest request, Reply reply) {
    const Api of = ApiOf(request.path);
    const std::size_t bytes = request.body.size();
    const Reply refused = reply;
    Worker& worker = route.manage != nullptr ? manager_ : worker_;
    const bool added = worker.Add(bytes, [this, context, &route, request = std::move(request),
                                          reply = std::move(reply)] {
      const Api api = ApiOf(request.path);
      auto body = ParseJson(request.body);
      if (!body.ok()) return SendError(*reply, api, FromStatus(body.status()));
      if (!body->is_object()) {
        return SendError(*reply, api, {.message = "the request is not a JSON object"});
      }
      if (route.manage != nullptr) return route.manage(context, *body, reply);
      if (ignore_images_) ReplacePictures(*body);
      const bool is_message = route.path == "/api/generate" && body->value("raw", Json()) != true;
      const VolatileCounts lines =
          volatile_lines_.Apply(*body, is_message ? PromptUse::kMessage : PromptUse::kRaw);
      WithModel(context, {route, lines}, std::make_shared<const Json>(std::move(*body)),
                request.body.size(), reply);
    });
    if (!added) SendBusy(*refused, of);
  }

  // Goes on when the request's model is loaded.
  void WithModel(const ServerContext& context, const Asked& asked,
                 const std::shared_ptr<const Json>& body, std::size_t bytes, const Reply& reply) {
    const Route& route = asked.route;
    const Api api = ApiOf(route.path);
    Fields fields(*body);
    const std::string name = fields.Text("model", fields.Text("name"));
    if (!fields.ok()) return SendError(*reply, api, FromFields(fields));
    auto model = name.empty() ? First() : host_->source().Find(name);
    if (!model.ok()) return SendNoModel(*reply, api, model.status());
    if (!name.empty()) model->name = name;  // answers have the name that was asked for
    context.entry->UseModel(model->name);
    std::optional<double> stay_seconds;
    if (api == Api::kOllama) {
      const auto read = ReadKeepAlive(*body);
      if (!read.ok()) return SendError(*reply, api, FromStatus(read.status()));
      // Among users with keys, how long a model stays is the administrator's.
      if (context.user.is_admin) stay_seconds = *read;
      const bool chat = route.path == "/api/chat";
      const bool generates = chat || route.path == "/api/generate";
      if (generates && OllamaOnlyLoads(context, *model, chat, *body, reply)) return;
    }
    host_->Acquire(
        *model, stay_seconds,
        [this, context, asked, body, bytes, reply, model = *model](Result<ModelLease> lease) {
          if (!lease.ok()) {
            return SendError(*reply, ApiOf(asked.route.path), FromStatus(lease.status()));
          }
          worker_.GoOn(bytes, [context, asked, body, reply, model, lease = std::move(*lease)] {
            RouteContext with_model(context, model, lease);
            with_model.volatile_lines = asked.volatile_lines;
            asked.route.post(with_model, *body, reply);
          });
        });
  }

  Result<ServedModel> First() {
    std::vector<ServedModel> models = host_->source().List();
    if (models.empty()) return Status(StatusCode::kNotFound, "the server has no model");
    return std::move(models.front());
  }

  std::string ErrorBody(std::string_view path, int status, std::string_view message) override {
    return ErrorJson(ApiOf(path), {.status = status, .message = std::string(message)});
  }

  ResponseStore responses_;  // first: answers of the models are put there
  RequestLog requests_;      // the same
  std::optional<ApiKeys> keys_;
  HttpOptions http_options_;
  bool only_loopback_;
  VolatileLines volatile_lines_;
  bool ignore_images_;
  TierSampler tiers_;
  Worker worker_;   // reads requests: a large prompt takes long to encode
  Worker manager_;  // changes the list of models: weights take long to copy
  std::unique_ptr<ModelHost> host_;
  std::unique_ptr<HttpServer> http_;
};

const std::vector<ServerImpl::Route>& ServerImpl::Routes() {
  static const std::vector<Route> routes = {
      {.path = "/state", .get = PageState},
      {.path = "/state/prefix", .get = PagePrefix},
      {.path = "/health", .get = Health},
      {.path = "/metrics", .get = Metrics},
      {.path = "/tokenize", .post = Tokenize},
      {.path = "/detokenize", .post = Detokenize},
      {.path = "/apply-template", .post = ApplyTemplate},
      {.path = "/probe", .post = Probe},
      {.path = "/slots", .get = Slots},
      {.path = "/api/version", .get = Version},
      {.path = "/api/tags", .get = OllamaTags},
      {.path = "/api/ps", .get = OllamaRunning},
      {.path = "/api/show", .post = OllamaShow},
      {.path = "/api/create", .manage = OllamaCreate},
      {.path = "/api/copy", .manage = OllamaCopy},
      {.path = "/api/delete", .manage = OllamaDelete, .method = "DELETE"},
      {.path = "/api/chat", .post = OllamaChat},
      {.path = "/api/generate", .post = OllamaGenerate},
      {.path = "/completion", .post = LlamaCppCompletion},
      {.path = "/completions", .post = LlamaCppCompletions},
      {.path = "/infill", .post = LlamaCppInfill},
      {.path = "/props", .get = LlamaCppProps},
      {.path = "/models", .get = Models},
      {.path = "/chat/completions", .post = OpenAiChat},
      {.path = "/v1/health", .get = Health},
      {.path = "/v1/models", .get = Models},
      {.path = "/v1/chat/completions", .post = OpenAiChat},
      {.path = "/v1/completions", .post = OpenAiCompletion},
      {.path = "/v1/responses", .post = OpenAiResponse},
      {.path = "/v1/responses/input_tokens", .post = OpenAiResponseTokens},
      {.path = "/v1/responses/compact", .post = OpenAiResponseCompact},
      {.path = "/v1/messages", .post = AnthropicMessages},
      {.path = "/v1/messages/count_tokens", .post = AnthropicCountTokens},
  };
  return routes;
}

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
