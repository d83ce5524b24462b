// The common part of the hybrid families' files: the recurrent layers, and a state's sizes and
// small tensors.
//
// Decay rates are spread: some heads forget within one token, others within hundreds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "make_model/tensor_list.h"

namespace kvcache::make_model {

struct HybridSizes {
  int attention_step = 2;  // every n-th layer is attention
  int taps = 4;
  int k_dim = 32;
  int v_dim = 32;
  int heads = 8;
  int groups = 2;

  int inner() const { return v_dim * heads; }
  int channels() const { return inner() + 2 * k_dim * groups; }
};
HybridSizes HybridSizesOf(const Shape& shape);

bool IsAttention(const Shape& shape, int layer);
// Returns the KV heads of each layer: the shape's in attention layers, 0 in the others.
std::vector<std::int32_t> KvHeadsByLayer(const Shape& shape);

// Sets the keys ssm.…, the sizes of the state.
void AddStateMetadata(std::string_view architecture, const HybridSizes& sizes, GgufHeader& header);

// Add small tensors, which are f32 in files of every type.
void AddTaps(TensorList& list, const std::string& name, int taps, int channels);
// Adds ssm_a: negative values, with dims [heads] or [1, heads].
void AddRates(TensorList& list, const std::string& name, std::vector<std::int64_t> dims);

// A Mamba-2 mixer's sizes: heads have 32 values; together they have twice the hidden size.
HybridSizes Mamba2Sizes(const Shape& shape);
// Adds a Mamba-2 mixer's tensors, without the norm before it.
void AddMamba2(const Shape& shape, const std::string& block, TensorList& list);

}  // namespace kvcache::make_model
