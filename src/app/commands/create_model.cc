#include "app/commands/create_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app/flags/model_store.h"
#include "app/flags/run_flags.h"
#include "app/terminal/notes.h"
#include "base/errors.h"
#include "base/strings.h"
#include "chat_template/chat_template.h"
#include "convert/import_model.h"
#include "convert/peft/peft_adapter.h"
#include "gguf/gguf.h"
#include "gguf/split_file.h"
#include "inspect/describe_model.h"
#include "kvcache/cpu_backend.h"
#include "kvcache_engine/embedder.h"
#include "model/adapter/adapter_file.h"
#include "model/model.h"

namespace kvcache::app {
namespace {

namespace fs = std::filesystem;

// Returns the path that FROM or DRAFT means from the Modelfile's folder on; none: it is a name. A directory is a path.
std::optional<std::string> PathOf(const std::string& text, const fs::path& folder) {
  fs::path path = text;
  if (path.is_relative()) path = folder / path;
  std::error_code error;
  const bool is_path =
      text.ends_with(".gguf") || fs::exists(PartPaths(path.string()).front(), error);
  return is_path ? std::optional(path.string()) : std::nullopt;
}

// Returns FROM or DRAFT as a model.
Result<FoundModel> Source(const std::string& text, const fs::path& folder) {
  const auto path = PathOf(text, folder);
  return path ? FoundModel{*path, std::nullopt} : LocateModel(text);
}

// Fetches the models that a Modelfile names and the machine does not have.
Status FetchNamed(const Modelfile& file, const CreateOptions& options) {
  if (!options.fetch) return Status::Ok();
  for (const auto& [instruction, text] : {std::pair{"FROM", file.from}, {"DRAFT", file.draft}}) {
    if (text.empty() || PathOf(text, options.folder)) continue;
    KVCACHE_RETURN_IF_ERROR(options.fetch(text).WithContext(StrCat(instruction, " ", text)));
  }
  return Status::Ok();
}

// Removes a file at the end, if it is there.
class FileRemover {
 public:
  explicit FileRemover(std::string path) : path_(std::move(path)) {}
  ~FileRemover() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  FileRemover(const FileRemover&) = delete;
  FileRemover& operator=(const FileRemover&) = delete;

 private:
  std::string path_;
};

// Makes the layers of one model.
class Creator {
 public:
  Creator(const ModelStore& store, StoreLock& lock, const CreateOptions& options)
      : store_(store), lock_(lock), folder_(options.folder), options_(options) {}

  Result<Manifest> Create(const std::string& name, Modelfile file) {
    KVCACHE_RETURN_IF_ERROR(AddWeights(&file).WithContext(StrCat("FROM ", file.from)));
    KVCACHE_RETURN_IF_ERROR(CheckStoredParameters(name, file.parameters));
    if (file.draft.empty() && options_.draft_scheme) {
      return InvalidArgument("--quantize-draft is given, but there is no DRAFT");
    }
    if (!file.draft.empty()) {
      KVCACHE_RETURN_IF_ERROR(AddDraft(file.draft).WithContext(StrCat("DRAFT ", file.draft)));
    }
    for (const std::string& adapter : file.adapters) {
      KVCACHE_RETURN_IF_ERROR(AddAdapter(adapter).WithContext(StrCat("ADAPTER ", adapter)));
    }
    if (file.chat_template) {
      KVCACHE_RETURN_IF_ERROR(Add(media_type::kTemplate, *file.chat_template));
    }
    if (file.system) KVCACHE_RETURN_IF_ERROR(Add(media_type::kSystem, *file.system));
    if (!file.parameters.empty()) {
      KVCACHE_RETURN_IF_ERROR(Add(media_type::kParameters, ParametersJson(file.parameters)));
    }
    if (!file.messages.empty()) {
      KVCACHE_RETURN_IF_ERROR(Add(media_type::kMessages, MessagesJson(file.messages)));
    }
    for (const std::string& license : file.licenses) {
      KVCACHE_RETURN_IF_ERROR(Add(media_type::kLicense, license));
    }
    KVCACHE_RETURN_IF_ERROR(AddConfig(file));
    return std::move(manifest_);
  }

