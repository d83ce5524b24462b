#include "server/route_runner.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/errors.h"
#include "base/seconds_since.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "json/json_text.h"
#include "server/request/adapters.h"
#include "server/request/pictures.h"

namespace kvcache::server {
namespace {

constexpr int kPullers = 4;  // models that are fetched at a time

// Returns the model of that name; without a name, the first that is made for the purpose, or else the first.
Result<ServedModel> FindModel(ModelSource& source, const std::string& name, FilePurpose purpose) {
  if (name.empty()) {
    std::vector<ServedModel> models = source.List();
    if (models.empty()) return Status(StatusCode::kNotFound, "the server has no model");
    const auto fit = std::find_if(models.begin(), models.end(), [&](const ServedModel& model) {
      return model.purpose == purpose;
    });
    return std::move(fit == models.end() ? models.front() : *fit);
  }
  KVCACHE_ASSIGN_OR_RETURN(ServedModel model, source.Find(name));
  model.name = name;  // answers have the name that was asked for
  return model;
}

// The pictures of a request. Equal files are prepared once. The cells of all have to fit into the context, so a small
// request cannot make many large pictures.
class RequestPictures {
 public:
  explicit RequestPictures(RouteContext& context) : context_(context) {}

  // Returns the mark of a picture, which the context keeps.
  Result<std::string> Take(std::span<const std::byte> file, const std::string& name) {
    const auto [entry, is_new] = taken_.try_emplace(Sha256Of(file));
    Taken& taken = entry->second;
    if (is_new) {
      KVCACHE_ASSIGN_OR_RETURN(auto picture, context_.service.TakePicture(file, name));
      taken = {.mark = std::move(picture.second), .cells = picture.first->cells()};
      context_.pictures.push_back(std::move(picture.first));
    }
    cells_ += taken.cells;
    const std::int64_t context = context_.service.context();
    if (cells_ <= context) return taken.mark;
    return InvalidArgument(StrCat("the pictures of the request up to ", name, " have ", cells_,
                                  " tokens; the context has ", context));
  }

 private:
  struct Taken {
    std::string mark{};
    std::int64_t cells = 0;
  };

