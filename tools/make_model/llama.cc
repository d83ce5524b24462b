// llama: RMS norms, grouped-query attention with RoPE, SwiGLU, no biases.
//
// Scales. With inputs of variance 1 (norms see to that), a matrix of deviation 1/√inputs keeps
// it. Keys and queries get √1.5 of that, so that scores spread by 1.5 and attention looks
// somewhere. What a layer adds is measured in the embedding's size e, such that every layer
// matters and none drowns the rest. The output's deviation is 2.5/√width: so spread the logits.
//
// With tied output a token's own embedding, still there in the residual stream, would make it
// its own likeliest successor forever; the random signs of the last norm's weight prevent it.

#include <cmath>

#include "base/strings.h"
#include "make_model/architecture.h"

namespace kvcache::make_model {
namespace {

constexpr float kLogitDeviation = 2.5f;
constexpr float kScoreDeviation = 1.5f;
// Per layer, in units of the embedding. Attention averages values and so shrinks them; the mean
// square of silu(a)·b for normal a, b is about 0.36.
constexpr float kAttentionGain = 1.5f;
constexpr float kFfnGain = 1.2f;

float PerRoot(float scale, int inputs) {
  return scale / std::sqrt(static_cast<float>(inputs));
}

}  // namespace

void AddLlamaMetadata(const Shape& shape, GgufHeader& header) {
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat("llama.", key), static_cast<std::uint32_t>(value));
  };
  set("block_count", shape.layers);
  set("context_length", shape.context);
  set("embedding_length", shape.width);
  set("feed_forward_length", shape.ffn);
  set("vocab_size", shape.vocab);
  set("attention.head_count", shape.heads);
  set("attention.head_count_kv", shape.kv_heads);
  set("attention.key_length", shape.head_dim);
  set("attention.value_length", shape.head_dim);
  set("rope.dimension_count", shape.head_dim);
  header.SetFloat32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  header.SetFloat32("llama.rope.freq_base", shape.rope_base);
}

std::vector<TensorSpec> LlamaTensors(const Shape& shape) {
  const int queries = shape.heads * shape.head_dim;
  const int keys = shape.kv_heads * shape.head_dim;
  const bool tied = shape.output == Output::kTied;
  const float embedding = tied ? PerRoot(kLogitDeviation, shape.width) : 1.0f;
  const float in = PerRoot(1.0f, shape.width);
  const float key_in = PerRoot(std::sqrt(kScoreDeviation), shape.width);

  std::vector<TensorSpec> all;
  const auto matrix = [&](std::string name, int inputs, int outputs, float scale) {
    all.push_back({std::move(name), {inputs, outputs}, Distribution::kNormal, scale});
  };
  const auto norm = [&](std::string name, Distribution distribution) {
    all.push_back({std::move(name), {shape.width}, distribution, 1.0f});
  };
  matrix("token_embd.weight", shape.width, shape.vocab, embedding);
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    norm(block + "attn_norm.weight", Distribution::kNorm);
    matrix(block + "attn_q.weight", shape.width, queries, key_in);
    matrix(block + "attn_k.weight", shape.width, keys, key_in);
    matrix(block + "attn_v.weight", shape.width, keys, in);
    matrix(block + "attn_output.weight", queries, shape.width,
           PerRoot(embedding * kAttentionGain, queries));
    norm(block + "ffn_norm.weight", Distribution::kNorm);
    matrix(block + "ffn_gate.weight", shape.width, shape.ffn, in);
    matrix(block + "ffn_up.weight", shape.width, shape.ffn, in);
    matrix(block + "ffn_down.weight", shape.ffn, shape.width,
           PerRoot(embedding * kFfnGain, shape.ffn));
  }
  norm("output_norm.weight", Distribution::kSignedNorm);
  if (!tied) {
    matrix("output.weight", shape.width, shape.vocab, PerRoot(kLogitDeviation, shape.width));
  }
  return all;
}

}  // namespace kvcache::make_model
