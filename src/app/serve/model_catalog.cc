#include "app/serve/model_catalog.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "app/commands/create_model.h"
#include "app/flags/model_store.h"
#include "app/flags/store_flags.h"
#include "base/errors.h"
#include "base/strings.h"
#include "gguf/split_file.h"
#include "pull/pull.h"

namespace kvcache::app {
namespace {

namespace fs = std::filesystem;
using server::Json;
using server::ServedModel;

// How long a list of what the machine has is taken to be true, and how long if a name is not in it.
constexpr std::chrono::milliseconds kListTime{2000};
constexpr std::chrono::milliseconds kShortTime{200};

// Returns a parameter's value as a number where it is one.
Json ValueOf(const std::string& text) {
  Json value = Json::parse(text, nullptr, false);
  return value.is_discarded() ? Json(text) : value;
}

Json ParametersOf(const std::vector<StoredParameter>& stored) {
  Json parameters = Json::object();
  for (const auto& [name, text] : stored) {
    if (name == "stop") {
      parameters[name].push_back(text);
    } else if (name != "seed" || !text.starts_with('-')) {  // negative: a new one each time
      parameters[name] = ValueOf(text);
    }
  }
  return parameters;
}

std::int64_t SecondsOf(fs::file_time_type time) {
  const auto system = std::chrono::file_clock::to_sys(time);
  return std::chrono::duration_cast<std::chrono::seconds>(system.time_since_epoch()).count();
}

std::int64_t BytesOf(const std::string& path) {
  std::int64_t sum = 0;
  for (const std::string& part : PartPaths(path)) {
    std::error_code error;
    const auto bytes = fs::file_size(part, error);
    sum += error ? 0 : static_cast<std::int64_t>(bytes);
  }
  return sum;
}

void AddAdapter(ServedModel& model, server::ServedAdapter adapter) {
  std::error_code ignored;
  const bool is_folder = fs::is_directory(adapter.path, ignored);
  const fs::path file = fs::path(adapter.path) / "adapter_model.safetensors";
  model.bytes += BytesOf(is_folder ? file.string() : adapter.path);
  model.adapters.push_back(std::move(adapter));
}

ServedModel Describe(std::string name, const std::string& path,
                     const std::optional<StoredModel>& stored, bool uses_drafts) {
  std::error_code error;
  const std::string first = PartPaths(path).front();
  const auto changed = fs::last_write_time(first, error);
  ServedModel model{.name = std::move(name),
                    .created = error ? 0 : SecondsOf(changed),
                    .bytes = BytesOf(path),
                    .path = path};
  if (!stored) return model;
  if (uses_drafts) model.draft = stored->draft;
  if (model.draft != path) model.bytes += BytesOf(model.draft);
  model.projector = stored->projector;
  if (!model.projector.empty()) model.bytes += BytesOf(model.projector);
  for (const std::string& adapter : stored->adapters) {
    AddAdapter(model, {.name = AdapterName(adapter), .path = adapter, .is_offered = false});
  }
  const std::string blob = fs::path(first).filename().string();
  if (blob.starts_with("sha256-")) {
    model.is_stored = true;
    if (first == path) model.digest = blob.substr(7);
  }
  // Go's templates do not run here; the one in the weights does.
  if (stored->chat_template && !IsGoTemplate(*stored->chat_template)) {
    model.chat_template = *stored->chat_template;
  }
  model.system = stored->system.value_or("");
  for (const StoredMessage& message : stored->messages) {
    model.messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  model.parameters = ParametersOf(stored->parameters);
  return model;
}

// Returns the parameter "num_ctx"; 0: it is not given.
Result<int> StoredContext(const ServedModel& model) {
  const auto given = model.parameters.find("num_ctx");
  if (given == model.parameters.end()) return 0;
  const std::int64_t tokens = server::IntegerOf(*given).value_or(0);
  if (tokens >= 1 && tokens <= 1 << 28) return static_cast<int>(tokens);
  return InvalidArgument("its parameter \"num_ctx\" is out of range");
}

// Returns the parameter for a model that embeds or ranks; 0: it is not given. Published models have more there than
// their weights have positions (nomic-embed-text of Ollama's: 8,192 and 2,048).
Result<int> StoredInputs(const ServedModel& model) {
  KVCACHE_ASSIGN_OR_RETURN(const int stored, StoredContext(model));
  if (model.trained_context <= 0) return stored;
  return static_cast<int>(std::min<std::int64_t>(stored, model.trained_context));
}

// Returns the context that a model gets without --ctx.
std::int64_t OwnContext(const ServedModel& model) {
  const auto stored =
      model.purpose == FilePurpose::kGeneration ? StoredContext(model) : StoredInputs(model);
  if (stored.ok() && *stored > 0) return *stored;
  return std::min<std::int64_t>(model.trained_context, kDefaultContext);
}

Result<ServedModel> Locate(const std::string& given, bool uses_drafts) {
  KVCACHE_ASSIGN_OR_RETURN(FoundModel found, LocateModel(given));
  std::string name = found.stored ? found.stored->name : NameOfFile(found.path);
  return Describe(std::move(name), found.path, found.stored, uses_drafts);
}

bool IsIn(const std::vector<ServedModel>& models, const std::string& name) {
  return std::any_of(models.begin(), models.end(), [&](const ServedModel& model) {
    return server::MeansModel(name, model.name);
  });
}

class Catalog final : public server::ModelSource {
 public:
  explicit Catalog(CatalogOptions options) : options_(std::move(options)) {}

  Status Init() {
    if (options_.models.empty()) {
      KVCACHE_ASSIGN_OR_RETURN(ServedModel found, Locate("", options_.uses_drafts));
      given_.push_back(std::move(found));
    }
    for (const std::string& model : options_.models) {
      KVCACHE_ASSIGN_OR_RETURN(ServedModel found, Locate(model, options_.uses_drafts));
      if (IsGiven(found.name))
        return InvalidArgument(StrCat("two models are named ", Quoted(found.name)));
      given_.push_back(std::move(found));
    }
    return AddAdapters();
  }

  std::vector<ServedModel> List() override {
    const std::lock_guard lock(mutex_);
    Refresh(kListTime);
    return models_;
  }

  Result<ServedModel> Find(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    for (const auto age : {kListTime, kShortTime}) {  // it may be new
      Refresh(age);
      for (const ServedModel& model : models_) {
        if (server::MeansModel(name, model.name)) return model;
      }
    }
    std::string names;
    for (const ServedModel& model : models_) {
      if (names.size() > 200) {
        names += ", …";
        break;
      }
      names += StrCat(names.empty() ? "" : ", ", "'", model.name, "'");
    }
    return Status(StatusCode::kNotFound,
                  StrCat("there is no model ", Quoted(name), "; this server has ", names));
  }

  Result<std::shared_ptr<Engine>> Open(const ServedModel& model) override {
    KVCACHE_ASSIGN_OR_RETURN(const int context, StoredContext(model));
    return options_.open(model, context);
  }

  Result<std::shared_ptr<Embedder>> OpenEmbedder(const ServedModel& model) override {
    KVCACHE_ASSIGN_OR_RETURN(const int context, StoredInputs(model));
    return options_.open_embedder(model, context);
  }

  Status Create(const server::NewModel& wanted) override {
    KVCACHE_ASSIGN_OR_RETURN(const ModelName name, ModelName::Parse(wanted.name));
    KVCACHE_RETURN_IF_ERROR(CheckIsFree(name));
    KVCACHE_ASSIGN_OR_RETURN(Modelfile file, SourceOf(wanted.from));
    file.chat_template = wanted.chat_template;
    file.system = wanted.system;
    file.licenses = wanted.licenses;
    for (const auto& [key, value] : wanted.parameters.items()) {
      for (const Json& one : value.is_array() ? value : Json::array({value})) {
        const std::string text = one.is_string() ? one.get<std::string>() : one.dump();
        KVCACHE_RETURN_IF_ERROR(CheckParameter(key, text));
        file.parameters.emplace_back(key, text);
      }
    }
    for (const Json& message : wanted.messages) {
      file.messages.push_back({message.value("role", ""), message.value("content", "")});
    }
    return Make(name, std::move(file));
  }

  Status Copy(const std::string& from, const std::string& to) override {
    KVCACHE_ASSIGN_OR_RETURN(const ModelName name, ModelName::Parse(to));
    KVCACHE_RETURN_IF_ERROR(CheckIsFree(name));
    KVCACHE_ASSIGN_OR_RETURN(Modelfile file, SourceOf(from));
    return Make(name, std::move(file));
  }

  Status Pull(const std::string& given, const server::PullWatch& watch) override {
    KVCACHE_ASSIGN_OR_RETURN(const ModelName name, ModelName::Parse(given));
    KVCACHE_RETURN_IF_ERROR(CheckIsFree(name));
    if (options_.is_offline) {
      return Unsupported("models are not fetched: the server runs with --offline");
    }
    KVCACHE_ASSIGN_OR_RETURN(const ModelStore store, OpenModelStore());
    const auto tell = [&](const pull::PullState& state) {
      watch.report({state.status, state.digest, state.total, state.completed});
    };
    const auto cancelled = [&] {
      return watch.has_left() || (options_.stopping && options_.stopping());
    };
    if (cancelled()) return {StatusCode::kCancelled, "stopped"};  // while it waited for its turn
    KVCACHE_RETURN_IF_ERROR(pull::PullModel(store, name, {.report = tell, .cancelled = cancelled}));
    AddMade(name);
    return Status::Ok();
  }

  Status Remove(const std::string& given) override {
    KVCACHE_ASSIGN_OR_RETURN(const ServedModel model, Find(given));
    KVCACHE_ASSIGN_OR_RETURN(const ModelName name, ModelName::Parse(model.name));
    if (!model.is_stored || IsGiven(model.name)) {
      return InvalidArgument(StrCat(Quoted(given), " is not a model that clients may remove"));
    }
    KVCACHE_ASSIGN_OR_RETURN(const ModelStore store, OpenModelStore());
    const std::string packed = PackedWeightsOf(model.path);
    KVCACHE_ASSIGN_OR_RETURN(const StoreLock writing, store.Lock());
    Status status = store.Remove(writing, name);
    RemovePackedWeights(packed, model.path);
    const std::lock_guard lock(mutex_);
    listed_.reset();
    return status;
  }

 private:
  // Those of the command line take the place of those that are stored with the model.
  Status AddAdapters() {
    if (options_.adapters.empty()) return Status::Ok();
    ServedModel& first = given_.front();
    first.adapters.clear();
    for (const GivenAdapter& adapter : options_.adapters) {
      const std::string name = AdapterName(adapter.path);
      for (const ServedModel& known : given_) {
        for (const ServedModel& one : server::WithAdapters(known)) {
          if (!server::MeansModel(name, one.name)) continue;
          return InvalidArgument(StrCat("--adapter ", adapter.path,
                                        ": a model or an adapter is named ", Quoted(name),
                                        " already"));
        }
      }
      AddAdapter(first, {.name = name, .path = adapter.path, .scale = adapter.scale});
    }
    return Status::Ok();
  }

  // Models of the command line keep their names.
  Status CheckIsFree(const ModelName& name) const {
    if (!IsGiven(name.Short())) return Status::Ok();
    return InvalidArgument(
        StrCat(Quoted(name.Short()), " is the name of a model of the command line"));
  }

  bool IsGiven(const std::string& name) const {
    return std::any_of(given_.begin(), given_.end(), [&](const ServedModel& model) {
      return IsIn(server::WithAdapters(model), name);
    });
  }

  // Returns a Modelfile with the FROM and the ADAPTERs that mean a model: its name in the store, or its file. A
  // Modelfile has no scales. Errors: Find's; kInvalidArgument for an adapter with another scale than 1.
  Result<Modelfile> SourceOf(const std::string& name) {
    KVCACHE_ASSIGN_OR_RETURN(const ServedModel model, Find(name));
    Modelfile file;
    std::error_code ignored;
    file.from = !model.is_stored       ? fs::absolute(model.path, ignored).string()
                : model.parent.empty() ? model.name
                                       : model.parent;
    for (std::size_t i = 0; i < model.adapters.size(); ++i) {
      const server::ServedAdapter& adapter = model.adapters[i];
      const bool is_own = model.adapter == static_cast<int>(i);
      // What is stored with a model comes with its FROM.
      const bool is_used = model.adapter < 0 && adapter.is_offered && adapter.scale != 0.0f;
      if (!is_own && !is_used) continue;
      const float scale = is_own && adapter.scale == 0.0f ? 1.0f : adapter.scale;
      if (scale != 1.0f) {
        return InvalidArgument(StrCat(Quoted(name), " has the adapter ", Quoted(adapter.name),
                                      " with the scale ", scale,
                                      "; models are made with adapters of scale 1 only"));
      }
      file.adapters.push_back(fs::absolute(adapter.path, ignored).string());
    }
    return file;
  }

  // Copies weights, which may take long. Names are never relative paths.
  Status Make(const ModelName& name, Modelfile file) {
    KVCACHE_ASSIGN_OR_RETURN(const ModelStore store, OpenModelStore());
    KVCACHE_RETURN_IF_ERROR(CreateModel(store, name, std::move(file), {.folder = "/nonexistent"}));
    AddMade(name);
    return Status::Ok();
  }

  void AddMade(const ModelName& name) {
    const std::lock_guard lock(mutex_);
    made_.push_back(name.Short());
    listed_.reset();
  }

  // What the list shows of a file. A file with just a draft head is no model.
  struct FileFacts {
    std::int64_t changed = 0;
    GgufSummary summary{};
    FilePurpose purpose = FilePurpose::kGeneration;
    bool is_model = false;
  };
  // Reads a file once. REQUIRES: mutex_ is held.
  const FileFacts& FactsOf(const ServedModel& model) {
    FileFacts& facts = facts_[model.path];
    if (std::exchange(facts.changed, model.created) == model.created) return facts;
    facts = {.changed = model.created};
    auto summary = ReadSummary(model.path);
    facts.is_model = summary.ok();
    if (!summary.ok()) return facts;
    facts.summary = std::move(*summary);
    const auto purpose = PurposeOf(model.path);
    if (purpose.ok()) facts.purpose = *purpose;
    return facts;
  }

  // Adds what the file says. REQUIRES: mutex_ is held.
  void AddFacts(ServedModel& model) {
    const FileFacts& facts = FactsOf(model);
    const GgufSummary& summary = facts.summary;
    model.purpose = facts.purpose;
    model.family = summary.family;
    model.parameter_count = summary.parameters;
    model.quantization = summary.quantization;
    model.trained_context = summary.context_length;
    model.embedding_length = summary.embedding_length;
    if (model.digest.empty()) model.digest = summary.digest;
  }

  // Lists the models again if the list is older than `age`. REQUIRES: mutex_ is held.
  void Refresh(std::chrono::milliseconds age) {
    const auto now = std::chrono::steady_clock::now();
    if (listed_ && now - *listed_ < age) return;
    models_.clear();
    for (const ServedModel& model : given_) {
      for (ServedModel& one : server::WithAdapters(model)) models_.push_back(std::move(one));
    }
    for (const ListedModel& listed : ListModels()) {
      const bool offered = options_.models.empty() || WasMade(listed.name);
      if (!offered || !listed.error.empty()) continue;
      if (IsIn(models_, listed.name)) continue;
      auto model = Locate(listed.name, options_.uses_drafts);
      if (!model.ok() || !FactsOf(*model).is_model) continue;
      model->name = listed.name;
      models_.push_back(std::move(*model));
    }
    for (ServedModel& model : models_) {
      AddFacts(model);
      const bool is_long = model.purpose == FilePurpose::kGeneration && options_.context != 0;
      model.context = is_long ? options_.context : OwnContext(model);
    }
    listed_ = now;
  }

  // REQUIRES: mutex_ is held.
  bool WasMade(const std::string& name) const {
    return std::any_of(made_.begin(), made_.end(),
                       [&](const std::string& made) { return server::MeansModel(name, made); });
  }

  const CatalogOptions options_;
  std::vector<ServedModel> given_;  // of the command line
  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<ServedModel> models_;
  std::vector<std::string> made_;           // by clients
  std::map<std::string, FileFacts> facts_;  // by path
  std::optional<std::chrono::steady_clock::time_point> listed_;
};

}  // namespace

Result<std::unique_ptr<server::ModelSource>> MakeCatalog(CatalogOptions options) {
  auto catalog = std::make_unique<Catalog>(std::move(options));
  KVCACHE_RETURN_IF_ERROR(catalog->Init());
  return std::unique_ptr<server::ModelSource>(std::move(catalog));
}

}  // namespace kvcache::app
