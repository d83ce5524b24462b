// The sizes and settings of a decoder's layers, read from a model file's metadata and checked.
//
// Thread safety: values and functions without state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/backend.h"
#include "kvcache/status.h"
#include "model/load/key_reader.h"
#include "model/load/weights.h"

namespace kvcache {

// The tensors behind the pooling of states (model/graph/pooled_head.h).
enum class PooledHeadKind : std::uint8_t { kNone, kBert, kModernBert, kQwen3, kDense };

// The settings that families share. Those that files may give as an array are per layer.
struct LayerParams {
  std::string name;  // general.name, or empty
  int layers = 0;
  int nextn_layers = 0;       // blocks behind them that predict further tokens
  int hidden_size = 0;        // values per token between layers
  int vocabulary = 0;         // rows of the output matrix
  int embedding_rows = 0;     // rows of the embedding; 0: as many as `vocabulary`
  int context_length = 0;     // tokens that the model was trained for
  std::vector<int> heads;     // [layers]
  std::vector<int> kv_heads;  // [layers]
  std::vector<int> ffn;       // [layers] values between the feed-forward matrices
  int k_dim = 0;              // values of a head's query and key
  int v_dim = 0;              // values of a head's value
  // [rotated pairs]: the axis by which a pair is rotated: time, row, column. Empty: positions have one axis.
  std::vector<std::uint8_t> rope_axes;
  bool v_in_k = false;                        // see KvShape
  Activation activation = Activation::kSilu;  // of the feed-forward part's gate
  bool gated = true;               // else the feed-forward part is Wdown activation(Wup h)
  std::vector<XieluParams> xielu;  // [layers] the activations, if they are xIELUs
  bool fused_gate = false;         // ffn_up is the gate's matrix and then the other one
  Bias ffn_bias = Bias::kNone;     // of ffn_up and ffn_down
  PooledHeadKind pooled_head = PooledHeadKind::kNone;  // what may follow the pooling of states
  std::string_view output_norm_name = "output_norm";   // without ".weight"; empty: no last norm
  bool is_encoder = false;                             // see ModelInfo
  NormKind norm_kind = NormKind::kRms;                 // of hidden states; heads have RMS norms
  float norm_epsilon = 0.0f;
  float attention_scale = 0.0f;     // factor on the scores
  std::int32_t decoder_start = -1;  // see ModelInfo
  float embedding_scale = 1.0f;     // factor on the embeddings
  float logit_scale = 1.0f;         // factor on the logits
  float logit_soft_cap = 0.0f;      // > 0: logits become cap × tanh(logit / cap)
};

enum class LayerKinds : std::uint8_t {
  kAttention,  // every layer has KV heads
  kHybrid,     // layers with 0 KV heads are recurrent
  kPartial,  // the same; layers may also lack heads and a feed-forward part, whose keys may be missing
  kDraftHead,  // all blocks are a draft head's, which are its layers
  kEncoder,  // every layer has KV heads, as many in each, and each token of a text sees all others
};

// Reads the shared settings. Errors name the key: it is missing, has another type, is out of range,
// or has a value that is not supported (kUnsupported).
Result<LayerParams> ReadLayerParams(KeyReader& keys, LayerKinds kinds = LayerKinds::kAttention,
                                    NormKind norm = NormKind::kRms);

// Reads a cap as in LayerParams::logit_soft_cap; 0: none. `otherwise` is the value of a missing
// key. Errors name the key.
Result<float> ReadSoftCap(KeyReader& keys, std::string_view key, double otherwise);

// The settings of a mixture of experts; count is 0 for models without one.
struct ExpertParams {
  int count = 0;
  int used = 0;                 // experts chosen per token
  int ffn = 0;                  // inner size of an expert
  int first_layer = 0;          // layers before it have no experts
  int layer_step = 1;           // n: every n-th layer has experts
  std::int64_t shared_ffn = 0;  // inner size of an expert that all tokens use; 0: none
  bool gates_shared = false;    // that expert's result is multiplied by a gate
  RouterOptions::Gate gate = RouterOptions::Gate::kSoftmax;
  bool renormalize = true;  // divide the chosen experts' weights by their sum
  float weights_scale = 1.0f;
  bool selection_bias = false;  // exp_probs_b.bias may be present; see RouterOptions
  int groups = 1;
  int groups_used = 1;
  int group_best = 1;
  bool weigh_input = false;  // weights multiply an expert's input instead of its output
  float gate_limit = 0.0f;   // > 0: gpt-oss's gate, Backend::GateClamped with gate_alpha
  float gate_alpha = 0.0f;
  bool biases = false;                        // the router and each expert's matrices have biases
  bool gated = true;                          // false: an expert is down (activation (up h))
  Activation activation = Activation::kSilu;  // of the gate, or of an expert without one
  std::int64_t latent = 0;  // width of the experts' inputs and results; 0: the hidden size

  bool InLayer(int layer) const {
    return count > 0 && layer >= first_layer && (layer + 1) % layer_step == 0;
  }
};

// The router settings that a family allows besides a softmax over all experts.
struct ExpertRules {
  bool sigmoid = false;     // expert_gating_func 2
  bool groups = false;      // expert_group_count, expert_group_used_count
  bool renormalize = true;  // the value if expert_weights_norm is missing
};

// Reads the number of layers before those with experts, and the size of the experts that all tokens use, as
// files of DeepSeek's kind state them. Errors name the key.
Status ReadDenseAndShared(KeyReader& keys, const LayerParams& params, ExpertParams* experts);

// Reads the settings of a mixture; count 0 if the file has none. Errors name the key.
Result<ExpertParams> ReadExpertParams(KeyReader& keys, const LayerParams& params,
                                      const ExpertRules& rules = {});

}  // namespace kvcache
