// The tensors of a file, in its order: pieces that families put together.
//
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
// Per layer, in units of the embedding. Attention averages values and so shrinks them; the mean
// square of silu(a)·b for normal a, b is about 0.36.
inline constexpr float kAttentionGain = 1.5f;
inline constexpr float kFfnGain = 1.2f;
// Of experts whose weights do not fall with their rank: who comes last then counts as much as the
// first, and noise decides who that is.
inline constexpr float kEqualExpertGain = 0.3f;

// scale / √inputs
float PerRoot(float scale, int inputs);

class TensorList {
 public:
  // `shape` must outlive it.
  explicit TensorList(const Shape& shape);

  float embedding() const { return embedding_; }  // the deviation of its values

  void Add(TensorSpec spec) { all_.push_back(std::move(spec)); }
  void Matrix(std::string name, int inputs, int outputs, float scale) {
    all_.push_back({std::move(name), {inputs, outputs}, Distribution::kNormal, scale});
  }
  void Vector(std::string name, int length, Distribution distribution, float scale) {
    all_.push_back({std::move(name), {length}, distribution, scale});
  }
  // A norm of hidden states.
  void Norm(std::string name, Distribution distribution = Distribution::kNorm) {
    Vector(std::move(name), shape_.hidden_size, distribution, 1.0f);
  }

  void Embedding();  // and what is beside it once: the divisors of the rotation
  void Attention(const std::string& block, AttentionExtras extras);  // its norm included
  void FeedForward(const std::string& block, int ffn, const std::string& suffix = "");
  void Experts(const std::string& block, float gain = kFfnGain);
  // The last norm, and the output where it is not tied.
  void Output(const std::string& norm = "output_norm.weight");
  void All(AttentionExtras extras);  // a whole decoder

  std::vector<TensorSpec> Take() { return std::move(all_); }

 private:
  const Shape& shape_;
  float embedding_;
  std::vector<TensorSpec> all_;
};

}  // namespace kvcache::make_model
