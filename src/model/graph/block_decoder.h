// A decoder whose layers are two blocks, each of which adds its result for the normed hidden states:
//
//   x += attention(norm(x))      or another mixer: what combines a token with earlier ones
//   x += ffn(norm(x))            one gated network, or a mixture of experts
//
// With Branches::kParallel both read the same norm of x:  x += attention(norm(x)) + ffn(norm(x)).
//
// Families differ in values (BlockParams). One with another mixer in some layers overrides LoadMixer and
// RunMixer; one whose layers add in another way overrides RunLayer.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "model/graph/attention/query_factors.h"
#include "model/graph/attention/self_attention.h"
#include "model/graph/decoder.h"
#include "model/graph/feed_forward.h"
#include "model/load/rope_scaling.h"

namespace kvcache {

enum class Branches : std::uint8_t { kInTurn, kParallel };

// What families' layers differ in, besides their sizes.
struct BlockParams {
  SelfAttentionTensors attention{};
  ExpertParams experts{};
  RopeTable rope{};                        // dims 0: no rotation
  std::optional<RopeTable> window_rope{};  // of layers with a window, if they have their own
  std::vector<bool> rotates{};             // [layers]; empty: every layer rotates
  std::vector<AttentionSpan> spans{};      // [layers]; empty: every layer sees all tokens
  std::optional<QueryFactors> query_factors{};
  float soft_cap = 0.0f;        // cap of the scores; 0: none
  float residual_scale = 1.0f;  // factor on the blocks' results
  std::string_view ffn_norm = "ffn_norm";
  bool pre_norms = true;             // norms of what the blocks read
  bool first_norm_optional = false;  // layer 0 may lack the norm of what its attention reads
  bool post_norms = false;           // norms of the blocks' results
  Branches branches = Branches::kInTurn;
  bool can_have_head = false;  // see Decoder::can_have_head
};

class BlockDecoder : public Decoder {
 public:
  BlockDecoder(Backend& backend, std::string_view architecture, LayerParams params,
               BlockParams blocks)
      : Decoder(backend, architecture, std::move(params)), blocks_(std::move(blocks)) {}

  Status Reserve(int max_batch) override;

 protected:
  struct Layer {
    std::optional<Norm> attn_norm, ffn_norm;  // [hidden_size]
    std::optional<Norm> attn_post_norm, ffn_post_norm;
    SelfAttention attention;  // empty with a mixer that has no use for it
    FeedForward ffn;
  };

  // Takes the tensors of the layer's mixer. The default is self-attention.
  virtual Status LoadMixer(WeightReader& reader, int index, SelfAttention* attention);
  // Replaces h [hidden_size, batch] by the mixer's result for it.
  virtual void RunMixer(Pass& pass, int index, const TensorView& h);

  Status LoadLayer(WeightReader& reader, int index) override;
  void RunLayer(Pass& pass, int index, const TensorView& x) override;
  bool can_have_head() const override { return blocks_.can_have_head; }
  // The weights of a norm after the rotation do not commute with another rotation.
  bool can_shift_keys() const override { return blocks_.attention.norms != QkNorms::kRotatedHeads; }
  RopeParams rope(int layer) const override {
    if (!blocks_.rotates.empty() && !blocks_.rotates[static_cast<std::size_t>(layer)]) return {};
    const bool in_window = blocks_.window_rope.has_value() && attention_span(layer).window > 0;
    return (in_window ? *blocks_.window_rope : blocks_.rope).params();
  }
  AttentionSpan attention_span(int layer) const override {
    return blocks_.spans.empty() ? AttentionSpan{} : blocks_.spans[static_cast<std::size_t>(layer)];
  }

  const BlockParams& blocks() const { return blocks_; }
  const Layer& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }
  // Returns the factors of the pass's queries; none in a measuring pass, or if the family has none.
  std::span<const float> QueryFactorsOf(const Pass& pass);
  // Replaces h by the feed-forward part's result for it.
  void RunFeedForward(Pass& pass, int index, const TensorView& h) {
    layer(index).ffn.Run(pass, plan_, h, h);
  }

 private:
  void RunParallel(Pass& pass, int index, const TensorView& x);
  // Computes x += h, with the norm and the factor that results have. Overwrites h.
  void AddResult(Pass& pass, const std::optional<Norm>& norm, const TensorView& h,
                 const TensorView& x) const;

  BlockParams blocks_;
  ExpertPlan plan_;
  std::vector<Layer> layers_;
};

}  // namespace kvcache
