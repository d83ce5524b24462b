#include "server/server.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/strings.h"
#include "engine/json_text.h"

namespace kvcache::server {
namespace {

using Reply = std::shared_ptr<HttpReply>;

// Runs functions in order on a thread of its own: a large prompt takes long to encode.
class Worker {
 public:
  Worker(std::size_t most, std::size_t most_bytes)
      : most_(most), most_bytes_(most_bytes), thread_([this] { Run(); }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    more_.notify_one();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Returns false if the queue is full. `bytes`: what the work keeps.
  bool Add(std::size_t bytes, std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      const bool full = work_.size() >= most_ || bytes_ + bytes > most_bytes_;
      if (full && !work_.empty()) return false;
      work_.push_back({bytes, std::move(work)});
      bytes_ += bytes;
    }
    more_.notify_one();
    return true;
  }

  bool idle() const {
    const std::lock_guard lock(mutex_);
    return work_.empty() && !working_;
  }

 private:
  struct Work {
    std::size_t bytes = 0;
    std::function<void()> run{};
  };

  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      more_.wait(lock, [this] { return ending_ || !work_.empty(); });
      if (ending_) return;
      Work work = std::move(work_.front());
      work_.pop_front();
      bytes_ -= work.bytes;
      working_ = true;
      lock.unlock();
      Do(work.run);
      work.run = nullptr;
      lock.lock();
      working_ = false;
    }
  }

  // Work that runs out of memory is given up: its reply ends the request.
  static void Do(const std::function<void()>& work) {
    try {
      work();
    } catch (const std::exception&) {
      return;
    }
  }

  const std::size_t most_, most_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable more_;
  std::deque<Work> work_;
  std::size_t bytes_ = 0;  // of the work that waits
  bool ending_ = false, working_ = false;
  std::thread thread_;
};

// Returns whether a Host header names this machine's loopback. A page of another site cannot.
bool IsLoopbackName(std::string_view host) {
  const std::size_t end = host.starts_with('[') ? host.find(']') : host.find(':');
  const std::string_view name = host.substr(0, end + (host.starts_with('[') && end != host.npos));
  return host.empty() || name == "localhost" || name == "127.0.0.1" || name == "[::1]";
}

class ServerImpl final : public Server, private HttpHandler {
 public:
  ServerImpl(std::unique_ptr<TextService> service, ServedModel model, const ServerOptions& options)
      : service_(std::move(service)),
        model_(std::move(model)),
        only_loopback_(options.http.address.starts_with("127.") || options.http.address == "::1"),
        worker_(options.most_queued, options.queued_bytes) {}
  ~ServerImpl() override { http_.reset(); }

  Status Listen(const HttpOptions& options) {
    KVCACHE_ASSIGN_OR_RETURN(http_, HttpServer::Start(options, *this));
    return Status::Ok();
  }

