#include "make_model/decoder.h"

#include <span>

#include "base/strings.h"
#include "make_model/rope_scaling.h"

namespace kvcache::make_model {

namespace {

// Sets ARCHITECTURE.key.
class Keys {
 public:
  Keys(std::string_view architecture, GgufHeader& header)
      : architecture_(architecture), header_(header) {}

  void Set(std::string_view key, int value) {
    header_.SetUint32(StrCat(architecture_, ".", key), static_cast<std::uint32_t>(value));
  }
  void Set(std::string_view key, float value) {
    header_.SetFloat32(StrCat(architecture_, ".", key), value);
  }
  void Set(std::string_view key, std::span<const std::int32_t> values) {
    header_.SetInts(StrCat(architecture_, ".", key), values);
  }

 private:
  std::string_view architecture_;
  GgufHeader& header_;
};

void AddSizes(Keys& keys, const Shape& shape, std::span<const std::int32_t> ffn) {
  keys.Set("block_count", shape.layers + shape.family.nextn_layers);
  if (shape.family.nextn_layers > 0) keys.Set("nextn_predict_layers", shape.family.nextn_layers);
  keys.Set("context_length", shape.context);
  keys.Set("embedding_length", shape.hidden_size);
  if (ffn.empty()) {
    keys.Set("feed_forward_length", shape.ffn);
  } else {
    keys.Set("feed_forward_length", ffn);
  }
  keys.Set("vocab_size", shape.vocab);
  keys.Set("attention.head_count", shape.heads);
}

void AddHeads(Keys& keys, const Shape& shape, const DecoderKeys& own) {
  if (own.kv_heads.empty()) {
    keys.Set("attention.head_count_kv", shape.kv_heads);
  } else {
    keys.Set("attention.head_count_kv", std::span(own.kv_heads));
  }
  keys.Set("attention.key_length", shape.head_dim);
  keys.Set("attention.value_length", shape.head_dim);
  keys.Set("rope.dimension_count", own.rope_dims > 0 ? own.rope_dims : shape.head_dim);
}

void AddNormsAndExperts(Keys& keys, const Shape& shape, bool layer_norms = false) {
  keys.Set(layer_norms ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
           1e-5f);
  keys.Set("rope.freq_base", shape.rope_base);
  if (shape.experts == 0) return;
  keys.Set("expert_count", shape.experts);
  keys.Set("expert_used_count", shape.experts_used);
  if (shape.expert_ffn != shape.ffn) keys.Set("expert_feed_forward_length", shape.expert_ffn);
}

}  // namespace

void AddSizeMetadata(std::string_view architecture, const Shape& shape, GgufHeader& header) {
  Keys keys(architecture, header);
  AddSizes(keys, shape, {});
  AddNormsAndExperts(keys, shape);
  AddRopeScaling(architecture, shape, header);
}

void AddDecoderMetadata(std::string_view architecture, const Shape& shape, GgufHeader& header,
                        const DecoderKeys& own) {
  Keys keys(architecture, header);
  AddSizes(keys, shape, own.ffn);
  AddHeads(keys, shape, own);
  AddNormsAndExperts(keys, shape, own.layer_norms);
  AddRopeScaling(architecture, shape, header);
}

void AddWindows(std::string_view architecture, const Shape& shape, GgufHeader& header) {
  const std::string key = StrCat(architecture, ".attention.sliding_window");
  if (shape.window > 0) header.SetUint32(key, static_cast<std::uint32_t>(shape.window));
  if (shape.window_pattern < 0) return;
  header.SetUint32(key + "_pattern", static_cast<std::uint32_t>(shape.window_pattern));
}

std::vector<TensorSpec> DecoderTensors(const Shape& shape, AttentionExtras extras) {
  TensorList list(shape);
  list.All(extras);
  return list.Take();
}

}  // namespace kvcache::make_model
