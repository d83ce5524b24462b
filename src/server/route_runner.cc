#include "server/route_runner.h"

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "json/json_text.h"
#include "server/request/pictures.h"

namespace kvcache::server {
namespace {

// Returns the model of that name; without a name, the first.
Result<ServedModel> FindModel(ModelSource& source, const std::string& name) {
  if (name.empty()) {
    std::vector<ServedModel> models = source.List();
    if (models.empty()) return Status(StatusCode::kNotFound, "the server has no model");
    return std::move(models.front());
  }
  KVCACHE_ASSIGN_OR_RETURN(ServedModel model, source.Find(name));
  model.name = name;  // answers have the name that was asked for
  return model;
}

}  // namespace

// A request for a model.
struct RouteRunner::Asked {
  ServerContext context;
  WithModel route;
  Json body;
  std::size_t bytes = 0;  // of the body's text
  VolatileCounts volatile_lines{};
};

RouteRunner::RouteRunner(RouteRunnerOptions options)
    : options_(std::move(options)),
      worker_(options_.max_queued, options_.queued_bytes),
      manager_(options_.max_queued, options_.queued_bytes),
      puller_(options_.max_queued, options_.queued_bytes) {}

void RouteRunner::End() {
  puller_.End();
  manager_.End();
  worker_.End();
}

void RouteRunner::Run(const ServerContext& context, const Route& route, HttpRequest request) {
  if (const auto* const now = std::get_if<AtOnce>(&route.kind)) return now->run(context);
  const auto* const work = std::get_if<OnWorker>(&route.kind);
  const auto* const change = std::get_if<ChangesModels>(&route.kind);
  Worker& worker = change == nullptr ? worker_ : change->takes_long ? puller_ : manager_;
  const std::size_t bytes = work != nullptr ? context.path.size() : request.body.size();
  const bool added =
      worker.Add(bytes, [this, context, work, &route, text = std::move(request.body)] {
        if (work != nullptr) return work->run(context);
        RunBody(context, route, text);
      });
  if (added) return;
  context.Refuse({.status = 503, .message = "too many requests wait to be read; try again later"});
}

void RouteRunner::RunBody(const ServerContext& context, const Route& route,
                          const std::string& text) {
  auto body = ParseJson(text);
  if (!body.ok()) return context.Refuse(body.status());
  if (!body->is_object()) return context.Refuse({.message = "the request is not a JSON object"});
  if (const auto* const change = std::get_if<ChangesModels>(&route.kind)) {
    return change->run(context, *body);
  }
  const auto asked = std::make_shared<Asked>(Asked{.context = context,
                                                   .route = std::get<WithModel>(route.kind),
                                                   .body = std::move(*body),
                                                   .bytes = text.size()});
  if (options_.ignore_images) ReplacePictures(asked->body);
  const auto prompt_use = asked->route.prompt_use;
  asked->volatile_lines = options_.volatile_lines.Apply(
      asked->body, prompt_use == nullptr ? PromptUse::kRaw : prompt_use(asked->body));
  RunWithModel(asked);
}

void RouteRunner::RunWithModel(const std::shared_ptr<const Asked>& asked) {
  const ServerContext& context = asked->context;
  const WithModel& route = asked->route;
  Fields fields(asked->body);
  const std::string name = fields.Text("model", fields.Text("name"));
  if (!fields.ok()) return context.Refuse(fields);
  const auto model = FindModel(context.host.source(), name);
  if (!model.ok()) return context.RefuseModel(model.status());
  context.entry->UseModel(model->name);
  std::optional<double> stay_seconds;
  if (route.stay_seconds != nullptr) {
    const auto read = route.stay_seconds(asked->body);
    if (!read.ok()) return context.Refuse(read.status());
    // Among users with keys, how long a model stays is the administrator's.
    if (context.user.is_admin) stay_seconds = *read;
  }
  if (route.only_loads != nullptr && route.only_loads(context, *model, asked->body)) return;
  context.host.Acquire(*model, stay_seconds,
                       [this, asked, model = *model](Result<ModelLease> lease) {
                         if (!lease.ok()) return asked->context.Refuse(lease.status());
                         worker_.Continue(asked->bytes, [asked, model, lease = std::move(*lease)] {
                           RouteContext with_model(asked->context, model, lease);
                           with_model.volatile_lines = asked->volatile_lines;
                           asked->route.run(with_model, asked->body);
                         });
                       });
}

}  // namespace kvcache::server
