// Reads a LoRA adapter in PEFT's form, and makes of it a GGUF file of the form that llama.cpp's converter writes
// (model/adapter/adapter_file.h), in memory.
//
//   DIRECTORY/adapter_config.json         r, lora_alpha, use_rslora, rank_pattern, alpha_pattern
//   DIRECTORY/adapter_model.safetensors   base_model.model.MODULE.lora_A.weight [r, inputs], lora_B.weight [outputs, r]
//
// Names of modules and orders of rows are those of the import of models. Everything that would change the result and is
// not done here is refused by its name: DoRA, biases, whole modules, adapters that begin at certain tokens, and
// adapters whose training changed the base.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/status.h"

namespace kvcache {

// Returns the file's bytes. `path` is the directory, or the file of tensors with adapter_config.json beside it. Matrices
// keep their type; B becomes f32 if its factor differs from that of the file. Errors name the file, the key or the tensor,
// the value and the rule: kNotFound, kCorrupt, kUnsupported; kOutOfMemory. All shapes are checked, with those of the base,
// before the values are read: a call holds the new file's bytes, and a few for each tensor.
Result<std::vector<std::byte>> ImportPeftAdapter(const std::string& path, const GgufFile& base);

// The same for the contents of the two files, for tests. `place` begins messages on tensors.
Result<std::vector<std::byte>> ConvertPeftAdapter(std::string_view config,
                                                  std::span<const std::byte> tensors,
                                                  const std::string& place, const GgufFile& base);

// Returns whether a path looks like an adapter in PEFT's form: a directory, or a .safetensors file.
bool IsPeftAdapter(const std::string& path);

}  // namespace kvcache
