// The layout of keys and values in memory. visibility.h says which of them a query sees.
//
// A *cell* holds one token's K and V in every layer. Cells are numbered from 0, and a layer's K and
// V are two arrays over all cells. A sequence's history is a short ascending list of *runs*:
// consecutive positions in consecutive cells. These structs describe a cache to a backend; they
// own nothing.
//
// Notation in all headers: brackets after a name list the slowest dimension first, as C arrays do:
// K[cell][kv_head][k_dim]. A shape in one pair of brackets starts with the fastest dimension, as
// TensorView::dims does: K [k_dim, kv_heads, batch].
//
// Thread safety: values; as thread-safe as an int.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/tensor.h"
#include "kvcache/types.h"

namespace kvcache {

// KvLayout::kTiled interleaves the keys of this many neighbouring cells. In every layout the number
// of cells of a layer is a multiple of it.
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
  // The formulas are those of f32, f16 and bf16. K or V of a block type (q8_0, q4_0) exists in this
  // layout only:
  //   - Sixteen cells of a head form a tile. It holds their codes and then their scales, in an
  //     order that the backend chooses.
  //   - Keys are stored multiplied by a Hadamard matrix. Values are not.
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
  bool on_host = false;       // K and V are in host memory: a snapshot's

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

}  // namespace kvcache