  void Stop(std::chrono::milliseconds most) override {
    http_->StopAccepting();
    service_->StopAccepting();
    const auto end = std::chrono::steady_clock::now() + most;
    const auto wait = [&](std::chrono::steady_clock::time_point until) {
      while (!(worker_.idle() && service_->idle())) {
        if (std::chrono::steady_clock::now() >= until) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    };
    wait(end);
    service_->EndAll();
    wait(std::chrono::steady_clock::now() + kLastAnswers);
    (void)http_->WaitUntilSent(kLastAnswers);
  }

  std::uint16_t port() const override { return http_->port(); }
  const TextService& service() const override { return *service_; }

 private:
  // Requests that were ended have this long to be answered, and the answers to be sent.
  static constexpr std::chrono::milliseconds kLastAnswers{1000};

  using JsonRoute = void (*)(const RouteContext&, const Json&, const Reply&);
  using PlainRoute = void (*)(const RouteContext&, const Reply&);
  struct Route {
    std::string_view path;
    PlainRoute get = nullptr;
    JsonRoute post = nullptr;
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
    const RouteContext context{*service_, model_};
    constexpr std::string_view kModels = "/v1/models/";
    const bool get = request.method == "GET" || request.method == "HEAD";
    if (request.path.starts_with(kModels) && get) {
      const std::string name = request.path.substr(kModels.size());
      if (CheckModel(context, api, name.empty() ? "/" : name, *reply)) {
        SendJson(*reply, OpenAiModel(model_));
      }
      return;
    }
    for (const Route& route : Routes()) {
      if (route.path != request.path) continue;
      if (get && route.get != nullptr) return route.get(context, reply);
      if (request.method == "POST" && route.post != nullptr) {
        return Post(context, route.post, std::move(request), std::move(reply));
      }
      const ApiError error{.status = 405,
                           .message = StrCat(Quoted(request.method), " is not allowed here")};
      return reply->Send(405, ErrorJson(api, error),
                         {{"Allow", route.get != nullptr ? "GET, HEAD" : "POST"}});
    }
    SendError(*reply, api,
              {.status = 404, .message = StrCat("there is no route ", Quoted(request.path))});
  }

  void Post(const RouteContext& context, JsonRoute route, HttpRequest request, Reply reply) {
    const Api of = ApiOf(request.path);
    const std::size_t bytes = request.body.size();
    const Reply refused = reply;
    const bool added = worker_.Add(
        bytes, [context, route, request = std::move(request), reply = std::move(reply)] {
          const Api api = ApiOf(request.path);
          const auto body = ParseJson(request.body);
          if (!body.ok()) return SendError(*reply, api, FromStatus(body.status()));
          if (!body->is_object()) {
            return SendError(*reply, api, {.message = "the request is not a JSON object"});
          }
          route(context, *body, reply);
        });
    if (added) return;
    SendError(*refused, of,
              {.status = 503, .message = "too many requests wait to be read; try again later"});
  }

  std::string ErrorBody(std::string_view path, int status, std::string_view message) override {
    return ErrorJson(ApiOf(path), {.status = status, .message = std::string(message)});
  }

  std::unique_ptr<TextService> service_;
  ServedModel model_;
  bool only_loopback_;
  std::unique_ptr<HttpServer> http_;
  Worker worker_;  // last: its work uses the others
};

void Health(const RouteContext&, const Reply& reply) {
  SendJson(*reply, {{"status", "ok"}});
}

void Version(const RouteContext&, const Reply& reply) {
  SendJson(*reply, {{"version", KVCACHE_VERSION}});
}

void Metrics(const RouteContext& context, const Reply& reply) {
  const ServiceCounters now = context.service.counters();
  std::string text;
  const auto add = [&](std::string_view name, std::string_view type, std::int64_t value) {
    text += StrCat("# TYPE ", name, " ", type, "\n", name, " ", value, "\n");
  };
  add("kvcache_requests_total", "counter", now.requests);
  add("kvcache_requests_running", "gauge", now.running);
  add("kvcache_generated_tokens_total", "counter", now.generated_tokens);
  add("kvcache_prompt_tokens_reused_total", "counter", now.reused_tokens);
  add("kvcache_prompt_tokens_computed_total", "counter", now.computed_tokens);
  constexpr std::string_view kFirst = "kvcache_time_to_first_token_seconds";
  text += StrCat("# TYPE ", kFirst, " histogram\n");
  std::int64_t count = 0;
  for (std::size_t i = 0; i < now.first_tokens.size(); ++i) {
    count += now.first_tokens[i];
    const bool last = i == kFirstTokenBounds.size();
    text += StrCat(kFirst, "_bucket{le=\"", last ? "+Inf" : Dump(kFirstTokenBounds[i]), "\"} ",
                   count, "\n");
  }
  text +=
      StrCat(kFirst, "_sum ", Dump(now.first_token_seconds), "\n", kFirst, "_count ", count, "\n");
  reply->Send(200, text, {{"Content-Type", "text/plain; version=0.0.4"}});
}

void Models(const RouteContext& context, const Reply& reply) {
  SendJson(*reply, {{"object", "list"}, {"data", Json::array({OpenAiModel(context.model)})}});
}

const std::vector<ServerImpl::Route>& ServerImpl::Routes() {
  static const std::vector<Route> routes = {
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
      {.path = "/api/chat", .post = OllamaChat},
      {.path = "/api/generate", .post = OllamaGenerate},
      {.path = "/v1/models", .get = Models},
      {.path = "/v1/chat/completions", .post = OpenAiChat},
      {.path = "/v1/completions", .post = OpenAiCompletion},
      {.path = "/v1/messages", .post = AnthropicMessages},
      {.path = "/v1/messages/count_tokens", .post = AnthropicCountTokens},
  };
  return routes;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::Start(Engine& engine, ServedModel model,
                                              const ServerOptions& options) {
  KVCACHE_ASSIGN_OR_RETURN(auto service, TextService::Make(engine, options.most_running));
  auto server = std::make_unique<ServerImpl>(std::move(service), std::move(model), options);
  KVCACHE_RETURN_IF_ERROR(server->Listen(options.http));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace kvcache::server
