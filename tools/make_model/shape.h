// The shape of a random model.
//
// Thread safety: values and functions without state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache::make_model {

enum class Output : std::uint8_t {
  kUntied,
  kTied
};  // tied: the embedding is also the output matrix

enum class RopeScaling : std::uint8_t { kNone, kLinear, kLlama3, kYarn };

// Settings of single families; 0: the family's default.
struct FamilyShape {
  int chunk = 0;               // llama4: tokens of a chunk
  int expert_step = 0;         // llama4: every n-th layer has experts
  int temperature_length = 0;  // llama4: tokens between the steps of the queries' factor
  int kv_rank = 0;             // deepseek2: values of a token's latent vector
  int q_rank = 0;              // deepseek2: values of the queries' latent vector; 0: none
  int rope_dims = 0;           // deepseek2: rotated values of a head, in addition to head_dim
  int dense_layers = 0;        // deepseek2: layers without experts, the first ones
  int shared_experts = 0;      // deepseek2: experts of each layer that all tokens use
  int expert_groups = 0;       // deepseek2: groups from which experts are chosen
  int expert_groups_used = 0;
  bool sigmoid_experts = false;  // deepseek2: sigmoid router with a bias for the choice, as in V3
  int decoder_layers = 0;        // t5: layers of the decoder; 0: as many as the encoder's
  bool ungated = false;          // t5: a feed-forward part with ReLU instead of a GELU gate
  bool whole_kv = false;         // deepseek2: one matrix for keys and values, as in old files
  int latent = 0;                // nemotron_h_moe: values that experts read; 0: the hidden size
  int attention_step = 0;        // hybrids: every n-th layer is attention
  int state_dim = 0;             // hybrids: values of a key of the state
  int state_heads = 0;           // hybrids: heads of the state
  int state_groups = 0;          // hybrids: groups of heads that share keys
  int nextn_layers = 0;          // draft heads: blocks that predict further tokens
  int target_size = 0;           // gemma4-assistant: hidden size of its model; 0: twice the own
  int pooling = 0;               // encoders, qwen3: the number of the pooling; 0: no key
  int labels = 0;                // encoders, qwen3: scores of a reranker; 0: none
  int dense = 0;          // gemma-embedding: values between the dense layers; 0: no such layers
  int shared_layers = 0;  // gemma3n: last layers without keys and values; 0: the family's
  bool rotates = false;   // granitehybrid: queries and keys are rotated
};

struct Shape {
  int layers = 2;
  int hidden_size = 128;
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 32;
  int ffn = 256;
  int vocab = 512;
  Output output = Output::kUntied;
  int context = 2048;
  float rope_base = 10000.0f;
  RopeScaling rope_scaling = RopeScaling::kNone;
  float rope_factor = 4.0f;
  int rope_original_context = 256;
  int window_pattern =
      -1;           // n: every n-th layer has no window, 0: all have one; -1: the family's own
  int window = 0;   // tokens that a query sees in a layer with a window; 0: the family's own
  int experts = 0;  // of each layer; 0: none
  int experts_used = 2;
  int expert_ffn = 64;
  FamilyShape family = {};
};

// Returns the shape of a preset. Errors: kNotFound with the known names.
Result<Shape> PresetShape(const std::string& name);

// Returns kInvalidArgument, naming the flags, for a size out of bounds or sizes that contradict
// each other. `type` is the matrices' type; their rows must be whole blocks.
Status CheckShape(const Shape& shape, DType type);

}  // namespace kvcache::make_model
