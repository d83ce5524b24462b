// Writes a GGUF model as a directory in Hugging Face's layout, for tests: the inverse of the import,
// written on its own, from Hugging Face's conventions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "gguf/gguf.h"

namespace kvcache {

struct HfStyle {
  int shards = 1;              // files of weights
  bool parameters = false;     // rope_parameters and dtype instead of rope_theta and torch_dtype
  bool pairs = false;          // merges as pairs instead of texts
  bool text_config = false;    // the settings in text_config, tensors under language_model.model.
  nlohmann::json config = {};  // replaces keys of config.json; null removes one
  int first_positions = 0;     // rows of RoBERTa's table of positions that no text has
  nlohmann::json modules = nlohmann::json::array();  // more modules of sentence-transformers
};

// Writes the files into `directory`, which is created. The vocabulary is that of make_model.
void WriteHfDirectory(const GgufFile& file, const std::string& directory,
                      const HfStyle& style = {});

// Returns whether Hugging Face's tensor is that of the file minus 1.
bool HfNormsLackOne(const std::string& architecture, const std::string& name);

// Writes the tensors of a safetensors file: name, type, shape and bytes.
struct HfTensor {
  std::string name, type;
  std::vector<std::int64_t> shape;
  std::string bytes;
};
std::string SafetensorsBytes(const std::vector<HfTensor>& tensors);

void WriteText(const std::string& path, const std::string& text);

}  // namespace kvcache
