// Layers that have queries alone and attend over the keys and values of an earlier layer of the same kind
// (with or without a window): the last layers of gemma3n and gemma4.
//
//   attention.shared_kv_layers   how many they are
//
// Thread safety: values and functions without state.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "kvcache/status.h"
#include "model/graph/layer_caches.h"
#include "model/load/hyperparameters.h"
#include "model/load/key_reader.h"
#include "model/load/weights.h"

namespace kvcache {

struct SharedKv {
  int own = 0;               // layers with their own keys and values: the first ones
  std::vector<int> sources;  // [layers] the layer whose keys and values each attends over

  // Reads the key, or takes `otherwise` for a missing one. Errors name the key: it is out of range, or a layer
  // has no earlier one to share with.
  static Result<SharedKv> Read(KeyReader& keys, const LayerParams& params,
                               std::span<const AttentionSpan> spans, int otherwise);

  bool HasOwn(int layer) const { return layer < own; }
  int SourceOf(int layer) const { return sources[static_cast<std::size_t>(layer)]; }

  // Marks the tensors of keys and values that a layer does not use: older files still contain them. `prefix`
  // is the layer's.
  static void IgnoreTensors(WeightReader& reader, const std::string& prefix);
};

}  // namespace kvcache
