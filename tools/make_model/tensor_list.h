// The tensors of a file, in its order: the parts of which families are made.
//
// Scales. Norms give inputs of variance 1; a matrix with standard deviation 1/√inputs keeps that
// variance. Keys and queries get √1.5 of this, so that scores have deviation 1.5 and attention
// prefers some tokens. A layer's result is scaled in units of the embedding's deviation, so that
// every layer matters and none dominates. The output matrix has deviation 2.5/√hidden_size, which
// gives logits of deviation 2.5.
//
// With a tied output, the token's own embedding is still in the residual stream and would make the
// token its own most likely successor forever. The random signs of the last norm's weight prevent
// that.
//
// A router's logits have deviation 4. The first choices then lead clearly, and an expert that the
// noise of one engine selects and another's does not has a weight of a few hundredths. Trained
// routers are about as decided. Routers are f32 in files of every type, as converters leave them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "make_model/architecture.h"

namespace kvcache::make_model {

enum class AttentionExtras : std::uint8_t { kNone, kBiases, kHeadNorms };

inline constexpr float kLogitDeviation = 2.5f;
inline constexpr float kScoreDeviation = 1.5f;
inline constexpr float kBiasDeviation = 0.5f;
inline constexpr float kRouterDeviation = 4.0f;
// Factors per layer, in units of the embedding. They make up for attention, which averages and so
// shrinks values, and for gates: the mean square of silu(a)·b for normal a, b is about 0.36.
inline constexpr float kAttentionGain = 1.5f;
inline constexpr float kFfnGain = 1.2f;
// The factor for experts whose weights do not fall with their rank. The last chosen expert then
// counts as much as the first, and noise decides which one it is.
inline constexpr float kEqualExpertGain = 0.3f;

// Returns scale / √inputs.
float PerRoot(float scale, int inputs);

class TensorList {
 public:
  // `shape` must outlive the list.
  explicit TensorList(const Shape& shape);

  float embedding() const { return embedding_; }  // standard deviation of the embedding

  void Add(TensorSpec spec) { all_.push_back(std::move(spec)); }
  void Matrix(std::string name, int inputs, int outputs, float scale) {
    all_.push_back({std::move(name), {inputs, outputs}, Distribution::kNormal, scale});
  }
  void Vector(std::string name, int length, Distribution distribution, float scale) {
    all_.push_back({std::move(name), {length}, distribution, scale});
  }
  // Adds a norm of hidden states.
  void Norm(std::string name, Distribution distribution = Distribution::kNorm) {
    Vector(std::move(name), shape_.hidden_size, distribution, 1.0f);
  }

  void Embedding();  // and the divisors of the rotation, which exist once
  void Attention(const std::string& block, AttentionExtras extras);  // includes its norm
  void FeedForward(const std::string& block, int ffn, const std::string& suffix = "");
  void Experts(const std::string& block, float gain = kFfnGain);
  // Adds the last norm, and the output matrix if it is not tied.
  void Output(const std::string& norm = "output_norm.weight");
  // Adds a draft head's own tensors: it joins the embedding of a token and the state of the one before it,
  // and continues with a layer.
  void DraftHead(const std::string& block, const char* last_norm = "nextn.shared_head_norm");
  void All(AttentionExtras extras);  // the tensors of a whole decoder

  std::vector<TensorSpec> Take() { return std::move(all_); }

 private:
  const Shape& shape_;
  float embedding_;
  std::vector<TensorSpec> all_;
};

}  // namespace kvcache::make_model
