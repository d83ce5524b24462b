// The states of an input's tokens → one vector, or one for each token.
//
// Exactness: the mean adds the states in the order of the tokens, in f64, so that inputs that begin with the same
// tokens can begin with the same sum.
//
// Thread safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache_engine/embedder.h"

namespace kvcache {

// The states of the first tokens of an input, as far as a pooling needs them.
class PooledStates {
 public:
  // REQUIRES: `pooling` is not kRank.
  explicit PooledStates(Pooling pooling) : pooling_(pooling) {}

  // Return whether the next states are needed: all of them, or of the next token (and no later one). In the other
  // cases the last token's alone is. Skip takes the place of Append for those that are not.
  bool NeedsAll() const { return pooling_ == Pooling::kMean || pooling_ == Pooling::kNone; }
  bool NeedsFirst() const { return pooling_ == Pooling::kCls && tokens_ == 0; }
  bool NeedsLast() const { return pooling_ == Pooling::kLast; }
  std::int64_t tokens() const { return tokens_; }

  // Adds the states [size, count] of the next tokens. Throws std::bad_alloc.
  void Append(std::span<const float> states, std::size_t size);
  void Skip(std::int64_t count) { tokens_ += count; }

  // Returns the vector, or the vectors of all tokens for Pooling::kNone. REQUIRES: a state was appended.
  std::vector<float> Vectors() const;

 private:
  Pooling pooling_;
  std::int64_t tokens_ = 0;
  std::vector<double> sum_;    // kMean
  std::vector<float> values_;  // the state that counts, or all
};

// Cuts each vector [size] of `vectors` to its first `kept` values and, if `normalize`, divides those by their
// length; a vector of zeros stays.
std::vector<float> FinishVectors(std::span<const float> vectors, std::size_t size, std::size_t kept,
                                 bool normalize);

}  // namespace kvcache
