// Turns texts into vectors (embeddings), and scores documents for a query (reranking).
//
//   auto embedder = Embedder::Open("nomic-embed.gguf");
//   std::vector<std::vector<std::int32_t>> inputs;
//   for (std::string_view text : texts) inputs.push_back(*(*embedder)->EncodeInput(text));
//   auto result = (*embedder)->Embed(inputs);
//   std::span<const float> first = result->vector(0);
//
// Three kinds of files serve. An encoder (bert, nomic-bert, modern-bert, gemma-embedding) reads a whole input
// at once, and each token sees all others. A decoder made for embeddings (qwen3 with a pooling) reads a token
// after the other, and so does any other model that generates text. For decoders the tokens that several
// inputs begin with, such as an instruction, are computed once.
//
// Exactness: the values of an input are a function of its tokens and of the file. They have the same bits
// whatever other inputs are in the call, on any number of threads, and with and without shared tokens. The adapters of
// a call are a part of this function.
//
// Thread safety: one thread at a time; the const calls may run beside others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/status.h"
#include "kvcache_engine/adapter.h"
#include "kvcache_engine/engine.h"

namespace kvcache {

// How the states of an input's tokens become its vector.
enum class Pooling : std::uint8_t {
  kNone,  // a vector for each token
  kMean,  // the mean of all
  kCls,   // the first
  kLast,  // the last
  kRank,  // a score of the first (encoders) or last (decoders)
};

// Returns "none", "mean", "cls", "last" or "rank".
std::string_view NameOf(Pooling pooling);

struct EmbedderOptions {
  int threads = 0;                                 // of the CPU backend; 0: one per core
  bool uses_numa = true;                           // as in EngineOptions
  int gpu_layers = EngineOptions::kAutoGpuLayers;  // as in EngineOptions
  // Tokens of the longest input; 0: as many as the model was trained for, at most kDefaultContext of engine.h
  // for decoders.
  int context = 0;
  int pass_tokens =
      512;  // of the largest pass; inputs of an encoder are never divided, and may exceed it
  // In place of the file's. A file that states none, or "none": kLast for decoders, kMean for encoders.
  std::optional<Pooling> pooling{};
  // LoRA adapters (adapter.h), which calls choose by their index.
  std::vector<EngineAdapter> adapters{};
};

struct EmbedderInfo {
  std::string architecture;
  std::string name;    // general.name, or empty
  int dimensions = 0;  // values of a vector
  Pooling pooling = Pooling::kMean;
  int max_input_tokens = 0;
  bool is_reranker = false;  // Rank serves, and Embed does not
  bool is_causal = false;    // a decoder: inputs share what they begin with
  int vocabulary_size = 0;   // every token is below it
  std::int64_t parameters = 0;
};

// What happens to an input that is longer than max_input_tokens.
enum class LongInput : std::uint8_t {
  kRefuse,    // kInvalidArgument with both numbers
  kTruncate,  // its last tokens are left out, except for a final end-of-text token
};

struct EmbedOptions {
  bool normalize = true;  // to length 1
  // Leading values of each vector that are kept (Matryoshka); 0: all. They are normalized after the cut.
  int dimensions = 0;
  std::vector<AdapterUse> adapters{};  // of all inputs of the call; in any order, scales of 0 too
  std::size_t first_input = 0;         // the index of the call's first input in messages
  // The call ends early, with kCancelled, once *interrupt is true; null: never.
  const std::atomic<bool>* interrupt = nullptr;
  // Called between two passes of the call, and between two layers of an encoder, which never divides an input. It is
  // called on the call's thread: other work may use the processors meanwhile. Must neither call the embedder nor throw.
  // Empty: nothing.
  std::function<void()> between_passes{};
};

struct Embeddings {
  int dimensions = 0;
  std::vector<float> values;  // vectors one after another, in the order of the inputs
  std::vector<std::size_t>
      vectors;                     // [inputs] of each input: its tokens with Pooling::kNone, else 1
  std::int64_t tokens = 0;         // of all inputs
  std::int64_t reused_tokens = 0;  // of these: those of another input, or what it begins with

