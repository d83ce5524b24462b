// A complete transformer, small enough to read: 3 layers, 2 of them with a window of 16, a
// vocabulary of bytes, and weights from a formula.
//
// It shows how a model uses the library: it makes a cache for its layers, and a pass is
// StartForward, then per layer SetLayer, Put, Get and attention with its own kernels.
//
// Thread safety: one thread at a time.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "kvcache/cache.h"
#include "tiny_backend.h"

namespace example {

class TinyModel {
 public:
  static constexpr int kLayers = 3;
  static constexpr int kWindow = 16;
  static constexpr int kHeads = 4;
  static constexpr int kKvHeads = 2;
  static constexpr int kHeadDim = 8;
  static constexpr int kWidth = kHeads * kHeadDim;
  static constexpr int kVocabulary = 128;

  TinyModel();

  // Layers 0 and 1 have a window, layer 2 full attention.
  std::unique_ptr<kvcache::Cache> MakeCache();

  // Evaluates `text` from `position` on. Returns the last token's logits, [kVocabulary].
  kvcache::Result<std::vector<float>> Forward(kvcache::Cache& cache, kvcache::SequenceId sequence,
                                              kvcache::Position position, std::string_view text);

  TinyBackend& backend() { return backend_; }

 private:
  using Matrix = std::vector<float>;  // [rows][columns]
  struct Layer {
    Matrix q, k, v, o, up, down;
  };

  kvcache::Status Attention(const Layer& layer, kvcache::Cache& cache,
                            const std::vector<kvcache::Position>& positions, std::vector<float>& x);
  void FeedForward(const Layer& layer, std::vector<float>& x) const;

  TinyBackend backend_;
  Matrix embedding_;  // [kVocabulary][kWidth], also the output matrix
  std::vector<Layer> layers_;
};

}  // namespace example
