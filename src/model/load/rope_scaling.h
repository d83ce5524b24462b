// The rotation (RoPE) of a model's keys and queries: base, scaling and magnitude from the metadata.
//
//   rope.scaling.type   angle of pair i of a head per position, with f_i = base^(-2i / dims)
//   none                f_i
//   linear              f_i / factor
//   yarn                f_i / factor for slow pairs, f_i for fast ones, a ramp between; the rotated
//                       values are multiplied by 1 + 0.1 ln(factor)
//
// Llama 3's scaling is a tensor of divisors of f_i, rope_freqs.weight, with any type. Phi 3's is two of
// them, rope_factors_long.weight and rope_factors_short.weight: the long one counts if the model's context
// exceeds the original one, whatever the length of a text, so that cached keys stay valid. A factor
// without a type means linear (yarn in gpt-oss), and so does longrope in files with such a tensor. `finetuned` has no effect.
//
// Sources: Su et al., "RoFormer" (2021); Peng et al., "YaRN" (2023), sections 3.2 to 3.4; keys as
// in the GGUF specification, and as llama.cpp reads them (src/llama-context.cpp).
// Thread safety: a value.
#pragma once

#include <string>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/status.h"
#include "model/load/hyperparameters.h"
#include "model/load/key_reader.h"
#include "model/load/weights.h"

namespace kvcache {

struct RopeTable {
  RopeParams::Pairing pairing = RopeParams::Pairing::kInterleaved;
  int dims = 0;
  std::vector<float> inv_freq;  // [dims / 2]
  float magnitude = 1.0f;
  int original_context = 0;  // tokens of the first training, before scaling

  // Returns a view, valid as long as the table.
  RopeParams params() const {
    return {.pairing = pairing, .dims = dims, .inv_freq = inv_freq, .magnitude = magnitude};
  }
};

// Reads the rotation. Takes the divisors from `weights` if the file has them. Errors name the key and its
// value.
Result<RopeTable> ReadRope(KeyReader& keys, const LayerParams& params, RopeParams::Pairing pairing,
                           WeightReader& weights);

// Reads the rotation of layers with a window, for families in which it differs: no scaling, base
// rope.freq_base_swa (`otherwise` if missing), over rope.dimension_count_swa values (`head_dim` if
// missing).
Result<RopeTable> ReadWindowRope(KeyReader& keys, int head_dim, RopeParams::Pairing pairing,
                                 double otherwise = 1e4);

// The scaling, for reports.
struct RopeSummary {
  std::string scaling = "none";  // none, linear, llama3 or yarn
  double factor = 1.0;           // of the context's extension; llama3 has one per pair
  int original_context = 0;
};
Result<RopeSummary> ReadRopeSummary(KeyReader& keys, const LayerParams& params);

}  // namespace kvcache