 private:
  Status Add(std::string_view type, std::string_view text) {
    KVCACHE_ASSIGN_OR_RETURN(ManifestLayer layer, store_.AddBytes(lock_, type, text));
    manifest_.layers.push_back(std::move(layer));
    return Status::Ok();
  }

  // Adds the weights at `path`: a GGUF file, converted if a scheme is given, or a directory.
  // Returns the architecture.
  Result<std::string> AddModel(std::string_view type, const std::string& path,
                               const std::optional<WeightScheme>& scheme) {
    const std::string converted = StoreLock::ConvertedPath(store_.root());
    const FileRemover remover(converted);
    std::error_code ignored;
    const bool imports = fs::is_directory(path, ignored);
    if (imports) {
      KVCACHE_ASSIGN_OR_RETURN(
          const ImportResult result,
          ImportModel({.directory = path, .path = converted, .scheme = scheme}));
      for (const std::string& note : result.notes) AddNote(StrCat(path, ": ", note));
    }
    KVCACHE_ASSIGN_OR_RETURN(const auto file, GgufFile::Open(imports ? converted : path));
    if (imports) KVCACHE_RETURN_IF_ERROR(CheckImported(*file).WithContext(path));
    KVCACHE_ASSIGN_OR_RETURN(const auto family, file->GetStringOr("general.architecture", "?"));
    std::string architecture(family);
    const bool quantizes = scheme && !imports;
    if (quantizes) KVCACHE_RETURN_IF_ERROR(QuantizeModel(*file, *scheme, converted));
    std::vector<std::string> files;
    if (imports || quantizes) {
      files.push_back(converted);
    } else {
      for (const GgufPart& part : file->parts()) files.push_back(part.path);
    }
    for (const std::string& one : files) {
      KVCACHE_ASSIGN_OR_RETURN(ManifestLayer layer, store_.AddFile(lock_, type, one));
      KVCACHE_ASSIGN_OR_RETURN(std::string blob, store_.BlobPath(layer));
      if (type == media_type::kModel) blobs_.push_back(std::move(blob));
      manifest_.layers.push_back(std::move(layer));
    }
    return architecture;
  }

  // Refuses weights that no program could load: a setting that the import takes may be one that models refuse.
  static Status CheckImported(const GgufFile& file) {
    return HasOnlyDraftHead(file) ? Status::Ok() : DescribeModel(file).status();
  }

  Status AddWeights(Modelfile* file) {
    KVCACHE_ASSIGN_OR_RETURN(FoundModel found, Source(file->from, folder_));
    if (found.stored) Inherit(std::move(*found.stored), file);
    KVCACHE_ASSIGN_OR_RETURN(const std::string family,
                             AddModel(media_type::kModel, found.path, options_.scheme));
    base_ = JoinedPath(blobs_);
    config_["model_format"] = "gguf";
    config_["model_family"] = family;
    config_["model_families"] = {family};
    return Status::Ok();
  }

  // Takes over what the Modelfile does not say from the model that it starts from.
  static void Inherit(StoredModel base, Modelfile* file) {
    if (file->draft.empty()) file->draft = base.draft;
    if (file->adapters.empty()) file->adapters = std::move(base.adapters);
    if (!file->chat_template) file->chat_template = std::move(base.chat_template);
    if (!file->system) file->system = std::move(base.system);
    if (file->messages.empty()) file->messages = std::move(base.messages);
    if (file->licenses.empty()) file->licenses = std::move(base.licenses);
    std::vector<StoredParameter> parameters;
    for (StoredParameter& old : base.parameters) {
      bool replaced = false;
      for (const auto& given : file->parameters) replaced = replaced || given.first == old.first;
      if (!replaced) parameters.push_back(std::move(old));
    }
    file->parameters.insert(file->parameters.begin(), parameters.begin(), parameters.end());
  }

  Status AddDraft(const std::string& draft) {
    KVCACHE_ASSIGN_OR_RETURN(const FoundModel found, Source(draft, folder_));
    return AddModel(media_type::kDraft, found.path, options_.draft_scheme).status();
  }

