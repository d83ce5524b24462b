// The common part of the decoder families' files: keys and tensors of embedding, attention,
// feed-forward part and output. A family adds its own.
#pragma once

#include <string_view>
#include <vector>

#include "make_model/architecture.h"
#include "make_model/tensor_list.h"

namespace kvcache::make_model {

// Sets all common keys except those of the cached heads and of the rotation.
void AddSizeMetadata(std::string_view architecture, const Shape& shape, GgufHeader& header);
// A family's values that differ from the shape's.
struct DecoderKeys {
  std::vector<std::int32_t> kv_heads = {};  // of each layer; empty: the shape's for all layers
  int rope_dims = 0;                        // rotated values of a head; 0: all
  std::vector<std::int32_t> ffn = {};       // of each layer; empty: the shape's for all layers
  bool layer_norms = false;                 // instead of RMS norms
};
// Sets all common keys.
void AddDecoderMetadata(std::string_view architecture, const Shape& shape, GgufHeader& header,
                        const DecoderKeys& keys = {});

// Sets attention.sliding_window and its pattern, if the shape has them.
void AddWindows(std::string_view architecture, const Shape& shape, GgufHeader& header);

// Returns the tensors in the file's order. With shape.experts > 0 every layer's feed-forward part
// is a mixture.
std::vector<TensorSpec> DecoderTensors(const Shape& shape, AttentionExtras extras);

}  // namespace kvcache::make_model
