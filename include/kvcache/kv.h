// The layout of keys and values in memory, and the rule that says which of them a query sees.
//
// A *cell* holds one token's K and V in every layer. Cells are numbered from 0, and a layer's K and
// V are two arrays over all cells. A sequence's history is a short ascending list of *runs*:
// consecutive positions in consecutive cells. These structs describe a cache to a backend; they
// own nothing.
//
// Thread safety: values; as thread-safe as an int.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/tensor.h"
#include "kvcache/types.h"

namespace kvcache {

// The number of neighbouring cells whose keys are interleaved in KvLayout::kTiled. Cell
// counts of a layer are multiples of it.
inline constexpr int kCellTile = 16;

// The layout of a layer's K and V. StoreKv converts to it, so that attention never copies or
// transposes history.
enum class KvLayout : std::uint8_t {
  // Token-major, the layout that Cache::Get returns:
  //   K[cell][kv_head][k_dim]   V[cell][kv_head][v_dim]
  kPlain,
  // The layout of the fused kernels. Heads are outermost, so that one head's history is one
  // stream. Sixteen keys are interleaved, so that a dot product has a key in each lane:
  //   K[kv_head][cell / 16][k_dim][cell % 16]   V[kv_head][cell][v_dim]
  // Block types (q8_0, q4_0) have no other layout. Their tiles of sixteen cells of a head hold
  // codes, then scales, in an order that the backend chooses; keys are multiplied by a Hadamard
  // matrix.
  kTiled,
};

// The shape of one layer's K and V per token.
struct KvShape {
  int kv_heads = 0;
  int k_dim = 0;  // values of one head's key
  int v_dim = 0;  // values of one head's value
  // The value is the first v_dim values of the key and is not stored a second time.
  bool v_in_k = false;
  bool operator==(const KvShape&) const = default;
};

// One layer's storage.
struct LayerKv {
  KvShape shape;
  DType k_type = DType::kF32;
  DType v_type = DType::kF32;
  KvLayout layout = KvLayout::kPlain;
  bool v_transposed = false;  // plain layout only: V[kv_head][v_dim][cell]
  std::int64_t cells = 0;     // a multiple of kCellTile
  std::byte* k = nullptr;     // KBytes(), in the backend's memory
  std::byte* v = nullptr;     // VBytes(); null if V is in K

  std::int64_t KBytes() const { return BytesOf(k_type, cells * shape.kv_heads * shape.k_dim); }
  std::int64_t VBytes() const {
    return shape.v_in_k ? 0 : BytesOf(v_type, cells * shape.kv_heads * shape.v_dim);
  }
};

// Returns a V that is the first `v_dim` values of each key of `k`. Cache::Put then stores K alone,
// and attention reads V from it. Latent attention (DeepSeek) uses this.
inline TensorView ValuesInKeys(const TensorView& k, std::int64_t v_dim) {
  TensorView view;
  view.dims = k.dims;
  view.dims[0] = v_dim;
  return view;
}
// Returns whether `v` was made by ValuesInKeys.
inline bool AreInKeys(const TensorView& v) {
  return v.data == nullptr && v.stride_bytes[0] == 0;
}

// Cells [cell, cell + length).
struct CellRun {
  std::int32_t cell = 0;
  std::int32_t length = 0;
  bool operator==(const CellRun&) const = default;
};

// A copy of the contents of `length` cells. The ranges of one CopyCells call do not overlap.
struct CellMove {
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t length = 0;
  bool operator==(const CellMove&) const = default;
};

// Positions [position, position + length) of a sequence, in cells [cell, cell + length).
struct HistoryRun {
  Position position = 0;
  std::int32_t cell = 0;
  std::int32_t length = 0;
  bool operator==(const HistoryRun&) const = default;
};

// Positions [begin, end).
struct PositionRange {
  Position begin = 0;
  Position end = 0;
};

// The tokens that the queries of one forward pass see, in closed form instead of a mask.
//
// Query i sees position j of its history iff VisibleRange(visibility, i) contains j and one of the
// history's runs holds j:
//   j <= positions[i]                          unless bidirectional[i]
//   j >  positions[i] - window                 if window > 0
//   j >= positions[i] - positions[i] % chunk   if chunk > 0
struct Visibility {
  std::span<const Position> positions{};             // [batch]
  std::span<const std::int32_t> history_of_query{};  // [batch]: index into `histories`
  // The runs of each sequence of the batch, the batch's own tokens included, ascending by position
  // and without overlap. In a pass of drafts there is one history per path from a sequence's end to
  // a leaf of its trees. Histories may share cells; a kernel may read those once for all of them.
  std::span<const std::span<const HistoryRun>> histories{};
  std::span<const std::uint8_t> bidirectional{};  // [batch], or empty: none
  std::int32_t window = 0;                        // tokens, the query included; 0: all
  std::int32_t chunk = 0;                         // 0: not chunked
};

// Returns the positions that query `query` sees, if its history holds them. `end` is kEndOfSequence
// for a bidirectional query. This is the visibility rule; kernels and masks both use it.
// REQUIRES: query < visibility.positions.size(); positions >= 0.
inline PositionRange VisibleRange(const Visibility& visibility, std::size_t query) {
  const Position position = visibility.positions[query];
  Position begin = 0;
  if (visibility.window > 0) begin = std::max(begin, position - visibility.window + 1);
  if (visibility.chunk > 0) begin = std::max(begin, position - position % visibility.chunk);
  const bool all = !visibility.bidirectional.empty() && visibility.bidirectional[query] != 0;
  return {begin, all ? kEndOfSequence : position + 1};
}

}  // namespace kvcache
