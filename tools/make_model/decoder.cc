// Scales. With inputs of variance 1 (norms see to that), a matrix of deviation 1/√inputs keeps
// it. Keys and queries get √1.5 of that, so that scores spread by 1.5 and attention looks
// somewhere. What a layer adds is measured in the embedding's size e, such that every layer
// matters and none drowns the rest. The output's deviation is 2.5/√width: so spread the logits.
//
// With tied output a token's own embedding, still there in the residual stream, would make it
// its own likeliest successor forever; the random signs of the last norm's weight prevent it.
//
// A router's logits spread by 4: the first choices then lead clearly, and an expert that one
// engine's noise puts in and another's leaves out has a weight of a few hundredths. Trained
// routers are about as sure. They stay f32 in files of every type, as converters leave them.

#include "make_model/decoder.h"

#include <cmath>

#include "base/strings.h"
#include "make_model/rope_scaling.h"

namespace kvcache::make_model {
namespace {

constexpr float kLogitDeviation = 2.5f;
constexpr float kScoreDeviation = 1.5f;
constexpr float kBiasDeviation = 0.5f;
constexpr float kRouterDeviation = 4.0f;
// Per layer, in units of the embedding. Attention averages values and so shrinks them; the mean
// square of silu(a)·b for normal a, b is about 0.36.
constexpr float kAttentionGain = 1.5f;
constexpr float kFfnGain = 1.2f;

float PerRoot(float scale, int inputs) {
  return scale / std::sqrt(static_cast<float>(inputs));
}

class TensorList {
 public:
  explicit TensorList(const Shape& shape)
      : shape_(shape),
        embedding_(shape.output == Output::kTied ? PerRoot(kLogitDeviation, shape.width) : 1.0f) {}

  void Matrix(std::string name, int inputs, int outputs, float scale) {
    all_.push_back({std::move(name), {inputs, outputs}, Distribution::kNormal, scale});
  }
  void Vector(std::string name, int length, Distribution distribution, float scale) {
    all_.push_back({std::move(name), {length}, distribution, scale});
  }
  void Attention(const std::string& block, AttentionExtras extras);
  void FeedForward(const std::string& block);
  void Experts(const std::string& block);
  void All(AttentionExtras extras);
  std::vector<TensorSpec> Take() { return std::move(all_); }

 private:
  const Shape& shape_;
  float embedding_;
  std::vector<TensorSpec> all_;
};

void TensorList::Attention(const std::string& block, AttentionExtras extras) {
  const int queries = shape_.heads * shape_.head_dim;
  const int keys = shape_.kv_heads * shape_.head_dim;
  const float in = PerRoot(1.0f, shape_.width);
  const float key_in = PerRoot(std::sqrt(kScoreDeviation), shape_.width);
  Vector(block + "attn_norm.weight", shape_.width, Distribution::kNorm, 1.0f);
  Matrix(block + "attn_q.weight", shape_.width, queries, key_in);
  Matrix(block + "attn_k.weight", shape_.width, keys, key_in);
  Matrix(block + "attn_v.weight", shape_.width, keys, in);
  Matrix(block + "attn_output.weight", queries, shape_.width,
         PerRoot(embedding_ * kAttentionGain, queries));
  if (extras == AttentionExtras::kBiases) {
    Vector(block + "attn_q.bias", queries, Distribution::kNormal, kBiasDeviation);
    Vector(block + "attn_k.bias", keys, Distribution::kNormal, kBiasDeviation);
    Vector(block + "attn_v.bias", keys, Distribution::kNormal, kBiasDeviation);
  }
  if (extras == AttentionExtras::kHeadNorms) {
    const float scale = std::sqrt(kScoreDeviation);
    Vector(block + "attn_q_norm.weight", shape_.head_dim, Distribution::kNorm, scale);
    Vector(block + "attn_k_norm.weight", shape_.head_dim, Distribution::kNorm, scale);
  }
}

void TensorList::FeedForward(const std::string& block) {
  const float in = PerRoot(1.0f, shape_.width);
  Matrix(block + "ffn_gate.weight", shape_.width, shape_.ffn, in);
  Matrix(block + "ffn_up.weight", shape_.width, shape_.ffn, in);
  Matrix(block + "ffn_down.weight", shape_.ffn, shape_.width,
         PerRoot(embedding_ * kFfnGain, shape_.ffn));
}

void TensorList::Experts(const std::string& block) {
  const float in = PerRoot(1.0f, shape_.width);
  const auto stack = [&](const char* name, int inputs, int outputs, float scale) {
    all_.push_back({block + name, {inputs, outputs, shape_.experts}, Distribution::kNormal, scale});
  };
  all_.push_back({.name = block + "ffn_gate_inp.weight",
                  .dims = {shape_.width, shape_.experts},
                  .distribution = Distribution::kNormal,
                  .scale = PerRoot(kRouterDeviation, shape_.width),
                  .keep_f32 = true});
  stack("ffn_gate_exps.weight", shape_.width, shape_.expert_ffn, in);
  stack("ffn_up_exps.weight", shape_.width, shape_.expert_ffn, in);
  stack("ffn_down_exps.weight", shape_.expert_ffn, shape_.width,
        PerRoot(embedding_ * kFfnGain, shape_.expert_ffn));
}

void TensorList::All(AttentionExtras extras) {
  Matrix("token_embd.weight", shape_.width, shape_.vocab, embedding_);
  if (shape_.rope_scaling == RopeScaling::kLlama3) {
    const std::vector<float> divisors = Llama3Divisors(shape_);
    all_.push_back({.name = "rope_freqs.weight",
                    .dims = {static_cast<std::int64_t>(divisors.size())},
                    .values = divisors});
  }
  for (int layer = 0; layer < shape_.layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    Attention(block, extras);
    Vector(block + "ffn_norm.weight", shape_.width, Distribution::kNorm, 1.0f);
    shape_.experts > 0 ? Experts(block) : FeedForward(block);
  }
  Vector("output_norm.weight", shape_.width, Distribution::kSignedNorm, 1.0f);
  if (shape_.output == Output::kUntied) {
    Matrix("output.weight", shape_.width, shape_.vocab, PerRoot(kLogitDeviation, shape_.width));
  }
}

}  // namespace

void AddDecoderMetadata(std::string_view architecture, const Shape& shape, GgufHeader& header) {
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat(architecture, ".", key), static_cast<std::uint32_t>(value));
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
  header.SetFloat32(StrCat(architecture, ".attention.layer_norm_rms_epsilon"), 1e-5f);
  header.SetFloat32(StrCat(architecture, ".rope.freq_base"), shape.rope_base);
  if (shape.experts > 0) {
    set("expert_count", shape.experts);
    set("expert_used_count", shape.experts_used);
    if (shape.expert_ffn != shape.ffn) set("expert_feed_forward_length", shape.expert_ffn);
  }
  AddRopeScaling(architecture, shape, header);
}

std::vector<TensorSpec> DecoderTensors(const Shape& shape, AttentionExtras extras) {
  TensorList list(shape);
  list.All(extras);
  return list.Take();
}

}  // namespace kvcache::make_model
