#include "server/models/model_source.h"

#include "base/errors.h"
#include "base/strings.h"
#include "model/model.h"

namespace kvcache::server {
namespace {

Status Fixed() {
  return Unsupported("the models of this server cannot be changed");
}

class OneModelSource final : public ModelSource {
 public:
  OneModelSource(Engine& engine, ServedModel model) : engine_(engine), model_(std::move(model)) {
    model_.context = engine.context();
    model_.trained_context = engine.info().context_length;
  }

  std::vector<ServedModel> List() override { return WithAdapters(model_); }
  Result<ServedModel> Find(const std::string& name) override {
    for (ServedModel& model : WithAdapters(model_)) {
      if (MeansModel(name, model.name)) return std::move(model);
    }
    return Status(StatusCode::kNotFound, StrCat("there is no model ", Quoted(name),
                                                "; this server has '", model_.name, "'"));
  }
  Result<std::shared_ptr<Engine>> Open(const ServedModel& /*model*/) override {
    return std::shared_ptr<Engine>(&engine_, [](Engine*) {});
  }

 private:
  Engine& engine_;
  ServedModel model_;
};

}  // namespace

Result<std::shared_ptr<Embedder>> ModelSource::OpenEmbedder(const ServedModel& model) {
  return Unsupported(StrCat(Quoted(model.name), " is not served for embeddings"));
}

std::vector<ServedModel> WithAdapters(const ServedModel& model) {
  std::vector<ServedModel> models{model};
  for (std::size_t i = 0; i < model.adapters.size(); ++i) {
    if (!model.adapters[i].is_offered) continue;
    ServedModel& one = models.emplace_back(model);
    one.name = model.adapters[i].name;
    one.adapter = static_cast<int>(i);
    one.parent = model.name;
  }
  return models;
}

Status ModelSource::Create(const NewModel& /*model*/) {
  return Fixed();
}
Status ModelSource::Copy(const std::string& /*from*/, const std::string& /*to*/) {
  return Fixed();
}
Status ModelSource::Remove(const std::string& /*name*/) {
  return Fixed();
}

Status ModelSource::Pull(const std::string& /*name*/, const PullWatch& /*watch*/) {
  return Fixed();
}

std::unique_ptr<ModelSource> OneModel(Engine& engine, ServedModel model) {
  return std::make_unique<OneModelSource>(engine, std::move(model));
}

bool MeansModel(const std::string& asked, const std::string& name) {
  constexpr std::string_view kLatest = ":latest";
  const auto shorten = [&](std::string_view text) {
    if (text.ends_with(kLatest)) text.remove_suffix(kLatest.size());
    return text;
  };
  return shorten(asked) == shorten(name);
}

}  // namespace kvcache::server
