// Imports a model in Hugging Face's layout (config.json, tokenizer.json, safetensors) as a GGUF
// file.
//
// The class in config.json's `architectures` selects the family. Everything that is not known is an
// error that names the file, the key or tensor, its value and the rule. The file's keys and tensors
// are those that llama.cpp's converter writes.
//
// Thread safety: free functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "convert/weight_scheme.h"
#include "kvcache/status.h"

namespace kvcache {

struct ImportRequest {
  std::string directory;
  std::string path;                         // of the new file
  std::optional<WeightScheme> scheme = {};  // of the matrices; empty: as in the model
  int threads = 0;                          // 0: one per core
};

struct ImportResult {
  std::vector<std::string> notes;  // for people: what was left out
};

// Writes the file. Errors: those of HfDirectory, HfWeights and the families (kNotFound, kCorrupt,
// kUnsupported), and those of WriteTensors. After an error there is no new file.
Result<ImportResult> ImportModel(const ImportRequest& request);

}  // namespace kvcache