  RouteContext& context_;
  std::map<Sha256Hash, Taken> taken_;  // by the hash of the file
  std::int64_t cells_ = 0;             // of all places
};

}  // namespace

// A request for a model.
struct RouteRunner::Asked {
  ServerContext context;
  std::variant<WithModel, WithEmbedder> route{};
  Json body;
  std::size_t bytes = 0;  // of the body's text
  bool has_pictures = false;
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  VolatileCounts volatile_lines{};
};

RouteRunner::RouteRunner(RouteRunnerOptions options)
    : options_(std::move(options)),
      worker_(options_.max_queued, options_.queued_bytes),
      manager_(options_.max_queued, options_.queued_bytes) {
  for (int i = 0; i < kPullers; ++i) {
    pullers_.push_back(std::make_unique<Worker>(options_.max_queued, options_.queued_bytes));
  }
}

Worker& RouteRunner::FreePuller() {
  Worker* best = pullers_.front().get();
  for (const auto& puller : pullers_) {
    if (puller->size() < best->size()) best = puller.get();
  }
  return *best;
}

void RouteRunner::End() {
  for (const auto& puller : pullers_) puller->End();
  manager_.End();
  worker_.End();
}

void RouteRunner::Run(const ServerContext& context, const Route& route, HttpRequest request) {
  if (const auto* const now = std::get_if<AtOnce>(&route.kind)) return now->run(context);
  const auto* const work = std::get_if<OnWorker>(&route.kind);
  const auto* const change = std::get_if<ChangesModels>(&route.kind);
  Worker& worker = change == nullptr ? worker_ : change->takes_long ? FreePuller() : manager_;
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
  const auto* const change = std::get_if<ChangesModels>(&route.kind);
  const bool takes_array = change != nullptr && change->takes_array;
  if (takes_array ? !body->is_array() : !body->is_object()) {
    return context.Refuse(
        {.message = StrCat("the request is not a JSON ", takes_array ? "array" : "object")});
  }
  if (change != nullptr) return change->run(context, *body);
  const auto asked = std::make_shared<Asked>(
      Asked{.context = context, .body = std::move(*body), .bytes = text.size()});
  if (const auto* const embeds = std::get_if<WithEmbedder>(&route.kind)) {
    asked->route = *embeds;
    return FindAndRun(asked, *embeds, embeds->purpose);
  }
  const auto& generates = std::get<WithModel>(route.kind);
  asked->route = generates;
  if (options_.ignore_images) ReplacePictures(asked->body);
  asked->has_pictures = HasPictures(asked->body);
  const auto prompt_use = generates.prompt_use;
  asked->volatile_lines = options_.volatile_lines.Apply(
      asked->body, prompt_use == nullptr ? PromptUse::kRaw : prompt_use(asked->body));
  FindAndRun(asked, generates, FilePurpose::kGeneration);
}

template <typename Kind>
void RouteRunner::FindAndRun(const std::shared_ptr<const Asked>& asked, const Kind& route,
                             FilePurpose purpose) {
  const ServerContext& context = asked->context;
  Fields fields(asked->body);
  const std::string name = fields.Text("model", fields.Text("name"));
  if (!fields.ok()) return context.Refuse(fields);
  auto model = FindModel(context.host.source(), name, purpose);
  if (!model.ok()) return context.RefuseModel(model.status());
  context.entry->UseModel(model->name);
  std::optional<double> stay_seconds;
  if (route.stay_seconds != nullptr) {
    const auto read = route.stay_seconds(asked->body);
    if (!read.ok()) return context.Refuse(read.status());
    // Among users with keys, how long a model stays is the administrator's.
    if (context.user.is_admin) stay_seconds = *read;
  }
  if constexpr (std::is_same_v<Kind, WithModel>) {
    if (model->purpose != FilePurpose::kGeneration) {
      if (route.without_text != nullptr) return route.without_text(context, *model);
      if (route.with_embedder != nullptr) {
        model->embeds = true;
        const auto for_embedder = std::make_shared<Asked>(*asked);
        for_embedder->route = WithEmbedder{.run = route.with_embedder, .purpose = model->purpose};
        return RunWithEmbedder(for_embedder, *model, stay_seconds);
      }
      return context.Refuse(
          InvalidArgument(
              StrCat(Quoted(model->name), " does not support chat or completion: it is made for ",
                     model->purpose == FilePurpose::kReranking ? "ranks" : "embeddings")),
          "model");
    }
  } else {
    model->embeds = true;
  }
  if (route.only_loads != nullptr && route.only_loads(context, *model, asked->body)) return;
  if constexpr (std::is_same_v<Kind, WithModel>) {
    RunWithModel(asked, *model, stay_seconds);
  } else {
    RunWithEmbedder(asked, *model, stay_seconds);
  }
}

void RouteRunner::RunWithModel(const std::shared_ptr<const Asked>& asked, const ServedModel& model,
                               std::optional<double> stay_seconds) {
  asked->context.host.Acquire(model, stay_seconds, [this, asked, model](Result<ModelLease> lease) {
    if (!lease.ok()) return asked->context.Refuse(lease.status());
    worker_.Continue(asked->bytes, [asked, model, lease = std::move(*lease)] {
      RouteContext with_model(asked->context, model, lease);
      with_model.volatile_lines = asked->volatile_lines;
      auto adapters = AdaptersOf(*lease, model, asked->body);
      if (!adapters.ok()) return with_model.Refuse(adapters.status(), "lora");
      with_model.adapters = std::move(*adapters);
      if (!asked->has_pictures || !with_model.service.engine().CheckTakesPictures().ok()) {
        return std::get<WithModel>(asked->route).run(with_model, asked->body);
      }
      Json body = asked->body;
      RequestPictures pictures(with_model);
      const Status taken = TakePictures(
          body, [&](auto file, const auto& name) { return pictures.Take(file, name); });
      if (!taken.ok()) return with_model.Refuse(taken);
      std::get<WithModel>(asked->route).run(with_model, body);
    });
  });
}

void RouteRunner::RunWithEmbedder(const std::shared_ptr<const Asked>& asked,
                                  const ServedModel& model, std::optional<double> stay_seconds) {
  asked->context.host.AcquireEmbedder(
      model, stay_seconds, [this, asked, model](Result<EmbeddingLease> lease) {
        if (!lease.ok()) return asked->context.Refuse(lease.status(), "model");
        const double load_ms = MillisecondsSince(asked->began);
        worker_.Continue(asked->bytes, [asked, model, load_ms, lease = std::move(*lease)] {
          EmbeddingContext with_model(asked->context, model, lease);
          with_model.load_ms = load_ms;
          auto adapters = AdaptersOf(*lease, model, asked->body);
          if (!adapters.ok()) return with_model.Refuse(adapters.status(), "lora");
          with_model.adapters = std::move(*adapters);
          std::get<WithEmbedder>(asked->route).run(with_model, asked->body);
        });
      });
}

}  // namespace kvcache::server
