// Names of modules in Hugging Face's models → tensors of GGUF files, for the architectures that the import of models
// writes.
//
// Thread safety: values and free functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"
#include "kvcache/status.h"

namespace kvcache {

// Where the rows of a module's B go.
struct PeftTarget {
  std::string tensor;            // of the GGUF file, with ".weight"
  std::int64_t expert = -1;      // -1: it is no part of a stack
  std::int64_t rows = 0;         // of the tensor; 0: as many as the module has
  std::int64_t source_rows = 0;  // that the module must have; 0: any number
  // Returns the row of the module for a row of the tensor; empty: the same.
  std::function<std::int64_t(std::int64_t)> source_row{};
};

class PeftModules {
 public:
  // Reads from the base what the orders of rows depend on. Errors: kUnsupported for an architecture that the import of
  // models does not write; those of its keys.
  static Result<PeftModules> For(const GgufFile& base);

  const std::string& architecture() const { return architecture_; }
  std::int64_t experts() const { return experts_; }  // of a layer; 0: none

  // Returns the tensors of a module, such as "layers.0.self_attn.q_proj"; none if it is not known.
  std::vector<PeftTarget> TargetsOf(std::string_view module) const;

 private:
  std::vector<PeftTarget> InLayer(const std::string& prefix, std::string_view module) const;
  std::vector<PeftTarget> OfExpert(const std::string& prefix, std::string_view module) const;
  std::vector<PeftTarget> OfDelta(const std::string& prefix) const;

  std::string architecture_;
  std::int64_t head_dim_ = 0;  // of llama's heads, whose rows change places; else 0
  std::int64_t experts_ = 0;
  // Of qwen3next's delta nets.
  std::int64_t k_dim_ = 0, v_dim_ = 0, groups_ = 0, heads_ = 0;
};

}  // namespace kvcache
