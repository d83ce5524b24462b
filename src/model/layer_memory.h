// What a model's layers keep of a text, for those who plan memory or report on it.
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
    kSliding,    // those of the last tokens
    kChunked,    // of every token; a query sees those of its chunk
    kRecurrent,  // a state
    kCross,      // keys and values of an encoder's output
  };
  int layer = 0;  // a layer with two kinds of attention has two of these
  Kind kind = Kind::kFull;
  KvShape kv{};                   // of each token; all but kRecurrent
  int window = 0;                 // kSliding: tokens that a query sees
  int retained_tokens = 0;        // kSliding: tokens of each sequence that are kept
  int chunk = 0;                  // kChunked
  std::int64_t state_values = 0;  // kRecurrent: of each sequence, f32

  bool operator==(const LayerMemory&) const = default;
};

std::string_view NameOf(LayerMemory::Kind kind);  // "full", "sliding", …

// Ok, or kUnsupported for the first layer that a cache of these types cannot hold, with what can:
// block types hold whole blocks of a head, and no keys that their values are in.
Status CheckCacheTypes(std::span<const LayerMemory> layers, DType k_type, DType v_type);

// Bytes that a layer takes for each token of a text, and for each sequence whatever its length; an
// encoder's output is in neither.
std::int64_t BytesPerToken(const LayerMemory& layer, DType k_type, DType v_type);
std::int64_t BytesPerSequence(const LayerMemory& layer, DType k_type, DType v_type);

// The sums over all layers.
std::int64_t BytesPerToken(std::span<const LayerMemory> layers, DType k_type, DType v_type);
std::int64_t BytesPerSequence(std::span<const LayerMemory> layers, DType k_type, DType v_type);

}  // namespace kvcache
