// How keys and values lie in memory, and which of them a query may see.
//
// A *cell* is room for one token's K and V in every layer; cells are numbered from 0 and a
// layer's K and V are two arrays over all cells. A sequence's history is a short ascending
// list of runs: so many positions, in so many consecutive cells. These structs are plain
// descriptions passed from a cache to a backend; they own nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/tensor.h"
#include "kvcache/types.h"

namespace kvcache {

// The number of neighbouring cells whose keys are interleaved in KvLayout::kTiled. Cell
// counts of a layer are multiples of it.
inline constexpr int kCellTile = 16;

// The form in which a layer's K and V are kept. The write into the cache puts them in that
// form, so that attention never copies or transposes history.
enum class KvLayout : std::uint8_t {
  // Token-major, the form that get() shows to any kernel:
  //   K[cell][kv_head][k_dim]   V[cell][kv_head][v_dim]
  kPlain,
  // What the fused kernels read. Heads are outermost, so that one head's history is one
  // stream; sixteen keys lie side by side, so that a dot product has a key in each lane:
  //   K[kv_head][cell / 16][k_dim][cell % 16]   V[kv_head][cell][v_dim]
  // Block types (q8_0, q4_0) lie in this layout alone: in tiles of sixteen cells of a head, codes
  // first, then scales, in an order of the backend's own; keys turned by a Hadamard matrix.
  kTiled,
};

// What one layer keeps per token.
struct KvShape {
  int kv_heads = 0;
  int k_dim = 0;  // values of one head's key
  int v_dim = 0;  // values of one head's value
  // The value is the first v_dim values of the key, which are not kept a second time.
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
  std::byte* v = nullptr;     // VBytes(); none where V is in K

  std::int64_t KBytes() const { return BytesOf(k_type, cells * shape.kv_heads * shape.k_dim); }
  std::int64_t VBytes() const {
    return shape.v_in_k ? 0 : BytesOf(v_type, cells * shape.kv_heads * shape.v_dim);
  }
};

// A batch's V that is the first `v_dim` values of each of its keys `k`: Cache::Put keeps K alone,
// and attention reads V from it. Latent attention (DeepSeek) is such.
inline TensorView ValuesInKeys(const TensorView& k, std::int64_t v_dim) {
  TensorView view;
  view.dims = k.dims;
  view.dims[0] = v_dim;
  return view;
}
inline bool AreInKeys(const TensorView& v) {
  return v.data == nullptr && v.stride_bytes[0] == 0;
}

// `length` consecutive cells from `cell`.
struct CellRun {
  std::int32_t cell = 0;
  std::int32_t length = 0;
  bool operator==(const CellRun&) const = default;
};

// A copy of `length` cells' contents; ranges of one call do not overlap.
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

// What the queries of one forward pass see, in closed form instead of a mask.
//
// Query i (of `positions.size()`) sees a kept position j of its sequence iff
//   j <= positions[i]                 unless bidirectional[i]
//   j >  positions[i] - window        where window > 0
//   j >= positions[i] - positions[i] % chunk   where chunk > 0
struct Visibility {
  std::span<const Position> positions{};             // [batch]
  std::span<const std::int32_t> history_of_query{};  // [batch]: which of `histories`
  // Per sequence of the batch, or, of drafts, per path to a leaf of their trees: its runs,
  // ascending by position, never overlapping. The batch's own tokens are among them. Histories may
  // have cells in common, which a kernel may read once for all of them.
  std::span<const std::span<const HistoryRun>> histories{};
  std::span<const std::uint8_t> bidirectional{};  // [batch], or empty: none
  std::int32_t window = 0;                        // tokens, the query included; 0: all
  std::int32_t chunk = 0;                         // 0: not chunked
};

}  // namespace kvcache
