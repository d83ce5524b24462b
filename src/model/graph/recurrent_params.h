// The recurrent layers of a model and the sizes of their states, from a file's metadata.
//
//   key                        meaning
//   attention.head_count_kv    an array: layers with 0 are recurrent
//   full_attention_interval    n: every n-th layer is attention (qwen3next, qwen35; 4 if missing)
//   attention.recurrent_layers which layers are recurrent, in place of the interval
//   shortconv.l_cache          taps of a short convolution over the hidden size (lfm2)
//   ssm.conv_kernel            taps; ssm.inner_size + 2 · group_count · state_size channels
//   ssm.state_size             values of a key: a head's state is [inner_size / heads, state_size]
//   ssm.time_step_rank         heads of the state
//   ssm.group_count            groups of heads that share keys and queries
//
// Thread safety: a value.
#pragma once

#include <vector>

#include "kvcache/status.h"
#include "model/load/hyperparameters.h"
#include "model/load/key_reader.h"

namespace kvcache {

struct RecurrentParams {
  std::vector<int> layers{};  // recurrent layers, ascending; empty: none
  int taps = 0;               // of the convolution, including the token's own
  int channels = 0;           // of the convolution
  int k_dim = 0;              // values of a key; 0: no state besides the convolution's
  int v_dim = 0;              // values of a head's input and output
  int heads = 0;              // of the state
  int groups = 0;             // groups of heads that share keys and queries

  std::int64_t state_size() const { return std::int64_t{v_dim} * k_dim * heads; }
  int inner() const { return v_dim * heads; }
  int key_size() const { return k_dim * groups; }
};

// Returns the file's recurrent layers; none for families that have none. Sets `params->kv_heads` of
// recurrent layers to 0. REQUIRES: `params` comes from ReadLayerParams with LayerKinds::kHybrid.
// Errors name the key.
Result<RecurrentParams> ReadRecurrentParams(KeyReader& keys, LayerParams* params);

}  // namespace kvcache
