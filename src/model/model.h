// A model: weights bound to a backend, and its forward pass over a cache.
//
// One implementation per architecture, one file each (llama.cc, …), registered in
// architectures.cc. A model keeps no state between passes beyond scratch: all that it
// remembers is in the cache.
//
// Thread safety: one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/cache.h"
#include "kvcache/status.h"
#include "model/layer_memory.h"

namespace kvcache {

class GgufFile;

// What everyone may know of a model.
struct ModelInfo {
  std::string architecture;  // as in general.architecture
  std::string name;          // general.name, or empty
  int layers = 0;
  int hidden_size = 0;     // values of a token's hidden state
  int vocabulary = 0;      // rows of the output matrix
  int embedding_rows = 0;  // tokens that can be evaluated: at least as many
  int context_length = 0;  // that it was trained for
  std::int64_t parameters = 0;
  // Of a model with an encoder: the token that every text of its decoder begins with. Else -1.
  std::int32_t decoder_start = -1;
  std::vector<LayerMemory> memory;  // what its layers keep of a text
};

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelInfo& info() const = 0;

  // Encode, EncodeStates and Forward end early, with kCancelled, once *interrupt is true; null:
  // never. A pass that ended early has failed in the middle, as if a kernel had.
  void SetInterrupt(const std::atomic<bool>* interrupt) { interrupt_ = interrupt; }

  // Makes the kind of cache that the layers need, not yet initialised. It refers to the model.
  virtual std::unique_ptr<Cache> MakeCache() = 0;

  // Sizes the scratch for passes of up to `max_batch` tokens. Call before Forward.
  virtual Status Reserve(int max_batch) = 0;

  // What the encoder of a model that has one makes of a whole text, for the decoder's tokens of
  // `sequence` to look at. REQUIRES: cache.StartForward has succeeded for a batch with tokens of
  // `sequence`; that batch's Forward comes next. The output stays as long as the first of those
  // tokens. Errors: kUnsupported for a model without an encoder; kCacheFull with the numbers.
  virtual Status Encode(std::span<const std::int32_t> tokens, SequenceId sequence, Cache& cache);

  // The same of an output that the caller has, such as an image's: states [hidden_size, any
  // number], dense f32 in the backend's memory. It stays as long as the token of the batch's item.
  virtual Status EncodeStates(const TensorView& states, SequenceId sequence, Cache& cache);

  // Evaluates tokens [batch] at `positions`. REQUIRES: cache.StartForward has succeeded for
  // the same positions. Leaves each token's final hidden state in the model's scratch.
  virtual Status Forward(std::span<const std::int32_t> tokens, std::span<const Position> positions,
                         Cache& cache) = 0;

  // Logits [vocabulary, rows.size()] of the given batch indices of the last Forward.
  virtual Status Logits(std::span<const std::int32_t> rows, float* logits) = 0;

  // Bytes that the weights take beside the mapped file (repacked matrices).
  virtual std::size_t OwnedWeightBytes() const = 0;

 protected:
  const std::atomic<bool>* interrupt() const { return interrupt_; }

 private:
  const std::atomic<bool>* interrupt_ = nullptr;
};

// Reads the architecture from the file and binds its weights. `file` and `backend` must
// outlive the model. Errors: kUnsupported for an architecture that is not known, a weight type
// or a setting that is not served; kCorrupt for missing tensors or wrong shapes, by name.
Result<std::unique_ptr<Model>> LoadModel(const GgufFile& file, Backend& backend);

// Ok if the output has one row for each of `tokens` of the vocabulary, else kCorrupt with both
// numbers. llama.cpp has the same rule: it takes the number of rows from the vocabulary. The
// embedding may have more rows (mllama's has eight for images).
Status CheckTokenCount(const ModelInfo& info, std::int32_t tokens);

// The architectures that LoadModel knows.
std::vector<std::string> SupportedArchitectures();

}  // namespace kvcache
