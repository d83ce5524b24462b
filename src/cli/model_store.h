// Finds models: a file, a name in the local store, or the small model that ships.
//
// Thread safety: free functions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "tokenizer/tokenizer.h"

namespace kvcache::cli {

struct StoredModel {
  std::string name;  // the file's name without .gguf
  std::string path;
};

// Returns the folders that hold models by name, in the order of the search: $KVCACHE_MODELS (or the
// user's data folder), then the folders beside this program, installed or built.
std::vector<std::string> ModelFolders();

// Returns every model in those folders, sorted by name; of equal names the first found.
std::vector<StoredModel> ListModels();

// Returns the path of MODEL: a .gguf file, or a name; empty means the model that ships. kNotFound
// names the searched folders.
Result<std::string> FindModel(const std::string& model);

// Writes the notes on the vocabulary of MODEL (Tokenizer::notes) to standard error, a line each.
void PrintNotes(const std::string& model, const Tokenizer& tokenizer);

// Reads the tokenizer of MODEL, without its weights.
Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& model);

}  // namespace kvcache::cli
