// A factor on each token's query that grows with its position, so that attention over long texts
// stays sharp:
//
//   factor(p) = 1 + scale · ln(1 + floor((p + offset) / length))
//
// Source: Meta's and Mistral's published inference code (llama4, llama_4_scaling).
// Thread safety: one thread at a time.
#pragma once

#include <span>
#include <vector>

#include "kvcache/kv.h"
#include "kvcache/status.h"

namespace kvcache {

class QueryFactors {
 public:
  QueryFactors() = default;
  // REQUIRES: length is at least 1.
  QueryFactors(double scale, int length, int offset)
      : scale_(scale), length_(length), offset_(offset) {}

  // Allocates memory for passes of `max_batch` tokens. Errors: kOutOfMemory with the number.
  Status Reserve(int max_batch);

  // [positions.size()] factors, valid until the next call. REQUIRES: Reserve for as many tokens.
  std::span<const float> At(std::span<const Position> positions);

 private:
  double scale_ = 0.0;
  int length_ = 1;
  int offset_ = 0;
  std::vector<float> factors_;  // [max_batch]
};

}  // namespace kvcache
