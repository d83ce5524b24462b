#include "make_model/tensor_list.h"

#include <cmath>

#include "base/strings.h"
#include "make_model/rope_scaling.h"

namespace kvcache::make_model {

float PerRoot(float scale, int inputs) {
  return scale / std::sqrt(static_cast<float>(inputs));
}

TensorList::TensorList(const Shape& shape)
    : shape_(shape),
      embedding_(shape.output == make_model::Output::kTied
                     ? PerRoot(kLogitDeviation, shape.hidden_size)
                     : 1.0f) {}

void TensorList::Attention(const std::string& block, AttentionExtras extras) {
  const int queries = shape_.heads * shape_.head_dim;
  const int keys = shape_.kv_heads * shape_.head_dim;
  const float in = PerRoot(1.0f, shape_.hidden_size);
  const float key_in = PerRoot(std::sqrt(kScoreDeviation), shape_.hidden_size);
  Norm(block + "attn_norm.weight");
  Matrix(block + "attn_q.weight", shape_.hidden_size, queries, key_in);
  Matrix(block + "attn_k.weight", shape_.hidden_size, keys, key_in);
  Matrix(block + "attn_v.weight", shape_.hidden_size, keys, in);
  Matrix(block + "attn_output.weight", queries, shape_.hidden_size,
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

void TensorList::FeedForward(const std::string& block, int ffn, const std::string& suffix) {
  const float in = PerRoot(1.0f, shape_.hidden_size);
  Matrix(block + "ffn_gate" + suffix + ".weight", shape_.hidden_size, ffn, in);
  Matrix(block + "ffn_up" + suffix + ".weight", shape_.hidden_size, ffn, in);
  Matrix(block + "ffn_down" + suffix + ".weight", ffn, shape_.hidden_size,
         PerRoot(embedding_ * kFfnGain, ffn));
}

void TensorList::Experts(const std::string& block, float gain) {
  const float in = PerRoot(1.0f, shape_.hidden_size);
  const auto stack = [&](const char* name, int inputs, int outputs, float scale) {
    all_.push_back({block + name, {inputs, outputs, shape_.experts}, Distribution::kNormal, scale});
  };
  all_.push_back({.name = block + "ffn_gate_inp.weight",
                  .dims = {shape_.hidden_size, shape_.experts},
                  .distribution = Distribution::kNormal,
                  .scale = PerRoot(kRouterDeviation, shape_.hidden_size),
                  .keep_f32 = true});
  stack("ffn_gate_exps.weight", shape_.hidden_size, shape_.expert_ffn, in);
  stack("ffn_up_exps.weight", shape_.hidden_size, shape_.expert_ffn, in);
  stack("ffn_down_exps.weight", shape_.expert_ffn, shape_.hidden_size,
        PerRoot(embedding_ * gain, shape_.expert_ffn));
}

void TensorList::Embedding() {
  Matrix("token_embd.weight", shape_.hidden_size, shape_.vocab, embedding_);
  if (shape_.rope_scaling != RopeScaling::kLlama3) return;
  const std::vector<float> divisors = Llama3Divisors(shape_);
  all_.push_back({.name = "rope_freqs.weight",
                  .dims = {static_cast<std::int64_t>(divisors.size())},
                  .values = divisors});
}

void TensorList::Output(const std::string& norm) {
  Norm(norm, Distribution::kSignedNorm);
  if (shape_.output == make_model::Output::kUntied) {
    Matrix("output.weight", shape_.hidden_size, shape_.vocab,
           PerRoot(kLogitDeviation, shape_.hidden_size));
  }
}

void TensorList::DraftHead(const std::string& block, const char* last_norm) {
  Matrix(block + "nextn.eh_proj.weight", 2 * shape_.hidden_size, shape_.hidden_size,
         PerRoot(embedding_, 2 * shape_.hidden_size));
  for (const char* norm : {"nextn.enorm", "nextn.hnorm", last_norm}) {
    Norm(StrCat(block, norm, ".weight"));
  }
}

void TensorList::All(AttentionExtras extras) {
  Embedding();
  for (int layer = 0; layer < shape_.layers + shape_.family.nextn_layers; ++layer) {
    const std::string block = StrCat("blk.", layer, ".");
    if (layer >= shape_.layers) DraftHead(block);
    Attention(block, extras);
    Norm(block + "ffn_norm.weight");
    shape_.experts > 0 ? Experts(block) : FeedForward(block, shape_.ffn);
  }
  Output();
}

}  // namespace kvcache::make_model
