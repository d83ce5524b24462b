// The tensors of a model in Hugging Face's layout: model.safetensors, or the shards that
// model.safetensors.index.json names.
//
// Names are without the prefixes that wrap a text model ("model.", "language_model.model.",
// "model.language_model.", "bert.", "roberta."): "layers.0.self_attn.q_proj.weight", "norm.weight", "lm_head.weight".
// Towers for images and sound are left out.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "convert/hf_directory.h"
#include "gguf/ggml_type.h"
#include "kvcache/status.h"
#include "safetensors/safetensors.h"

namespace kvcache {

class HfWeights {
 public:
  struct Tensor {
    const SafeTensor* data = nullptr;
    GgmlType type = GgmlType::kF32;
    std::string where;  // the file and the name in it, for messages
  };

  // Maps and checks all files. Errors: a missing shard or tensor, a shard outside of the directory,
  // a tensor that occurs twice; kUnsupported: pickled weights; those of SafetensorsFile::Open.
  static Result<HfWeights> Open(const HfDirectory& directory);

  bool Has(std::string_view name) const { return tensors_.contains(name); }

  // Returns the tensor and marks it as used. Errors: kNotFound, with the name; kUnsupported: its
  // type is not F32, F16 or BF16.
  Result<Tensor> Take(std::string_view name);

  // Marks a tensor as used, if it is there.
  void Ignore(std::string_view name) { used_.emplace(name); }

  // Leaves out the heads for multi-token prediction (mtp.*) that no call above has marked.
  void LeaveOutHeads();

  // Returns kUnsupported, with the first tensor that no call above has marked.
  Status CheckAllUsed() const;

  // The number of tensors that were left out.
  std::size_t left_out() const { return left_out_; }

 private:
  HfWeights() = default;
  Status AddFile(const HfDirectory& directory, const std::string& name);
  Status AddShards(const HfDirectory& directory);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::set<std::string, std::less<>> used_;
  std::size_t left_out_ = 0;
};

}  // namespace kvcache
