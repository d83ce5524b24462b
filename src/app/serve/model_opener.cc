#include "app/serve/model_opener.h"

#include <algorithm>

#include "app/flags/adapter_flags.h"
#include "app/flags/draft_flags.h"
#include "app/flags/gpu_flags.h"
#include "app/flags/model_store.h"
#include "kvcache_engine/scheduler.h"
#include "server/log.h"

namespace kvcache::app {
namespace {

Result<std::vector<EngineAdapter>> AdaptersOf(const server::ServedModel& model) {
  std::vector<GivenAdapter> adapters;
  for (const server::ServedAdapter& adapter : model.adapters) {
    adapters.push_back({adapter.path, adapter.scale});
  }
  return LoadAdapters(adapters, model.path);
}

}  // namespace

Result<std::shared_ptr<Engine>> ModelOpener::Open(const server::ServedModel& model,
                                                  int context) const {
  const bool is_first = model.path == first_path_;
  if (flags_.draft == "head" || (is_first && NamesDraftFile(flags_.draft))) {
    auto opened = OpenWith(model, context, flags_.draft, "--draft");
    if (opened.ok() || is_first) return opened;
  }
  if (model.draft.empty()) return OpenWith(model, context, "none", "");
  auto opened = OpenWith(model, context, model.draft, "DRAFT");
  if (opened.ok()) return opened;
  auto without = OpenWith(model, context, "none", "");
  if (without.ok()) {
    server::LogEvent(server::LogLevel::kError, "draft not used",
                     {{"model", model.name}, {"reason", std::string(opened.status().message())}});
  }
  return without;
}

Result<std::shared_ptr<Embedder>> ModelOpener::OpenEmbedder(const server::ServedModel& model,
                                                            int context) const {
  EmbedderOptions options{.threads = flags_.engine.threads(),
                          .uses_numa = flags_.engine.uses_numa(),
                          .gpu_layers = flags_.engine.gpu_layers(),
                          .context = context};
  KVCACHE_ASSIGN_OR_RETURN(options.adapters, AdaptersOf(model));
  KVCACHE_ASSIGN_OR_RETURN(auto embedder, Embedder::Open(model.path, options));
  return std::shared_ptr<Embedder>(std::move(embedder));
}

Result<std::shared_ptr<Engine>> ModelOpener::OpenWith(const server::ServedModel& model, int context,
                                                      const std::string& draft,
                                                      const char* source) const {
  EngineFlags::ForRequests wanted{.path = model.path,
                                  .sequences = flags_.sequences,
                                  .plan = flags_.store.plan(),
                                  .context = context};
  auto head = FindDraftHead(draft, model.path);
  if (!head.ok()) return std::move(head).TakeStatus().WithContext(source);
  wanted.draft_head = std::move(*head);
  KVCACHE_ASSIGN_OR_RETURN(wanted.adapters, AdaptersOf(model));
  KVCACHE_ASSIGN_OR_RETURN(std::shared_ptr<Engine> engine, flags_.engine.OpenForRequests(wanted));
  if (NamesDraftFile(draft) && wanted.draft_head.empty()) {
    KVCACHE_RETURN_IF_ERROR(UseDraftModel(*engine, draft).WithContext(source));
  }
  KVCACHE_RETURN_IF_ERROR(UseTower(*engine, model));
  StoreFlags::Use(*engine, store_);
  return engine;
}

// A stored model whose projector is not offered answers texts.
Status ModelOpener::UseTower(Engine& engine, const server::ServedModel& model) const {
  const std::string& given = flags_.pictures.projector();
  if (!given.empty() && model.path == first_path_) {
    return flags_.pictures.Use(engine).WithContext("--mmproj");
  }
  if (model.projector.empty() || given == PictureFlags::kNone) return Status::Ok();
  if (const Status used = engine.UseTower(model.projector); !used.ok()) {
    server::LogEvent(server::LogLevel::kError, "projector not used",
                     {{"model", model.name}, {"reason", std::string(used.message())}});
  }
  return Status::Ok();
}

Status ModelOpener::UseDraftModel(Engine& engine, const std::string& draft) const {
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, FindModel(draft));
  KVCACHE_ASSIGN_OR_RETURN(std::shared_ptr<Engine> small,
                           Engine::Open(path, {.threads = engine.options().threads,
                                               .uses_numa = engine.options().uses_numa,
                                               .gpu_layers = GpuLayersOfDraft(engine),
                                               .context = engine.context(),
                                               .max_sequences = engine.options().max_sequences}));
  server::LogEvent(server::LogLevel::kInfo, "draft model loaded",
                   {{"model", draft}, {"machine", small->machine()}});
  auto models = static_cast<std::size_t>(flags_.max_models);
  if (!flags_.models.empty()) models = std::min(models, flags_.models.size());
  const std::int64_t bytes = flags_.store.plan().DraftBytes(static_cast<std::int64_t>(models),
                                                            Scheduler::MinBudget(engine));
  return engine.UseDraftModel(std::move(small), bytes).WithContext(path);
}

}  // namespace kvcache::app
