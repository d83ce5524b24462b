// --adapter FILE[:SCALE]: LoRA adapters beside the weights of a model.
//
// Thread safety: a value.
#pragma once

#include <string>
#include <vector>

#include "app/flags/command_line.h"
#include "kvcache/status.h"
#include "kvcache_engine/adapter.h"

namespace kvcache::app {

struct GivenAdapter {
  std::string path;  // a GGUF file, a directory in PEFT's form, or its .safetensors file
  float scale = 1.0f;
};

// Reads FILE or FILE:SCALE: what follows the last colon is the scale if it is a number and no file has the
// whole text as its name. Errors: kInvalidArgument: no file, or a scale out of range (kMaxAdapterScale).
Result<GivenAdapter> ParseAdapter(const std::string& text);

// Returns the name that clients of a server use: the file's or the directory's, without its ending.
std::string AdapterName(const std::string& path);

// Returns what an engine with the weights at `model` opens. An adapter in PEFT's form is converted. Errors begin with
// the adapter's path.
Result<std::vector<EngineAdapter>> LoadAdapters(const std::vector<GivenAdapter>& adapters,
                                                const std::string& model);

class AdapterFlags {
 public:
  // Declares the flag. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command);

  // Sets the adapters for a command line without the flag, with a scale of 1: the ADAPTERs of a stored model.
  void SetDefault(const std::vector<std::string>& paths);

  std::vector<GivenAdapter> given() const;
  // What the command's requests use of the adapters that LoadAdapters returns for these.
  std::vector<AdapterUse> Uses() const;

 private:
  std::vector<std::string> texts_;  // as ParseAdapter reads them
  std::vector<std::string> paths_;  // without the flag
};

}  // namespace kvcache::app