  // Returns the vector of an input, its first one with Pooling::kNone. REQUIRES: i < vectors.size().
  std::span<const float> vector(std::size_t i) const {
    std::size_t before = 0;
    if (values.size() == vectors.size() * static_cast<std::size_t>(dimensions)) {
      before = i;
    } else {
      for (std::size_t j = 0; j < i; ++j) before += vectors[j];
    }
    const auto size = static_cast<std::size_t>(dimensions);
    return std::span(values).subspan(before * size, size);
  }
};

struct Ranks {
  // [documents]: larger is more relevant. Encoders give any number, as published; decoders a probability.
  std::vector<float> scores;
  std::int64_t tokens = 0;         // of all pairs
  std::int64_t reused_tokens = 0;  // as in Embeddings
};

class Embedder {
 public:
  // Opens a GGUF file to run on `backend`; null: the CPU. Errors name the file and what is wrong with it, or
  // the option; those of adapters begin with the adapter's path; kUnsupported for a model that has both an encoder and
  // a decoder (t5).
  static Result<std::unique_ptr<Embedder>> Open(const std::string& path,
                                                const EmbedderOptions& options = {},
                                                std::unique_ptr<Backend> backend = nullptr);
  virtual ~Embedder() = default;
  // Returns what Engine::machine returns of an engine.
  const std::string& machine() const { return machine_; }
  Embedder(const Embedder&) = delete;
  Embedder& operator=(const Embedder&) = delete;

  virtual const EmbedderInfo& info() const = 0;
  // Returns the adapters that it was opened with, by their numbers.
  virtual std::span<const AdapterInfo> adapters() const = 0;

  // Returns the tokens of a text, with those that the vocabulary puts around one ([CLS], [SEP], <s>, </s>,
  // an end of text). Texts of special tokens are plain text. Errors: kInvalidArgument for a text that is too
  // long, or that has no token at all.
  virtual Result<std::vector<std::int32_t>> EncodeInput(
      std::string_view text, LongInput when_long = LongInput::kRefuse) const = 0;

  // Returns the tokens of a query and a document for Rank, by the file's template or by its separators. What
  // kTruncate leaves out is the document's. Errors: as EncodeInput; kUnsupported unless is_reranker.
  virtual Result<std::vector<std::int32_t>> EncodePair(
      std::string_view query, std::string_view document,
      LongInput when_long = LongInput::kRefuse) const = 0;

  // Returns all tokens of a text, however many; `with_special`: with those that EncodeInput puts around one.
  // Errors: kInvalidArgument: 2^30 bytes or more.
  virtual Result<std::vector<std::int32_t>> Tokenize(std::string_view text,
                                                     bool with_special) const = 0;
  // Returns the text of tokens; control tokens have none. Errors: kInvalidArgument: an id that is not in the
  // vocabulary, with its index.
  virtual Result<std::string> Detokenize(std::span<const std::int32_t> tokens) const = 0;
  // Returns the bytes of one token, of a control token those of its name. REQUIRES: it is in the vocabulary.
  virtual std::string Piece(std::int32_t token) const = 0;

  // Computes the vectors of inputs, given as tokens. Errors: kInvalidArgument, naming the input by its index,
  // for one without tokens, one that is too long, a token outside the vocabulary, or `dimensions` above the
  // model's, or adapters as Engine::NormalAdapters refuses them; kUnsupported if is_reranker; kCancelled; kCorrupt, naming the input by its index, for a value that is not
  // finite; those of the kernels. Any later call may succeed.
  virtual Result<Embeddings> Embed(std::span<const std::vector<std::int32_t>> inputs,
                                   const EmbedOptions& options = {}) = 0;

  // Computes the score of each pair, given as EncodePair's tokens. `normalize` and `dimensions` have no
  // effect. Errors: as Embed; kUnsupported unless is_reranker.
  virtual Result<Ranks> Rank(std::span<const std::vector<std::int32_t>> pairs,
                             const EmbedOptions& options = {}) = 0;

  // The same for texts: EncodePair and Rank. Errors: theirs, naming the document by its index.
  Result<Ranks> RankTexts(std::string_view query, std::span<const std::string> documents,
                          LongInput when_long = LongInput::kRefuse,
                          const EmbedOptions& options = {});

  // Returns the bytes of weights outside the mapped file, and of activations and the cache.
  virtual std::int64_t MemoryBytes() const = 0;

 protected:
  Embedder() = default;

 private:
  std::string machine_;  // that Open has found
};

enum class FilePurpose : std::uint8_t {
  kGeneration,  // a decoder that states no pooling
  kEmbedding,   // an encoder, or a decoder that states a pooling
  kReranking,   // the same, whose pooling is kRank
};

// Returns what a model file is made for, of which only the metadata is read. A file for generation may be
// embedded too. Errors: those of opening the file; kNotFound without general.architecture.
Result<FilePurpose> PurposeOf(const std::string& path);

}  // namespace kvcache
