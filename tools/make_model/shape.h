// What a random model is asked to look like.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kvcache/status.h"
#include "kvcache/types.h"

namespace kvcache::make_model {

enum class Output : std::uint8_t { kUntied, kTied };  // tied: the embedding is the output too

enum class RopeScaling : std::uint8_t { kNone, kLinear, kLlama3, kYarn };

// What some families have alone; 0: what they have by default.
struct FamilyShape {
  int chunk = 0;               // llama4: tokens of a chunk
  int expert_step = 0;         // llama4: every so many layers have experts
  int temperature_length = 0;  // llama4: tokens after which queries grow
  int kv_rank = 0;             // deepseek2: values of a token's latent vector
  int q_rank = 0;              // deepseek2: of queries' latent vector; 0: they have none
  int rope_dims = 0;           // deepseek2: of a head's query, beside its head_dim
  int dense_layers = 0;        // deepseek2: the first ones, without experts
  int shared_experts = 0;      // deepseek2: of each layer
  int expert_groups = 0;       // deepseek2: out of which experts are chosen
  int expert_groups_used = 0;
  bool sigmoid_experts = false;  // deepseek2: and a bias for their choice, as V3
  int decoder_layers = 0;        // t5: of the decoder; 0: as many as the encoder's
  bool ungated = false;          // t5: a feed-forward part with ReLU instead of GELU's gate
  bool whole_kv = false;         // deepseek2: the form of old files, which is not absorbed
  int attention_step = 0;        // hybrids: every so many layers are attention
  int state_dim = 0;             // hybrids: values of a key of the state
  int state_heads = 0;           // hybrids: heads of the state
  int state_groups = 0;          // hybrids: groups of heads with keys of their own
  bool turns = false;            // granitehybrid: queries and keys turn
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
  int window_pattern = -1;  // every so many layers see everything, 0: none; -1: the family's own
  int window = 0;   // tokens that a query sees in a layer with a window; 0: the family's own
  int experts = 0;  // of each layer; 0: none
  int experts_used = 2;
  int expert_ffn = 64;
  FamilyShape family = {};
};

// The shape of a preset, or kNotFound with those that there are.
Result<Shape> PresetShape(const std::string& name);

// kInvalidArgument for a size out of bounds or sizes that contradict each other, naming the
// flags; `type` is that of the matrices, whose rows must be whole blocks.
Status CheckShape(const Shape& shape, DType type);

}  // namespace kvcache::make_model
