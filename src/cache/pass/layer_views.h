// The shape of a batch's K and V, and views of a layer's cells.
//
// Thread safety: free functions over their arguments.
#pragma once

#include <cstdint>

#include "kvcache/cache.h"
#include "kvcache/kv.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache {

// Returns the shape of K [k_dim, kv_heads, tokens] and V [v_dim, kv_heads, tokens], f32; V may be
// in K. Errors: kInvalidArgument if they do not match each other or `tokens`, with both sides.
Result<KvShape> ShapeOf(const TensorView& k, const TensorView& v, std::int64_t tokens);

// Return views of neighbouring cells of a layer. REQUIRES: the plain layout.
TensorView KeysOf(const LayerKv& layer, const CellRun& cells);    // [k_dim, kv_heads, cells]
TensorView ValuesOf(const LayerKv& layer, const CellRun& cells);  // likewise, or [cells, v_dim, …]
// Returns the same views and `mask` as the result of Cache::Get.
DenseKv DenseViews(const LayerKv& layer, const CellRun& cells, const TensorView& mask);

}  // namespace kvcache
