// The part of a decoder that serves embeddings: passes over whole texts, in which each token sees all others
// (encoders), and what the file has behind the pooling of states.
//
// An encoder has the layers of a decoder. Only its attention differs: keys and values stay in the pass
// (text_attention.h), so that no cache takes part.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "model/graph/attention/text_attention.h"
#include "model/graph/pooled_head.h"
#include "model/load/weights.h"
#include "model/model.h"

namespace kvcache {

class Decoder;

class DecoderTexts final : public EmbeddingModel {
 public:
  explicit DecoderTexts(Decoder& decoder) : decoder_(decoder) {}

  // Takes the tensors behind the pooling. Errors name the tensor.
  Status Load(WeightReader& reader);
  std::int64_t bytes() const { return attention_.bytes(); }

  Status ReserveTexts(int tokens, int texts) override;
  Status ForwardTexts(std::span<const std::int32_t> tokens, std::span<const std::int32_t> lengths,
                      const std::function<void()>& between_layers) override;
  int head_outputs() const override { return static_cast<int>(head_.outputs()); }
  bool head_reads_mean() const override { return head_.reads_mean(); }
  bool has_scores() const override { return head_.has_scores(); }
  Status RunHead(const float* states, int count, AdapterUses adapters, float* out) override;

 private:
  Status CheckTexts(std::span<const std::int32_t> tokens,
                    std::span<const std::int32_t> lengths) const;

  Decoder& decoder_;
  TextAttention attention_;
  PooledHead head_;
};

}  // namespace kvcache
