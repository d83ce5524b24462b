// Finds models: a file, a name in the local store, or the small model that ships.
//
// The store's folder is $KVCACHE_MODELS, else $OLLAMA_MODELS, else the user's data folder
// (~/.local/share/kvcache/models). It holds the store's manifests and blobs (model_store.h of the
// layer below), and .gguf files, which also have names.
//
// Thread safety: free functions.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gguf/gguf_summary.h"
#include "kvcache/status.h"
#include "model_store/stored_model.h"
#include "tokenizer/tokenizer.h"

namespace kvcache::app {

struct ListedModel {
  std::string name;  // in the store; or a file's name without .gguf
  std::string path;  // of the weights; empty if `error` says why there are none
  std::string error;
};

struct FoundModel {
  std::string path;                   // of the weights, as in PartPaths
  std::optional<StoredModel> stored;  // if MODEL is a name of the store
};

// Returns the folders that hold models by name, in the order of the search: the store's, then the
// folders beside this program, installed or built.
std::vector<std::string> ModelFolders();

// Returns the store. Errors: kNotFound: no variable names its folder.
Result<ModelStore> OpenModelStore();

// Returns the name of a file: without its folder, ".gguf" and the number of a part.
std::string NameOfFile(const std::string& path);

// Returns the models of the store, then every file in those folders, each sorted by name; of equal
// names the first found.
std::vector<ListedModel> ListModels();

// Finds MODEL: empty means the model that ships; a text that ends with .gguf, begins with /, ./ or
// ../, or holds a / and exists, is a path; else a name of the store, or of a file in the folders.
// kNotFound names the searched folders. A name of the store whose model is damaged is an error.
Result<FoundModel> LocateModel(const std::string& model);

// Returns the path that LocateModel finds.
Result<std::string> FindModel(const std::string& model);

// Returns what lists show of the weights at a path. Errors: those of GgufFile::Open; kUnsupported: the file has
// just a draft head.
Result<GgufSummary> ReadSummary(const std::string& path);

// Adds the notes on the vocabulary of MODEL (Tokenizer::notes) to those of the command.
void AddNotes(const std::string& model, const Tokenizer& tokenizer);

// Reads the tokenizer of MODEL, without its weights.
Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& model);

}  // namespace kvcache::app
