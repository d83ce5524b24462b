// Tokens as keys of a PrefixCache, and what decides whether a model's states can be cut.
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "model/layer_memory.h"

namespace kvcache {

inline PrefixKey KeyOf(std::int32_t token) {
  return static_cast<PrefixKey>(static_cast<std::uint32_t>(token));
}

inline std::vector<PrefixKey> KeysOf(std::span<const std::int32_t> tokens) {
  std::vector<PrefixKey> keys(tokens.size());
  std::transform(tokens.begin(), tokens.end(), keys.begin(), KeyOf);
  return keys;
}

// Returns whether all layers keep every token, so that a state can be cut at every length.
inline bool IsDivisible(std::span<const LayerMemory> layers) {
  return std::none_of(layers.begin(), layers.end(), [](const LayerMemory& layer) {
    return layer.kind == LayerMemory::Kind::kSliding || layer.kind == LayerMemory::Kind::kRecurrent;
  });
}

// Returns the tokens whose keys and values take as many bytes as the states of a sequence.
inline Position StateTokens(std::span<const LayerMemory> layers, DType k_type, DType v_type) {
  const std::int64_t token = std::max<std::int64_t>(1, BytesPerToken(layers, k_type, v_type));
  return static_cast<Position>(
      std::min<std::int64_t>(BytesPerSequence(layers, k_type, v_type) / token, 1 << 20));
}

}  // namespace kvcache
