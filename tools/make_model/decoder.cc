#include "make_model/decoder.h"

#include "base/strings.h"
#include "make_model/rope_scaling.h"

namespace kvcache::make_model {

void AddSizeMetadata(std::string_view architecture, const Shape& shape, GgufHeader& header) {
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat(architecture, ".", key), static_cast<std::uint32_t>(value));
  };
  set("block_count", shape.layers);
  set("context_length", shape.context);
  set("embedding_length", shape.width);
  set("feed_forward_length", shape.ffn);
  set("vocab_size", shape.vocab);
  set("attention.head_count", shape.heads);
  header.SetFloat32(StrCat(architecture, ".attention.layer_norm_rms_epsilon"), 1e-5f);
  header.SetFloat32(StrCat(architecture, ".rope.freq_base"), shape.rope_base);
  if (shape.experts > 0) {
    set("expert_count", shape.experts);
    set("expert_used_count", shape.experts_used);
    if (shape.expert_ffn != shape.ffn) set("expert_feed_forward_length", shape.expert_ffn);
  }
  AddRopeScaling(architecture, shape, header);
}

void AddDecoderMetadata(std::string_view architecture, const Shape& shape, GgufHeader& header) {
  const auto set = [&](std::string_view key, int value) {
    header.SetUint32(StrCat(architecture, ".", key), static_cast<std::uint32_t>(value));
  };
  AddSizeMetadata(architecture, shape, header);
  set("attention.head_count_kv", shape.kv_heads);
  set("attention.key_length", shape.head_dim);
  set("attention.value_length", shape.head_dim);
  set("rope.dimension_count", shape.head_dim);
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
