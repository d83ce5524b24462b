// The numbers that describe a decoder's layers, read from a model file's metadata and checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/status.h"
#include "model/load/key_reader.h"

namespace kvcache {

// Keys that the families share; per-layer values where files may give an array.
struct LayerParams {
  std::string name;
  int layers = 0;
  int width = 0;
  int vocabulary = 0;
  int embedding_rows = 0;  // tokens that have an embedding; 0: as many
  int context_length = 0;
  std::vector<int> heads;     // [layers]
  std::vector<int> kv_heads;  // [layers]
  std::vector<int> ffn;       // [layers]
  int k_dim = 0;              // values of a head's query and key
  int v_dim = 0;              // values of a head's value
  bool v_in_k = false;        // see KvShape
  float norm_epsilon = 0.0f;
  float attention_scale = 0.0f;
  std::int32_t decoder_start = -1;  // see ModelInfo
  float embedding_scale = 1.0f;     // factor on the embedded tokens
  float logit_scale = 1.0f;         // factor on the logits
  float logit_soft_cap = 0.0f;      // > 0: then cap × tanh(logit / cap)
};

enum class LayerKinds : std::uint8_t {
  kAttention,  // every layer has KV heads
  kHybrid,     // those without any are recurrent
};

// Errors name the key: missing, of another type, out of range, or (kUnsupported) a setting that
// is not served.
Result<LayerParams> ReadLayerParams(KeyReader& keys, LayerKinds kinds = LayerKinds::kAttention);

// A cap as in LayerParams::logit_soft_cap; 0: none. Errors name the key.
Result<float> ReadSoftCap(KeyReader& keys, std::string_view key, double otherwise);

// A mixture of experts, as its keys describe it; count is 0 where there is none.
struct ExpertParams {
  int count = 0;
  int used = 0;        // of each token
  int ffn = 0;         // inner width of one
  int shared_ffn = 0;  // of one that all tokens go through, where a family has it; 0: none
  RouterOptions::Gate gate = RouterOptions::Gate::kSoftmax;
  bool renormalise = true;
  float weights_scale = 1.0f;
  bool selection_bias = false;  // exp_probs_b.bias may be there: see RouterOptions
  int groups = 1;
  int groups_used = 1;
  int group_best = 1;
  bool weigh_input = false;  // weights multiply what goes into an expert, not what comes out
  Activation activation = Activation::kSilu;
  float gate_limit = 0.0f;  // > 0: gpt-oss's gate, Backend::GateClamped with gate_alpha
  float gate_alpha = 0.0f;
  bool biases = false;  // of the router, and of each expert's matrices
};

// What a family's files may ask for beside a softmax over all experts.
struct ExpertRules {
  bool sigmoid = false;     // expert_gating_func 2
  bool groups = false;      // expert_group_count, expert_group_used_count
  bool renormalise = true;  // where expert_weights_norm is missing
};

Result<ExpertParams> ReadExpertParams(KeyReader& keys, const LayerParams& params,
                                      const ExpertRules& rules = {});

}  // namespace kvcache
