// What the hybrid families have in common in a file: which layers are recurrent, and the sizes and
// small tensors of a state.
//
// Rates of decay are spread so that heads forget within a token and within hundreds.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "make_model/tensor_list.h"

namespace kvcache::make_model {

struct HybridSizes {
  int attention_step = 2;
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
// The shape's KV heads in attention layers, 0 in the others.
std::vector<std::int32_t> KvHeadsByLayer(const Shape& shape);

// ssm.…: the sizes of the state.
void AddStateMetadata(std::string_view architecture, const HybridSizes& sizes, GgufHeader& header);

// Small tensors that are f32 in files of every type.
void AddTaps(TensorList& list, const std::string& name, int taps, int channels);
// ssm_a, negative; with dims [heads], or [1, heads].
void AddRates(TensorList& list, const std::string& name, std::vector<std::int64_t> dims);

}  // namespace kvcache::make_model
