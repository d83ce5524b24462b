// What the decoder families have in common in a file: the keys and tensors of embedding, attention,
// feed-forward part and output. A family adds what is its own.
#pragma once

#include <string_view>
#include <vector>

#include "make_model/architecture.h"
#include "make_model/tensor_list.h"

namespace kvcache::make_model {

// All but what heads keep in the cache and how they turn.
void AddSizeMetadata(std::string_view architecture, const Shape& shape, GgufHeader& header);
// Where a family's values are not the shape's.
struct DecoderKeys {
  std::vector<std::int32_t> kv_heads = {};  // of each layer; empty: the shape's for all
  int rope_dims = 0;                        // of a head that turn; 0: all
};
// All.
void AddDecoderMetadata(std::string_view architecture, const Shape& shape, GgufHeader& header,
                        const DecoderKeys& keys = {});

// attention.sliding_window and its pattern, where the shape has them.
void AddWindows(std::string_view architecture, const Shape& shape, GgufHeader& header);

// In the file's order. With shape.experts > 0 every layer's feed-forward part is a mixture.
std::vector<TensorSpec> DecoderTensors(const Shape& shape, AttentionExtras extras);

}  // namespace kvcache::make_model
