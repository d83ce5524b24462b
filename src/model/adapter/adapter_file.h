// A LoRA adapter in a GGUF file, as llama.cpp writes it:
//
//   general.type = "adapter", adapter.type = "lora", general.architecture, adapter.lora.alpha
//   NAME.lora_a [inputs, r] and NAME.lora_b [r, outputs] for a matrix NAME of the base model
//
// Stacks of matrices (experts) have a third dimension. The pair of the embedding is the other way round:
// token_embd.weight.lora_a is [r, vocabulary], and lora_b is [r, hidden_size].
//
// Reading checks all that does not depend on the base: keys, pairs, ranks, types, and that all values are numbers.
//
// Thread safety: const calls from any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "gguf/gguf.h"
#include "kvcache/status.h"

namespace kvcache {

// A pair of matrices for one tensor of the base.
struct AdapterPair {
  std::string tensor;             // of the base: "blk.0.attn_q.weight"
  const GgufTensor* a = nullptr;  // never null in a file that was read
  const GgufTensor* b = nullptr;
  std::int64_t rank = 0;  // r
};

// The tensor whose pair is the other way round.
inline constexpr std::string_view kEmbeddingTensor = "token_embd.weight";

class AdapterFile {
 public:
  // Errors begin with the path: those of GgufFile::Open; kInvalidArgument: the file is no adapter; kUnsupported: an
  // adapter of another kind, a tensor that belongs to no pair, a type of values that is not read; kCorrupt: an alpha
  // or a rank out of range, half of a pair, a value that is no number.
  static Result<std::unique_ptr<AdapterFile>> Open(const std::string& path);
  // The same over memory that outlives the result; `path` is for messages only.
  static Result<std::unique_ptr<AdapterFile>> Parse(std::span<const std::byte> bytes,
                                                    std::string path);

  const std::string& path() const { return file_->path(); }
  std::string_view architecture() const { return architecture_; }  // of the base
  double alpha() const { return alpha_; }                          // 0: there is none
  std::span<const AdapterPair> pairs() const { return pairs_; }    // by name; at least one
  std::int64_t max_rank() const;
  const Sha256Hash& digest() const { return digest_; }  // of all bytes
  std::uint64_t size_bytes() const { return file_->size_bytes(); }

 private:
  explicit AdapterFile(std::unique_ptr<GgufFile> file) : file_(std::move(file)) {}

  static Result<std::unique_ptr<AdapterFile>> Read(std::unique_ptr<GgufFile> file);
  Status ReadKeys();
  Status ReadPairs();
  static Status CheckPair(AdapterPair& pair);

  std::unique_ptr<GgufFile> file_;
  std::string architecture_;
  double alpha_ = 0.0;
  std::vector<AdapterPair> pairs_;
  Sha256Hash digest_{};
};

}  // namespace kvcache
