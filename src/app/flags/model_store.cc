#include "app/flags/model_store.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <utility>

#include "app/terminal/notes.h"
#include "base/errors.h"
#include "base/strings.h"
#include "gguf/gguf.h"
#include "gguf/split_file.h"
#include "model/model.h"

namespace kvcache::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kShippedModel = "story";
constexpr const char* kSuffix = ".gguf";

void AddUserFolder(std::vector<std::string>* folders) {
  for (const char* variable : {"KVCACHE_MODELS", "OLLAMA_MODELS"}) {
    const char* chosen = std::getenv(variable);
    if (chosen != nullptr && *chosen != '\0') return folders->push_back(chosen);
  }
  if (const char* data = std::getenv("XDG_DATA_HOME"); data != nullptr && *data != '\0') {
    folders->push_back(fs::path(data) / "kvcache" / "models");
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    folders->push_back(fs::path(home) / ".local" / "share" / "kvcache" / "models");
  }
}

bool IsModelFile(const fs::path& path) {
  std::error_code ignored;
  return path.extension() == kSuffix && !fs::is_directory(path, ignored);
}

// Adds the models of a folder. Parts of a split file are one model; a whole file of its name comes first.
void AddFiles(const std::string& folder, std::map<std::string, std::string>* found) {
  std::map<std::string, std::string> models;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (!IsModelFile(path)) continue;
    const auto split = ParseSplitName(path);
    if (!split) models[NameOfFile(path)] = path;
    if (split && split->part == 1) models.emplace(NameOfFile(path), path);
  }
  found->merge(models);
}

// Returns the first part of a split file of that name in a folder; empty: there is none.
std::string FindSplit(const std::string& folder, const std::string& name) {
  std::map<std::string, std::string> models;
  AddFiles(folder, &models);
  const auto found = models.find(name);
  return found == models.end() ? "" : found->second;
}

bool IsPath(const std::string& model) {
  std::error_code ignored;
  return model.ends_with(kSuffix) || model.starts_with('/') || model.starts_with("./") ||
         model.starts_with("../") ||
         (model.find('/') != std::string::npos && fs::exists(PartPaths(model).front(), ignored));
}

std::vector<ListedModel> ListStored() {
  std::vector<ListedModel> models;
  const auto store = OpenModelStore();
  if (!store.ok()) return models;
  const auto names = store->List();
  if (!names.ok()) return models;
  for (const ModelName& name : *names) {
    const auto stored = ReadStoredModel(*store, name);
    models.push_back({name.Short(), stored.ok() ? stored->path : "",
                      stored.ok() ? "" : stored.status().message()});
  }
  return models;
}

}  // namespace

std::vector<std::string> ModelFolders() {
  std::vector<std::string> folders;
  AddUserFolder(&folders);
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return folders;
  const fs::path here = program.parent_path();
  folders.push_back(here.parent_path() / "share" / "kvcache" / "models");  // PREFIX/bin
  folders.push_back(here.parent_path().parent_path() / "models");          // build/PRESET
  return folders;
}

std::string NameOfFile(const std::string& path) {
  const auto split = ParseSplitName(path);
  return split ? fs::path(split->prefix).filename().string() : fs::path(path).stem().string();
}

Result<ModelStore> OpenModelStore() {
  std::vector<std::string> folders;
  AddUserFolder(&folders);
  if (!folders.empty()) return ModelStore(folders.front());
  return Status(StatusCode::kNotFound,
                "the model store has no folder; set KVCACHE_MODELS to one, or set HOME");
}

std::vector<ListedModel> ListModels() {
  std::vector<ListedModel> models = ListStored();
  std::map<std::string, std::string> found;
  for (const std::string& folder : ModelFolders()) {
    AddFiles(folder, &found);
  }
  for (const auto& [name, path] : found) models.push_back({name, path, ""});
  return models;
}

Result<FoundModel> LocateModel(const std::string& model) {
  const std::string name = model.empty() ? kShippedModel : model;
  if (IsPath(name)) return FoundModel{name, std::nullopt};
  const auto store = OpenModelStore();
  const auto parsed = ModelName::Parse(name);
  if (store.ok() && parsed.ok()) {
    auto stored = ReadStoredModel(*store, *parsed);
    if (stored.ok()) {
      std::string path = stored->path;
      return FoundModel{std::move(path), std::move(stored).value()};
    }
    const auto read = store->Read(*parsed);
    if (read.status().code() != StatusCode::kNotFound) return std::move(stored).TakeStatus();
  }
  std::string searched;
  for (const std::string& folder : ModelFolders()) {
    const fs::path candidate = fs::path(folder) / (name + kSuffix);
    std::error_code ignored;
    if (fs::exists(candidate, ignored)) return FoundModel{candidate.string(), std::nullopt};
    const std::string split = FindSplit(folder, name);
    if (!split.empty()) return FoundModel{split, std::nullopt};
    searched += " " + folder;
  }
  const bool is_text = name.find(' ') != std::string::npos;
  return Status(StatusCode::kNotFound, "no model '" + name + "' in" + searched +
                                           "; give a .gguf file, or a name that 'kvcache list' "
                                           "shows" +
                                           (is_text ? "; a prompt goes after -p" : ""));
}

Result<std::string> FindModel(const std::string& model) {
  KVCACHE_ASSIGN_OR_RETURN(FoundModel found, LocateModel(model));
  return std::move(found.path);
}

Result<GgufSummary> ReadSummary(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
  if (HasOnlyDraftHead(*file)) {
    return Unsupported(StrCat(path, " has just a draft head"));
  }
  KVCACHE_RETURN_IF_ERROR(file->GetStringOr("general.architecture", "").status());
  return SummaryOf(*file);
}

void AddNotes(const std::string& model, const Tokenizer& tokenizer) {
  for (const std::string& note : tokenizer.notes()) AddNote(StrCat(model, ": ", note));
}

Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& model) {
  KVCACHE_ASSIGN_OR_RETURN(const std::string path, FindModel(model));
  KVCACHE_ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
  auto tokenizer = MakeTokenizer(*file);
  if (!tokenizer.ok()) return std::move(tokenizer).TakeStatus().WithContext(path);
  return tokenizer;
}

}  // namespace kvcache::app
