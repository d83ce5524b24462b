// Where models are: a file, a name in the local store, or the small model that ships.
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

// The folders that hold models by name, in the order they are searched: $KVCACHE_MODELS (or
// the user's data folder), then what is installed or built beside this program.
std::vector<std::string> ModelFolders();

// Every model in those folders, sorted by name; of equal names the first found.
std::vector<StoredModel> ListModels();

// The path of MODEL: a .gguf file, or a name; empty means the model that ships.
// kNotFound says where was looked.
Result<std::string> FindModel(const std::string& model);

// Writes what is odd about the vocabulary of MODEL to standard error, a line each.
void PrintNotes(const std::string& model, const Tokenizer& tokenizer);

// The tokenizer of MODEL, without its weights.
Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& model);

}  // namespace kvcache::cli
