// The memory that a model's layers need per token and per sequence, for planning and reports.
//
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kvcache/kv.h"
#include "kvcache/status.h"

namespace kvcache {

struct LayerMemory {
  enum class Kind : std::uint8_t {
    kFull,       // keys and values of every token
    kSliding,    // keys and values of the last tokens
    kChunked,    // keys and values of every token; a query sees those of its own chunk
    kRecurrent,  // a state of fixed size
    kCross,      // keys and values of an encoder's output
  };
  int layer = 0;  // a layer with self- and cross-attention, or with attention and a state, has two
  Kind kind = Kind::kFull;
  KvShape kv{};                   // of each token; unused by kRecurrent
  int window = 0;                 // kSliding: tokens that a query sees, its own included
  int retained_tokens = 0;        // kSliding: tokens that the cache retains per sequence
  int chunk = 0;                  // kChunked: tokens of a chunk
  std::int64_t state_values = 0;  // kRecurrent: f32 values per sequence

  bool operator==(const LayerMemory&) const = default;
};

// Returns "full", "sliding", "chunked", "recurrent" or "cross".
std::string_view NameOf(LayerMemory::Kind kind);

// Returns Ok, or kUnsupported naming the first layer that a cache of these types cannot hold. A
// block type needs heads of whole blocks; of these only q8_0 serves layers whose values are inside
// their keys (KvShape::v_in_k).
Status CheckCacheTypes(std::span<const LayerMemory> layers, DType k_type, DType v_type);

// Return the bytes that a layer needs per token, and per sequence independently of its length. An
// encoder's output counts in neither.
std::int64_t BytesPerToken(const LayerMemory& layer, DType k_type, DType v_type);
std::int64_t BytesPerSequence(const LayerMemory& layer, DType k_type, DType v_type);

// Return the sums over all layers.
std::int64_t BytesPerToken(std::span<const LayerMemory> layers, DType k_type, DType v_type);
std::int64_t BytesPerSequence(std::span<const LayerMemory> layers, DType k_type, DType v_type);

}  // namespace kvcache
