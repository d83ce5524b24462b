// What a batch's K and V say of their shape, and a layer's cells as views.
//
// Thread safety: free functions over their arguments.
#pragma once

#include <cstdint>

#include "kvcache/cache.h"
#include "kvcache/kv.h"
#include "kvcache/status.h"
#include "kvcache/tensor.h"

namespace kvcache {

// The shape of K [k_dim, kv_heads, tokens] and V [v_dim, kv_heads, tokens], f32, of `tokens`
// tokens each; V may be in K. Errors: kInvalidArgument, with both sides.
Result<KvShape> ShapeOf(const TensorView& k, const TensorView& v, std::int64_t tokens);

// Views over neighbouring cells of a layer in the plain layout.
TensorView KeysOf(const LayerKv& layer, const CellRun& cells);    // [k_dim, kv_heads, cells]
TensorView ValuesOf(const LayerKv& layer, const CellRun& cells);  // likewise, or [cells, v_dim, …]
// The same views as the result of Cache::Get.
DenseKv DenseViews(const LayerKv& layer, const CellRun& cells, const TensorView& mask);

}  // namespace kvcache