  // Adds a GGUF file, or what becomes of a directory in PEFT's form. The model can run with the file.
  Status AddAdapter(const std::string& adapter) {
    fs::path path = adapter;
    if (path.is_relative()) path = folder_ / path;
    KVCACHE_ASSIGN_OR_RETURN(const auto base, GgufFile::Open(base_));
    if (!IsPeftAdapter(path.string())) {
      KVCACHE_ASSIGN_OR_RETURN(const auto file, AdapterFile::Open(path.string()));
      KVCACHE_RETURN_IF_ERROR(CheckRuns(*file, *base).WithContext(path.string()));
      KVCACHE_ASSIGN_OR_RETURN(ManifestLayer layer,
                               store_.AddFile(lock_, media_type::kAdapter, path.string()));
      manifest_.layers.push_back(std::move(layer));
      return Status::Ok();
    }
    KVCACHE_ASSIGN_OR_RETURN(const auto image, ImportPeftAdapter(path.string(), *base));
    KVCACHE_ASSIGN_OR_RETURN(const auto file, AdapterFile::Parse(image, path.string()));
    KVCACHE_RETURN_IF_ERROR(CheckRuns(*file, *base).WithContext(path.string()));
    return Add(media_type::kAdapter, {reinterpret_cast<const char*>(image.data()), image.size()});
  }

  // Gives the adapter to the model without its weights. Errors: those that a run would have.
  static Status CheckRuns(const AdapterFile& adapter, const GgufFile& base) {
    const std::unique_ptr<Backend> shapes = MakeShapeBackend();
    KVCACHE_ASSIGN_OR_RETURN(const auto model, LoadModel(base, *shapes));
    return model->AddAdapter(adapter);
  }

  Status AddConfig(const Modelfile& file) {
    if (!file.requires_version.empty()) config_["requires"] = file.requires_version;
    config_["architecture"] = "amd64";
    config_["os"] = "linux";
    auto digests = nlohmann::ordered_json::array();
    for (const ManifestLayer& layer : manifest_.layers) digests.push_back(layer.digest);
    config_["rootfs"]["type"] = "layers";
    config_["rootfs"]["diff_ids"] = std::move(digests);
    const std::string text = config_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    KVCACHE_ASSIGN_OR_RETURN(manifest_.config, store_.AddBytes(lock_, media_type::kConfig, text));
    return Status::Ok();
  }

  const ModelStore& store_;
  StoreLock& lock_;
  const fs::path folder_;
  const CreateOptions& options_;
  nlohmann::ordered_json config_;
  std::vector<std::string> blobs_;  // of the weights, in the store
  std::string base_;                // the same as one path
  Manifest manifest_;
};

// Refuses a template that would fail at the model's first answer.
Status CheckTemplate(const Modelfile& file) {
  if (!file.chat_template) return Status::Ok();
  if (IsGoTemplate(*file.chat_template)) {
    return Unsupported(
        "TEMPLATE is written in Go's template language; give one in Jinja, or leave it out, and "
        "the template in the weights is used");
  }
  auto parsed = ChatTemplate::Parse(*file.chat_template);
  if (parsed.ok()) return Status::Ok();
  return std::move(parsed).TakeStatus().WithContext("TEMPLATE");
}

}  // namespace

Status CreateModel(const ModelStore& store, const ModelName& name, Modelfile file,
                   const CreateOptions& options) {
  KVCACHE_RETURN_IF_ERROR(CheckRequires(file.requires_version, KVCACHE_VERSION));
  KVCACHE_RETURN_IF_ERROR(CheckTemplate(file));
  KVCACHE_RETURN_IF_ERROR(FetchNamed(file, options));
  KVCACHE_ASSIGN_OR_RETURN(StoreLock lock, store.Lock());
  KVCACHE_ASSIGN_OR_RETURN(const Manifest manifest,
                           Creator(store, lock, options).Create(name.Short(), std::move(file)));
  return store.Write(lock, name, manifest);
}

}  // namespace kvcache::app
