// The numbers that describe a decoder's layers, read from a model file's metadata and checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "model/gguf.h"

namespace kvcache {

// Keys that the families share; per-layer values where files may give an array.
struct LayerParams {
  std::string name;
  int layers = 0;
  int width = 0;
  int vocabulary = 0;
  int context_length = 0;
  std::vector<int> heads;     // [layers]
  std::vector<int> kv_heads;  // [layers]
  std::vector<int> ffn;       // [layers]
  int k_dim = 0;              // values of a head's query and key
  int v_dim = 0;              // values of a head's value
  int rope_dims = 0;
  std::vector<float> inv_freq;  // [rope_dims / 2]
  float norm_epsilon = 0.0f;
  float attention_scale = 0.0f;
};

// Reads `architecture`.* keys. Errors name the key: missing, of another type, out of range, or
// (kUnsupported) a setting that is not served.
Result<LayerParams> ReadLayerParams(const GgufFile& file, std::string_view architecture);

}  // namespace kvcache
