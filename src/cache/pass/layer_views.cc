#include "cache/pass/layer_views.h"

#include <limits>

#include "base/strings.h"
#include "cache/cache_checks.h"

namespace kvcache {

Result<KvShape> ShapeOf(const TensorView& k, const TensorView& v, std::int64_t tokens) {
  if (k.dtype != DType::kF32 || v.dtype != DType::kF32) {
    return Invalid(StrCat("K is ", InfoOf(k.dtype).name, " and V is ", InfoOf(v.dtype).name,
                          "; both must be f32"));
  }
  if (k.dims[2] != tokens || v.dims[2] != tokens || k.dims[3] != 1 || v.dims[3] != 1) {
    return Invalid(StrCat("K has ", k.dims[2], " tokens and V has ", v.dims[2],
                          "; both must have the batch's ", tokens));
  }
  if (k.dims[1] != v.dims[1]) {
    return Invalid(
        StrCat("K has ", k.dims[1], " heads and V has ", v.dims[1], "; must be as many"));
  }
  for (const std::int64_t dim : {k.dims[0], v.dims[0], k.dims[1]}) {
    if (dim < 1 || dim > std::numeric_limits<int>::max()) {
      return Invalid(
          StrCat("a dimension of K or V is ", dim, "; must be at least 1 and fit an int"));
    }
  }
  if (AreInKeys(v) && v.dims[0] > k.dims[0]) {
    return Invalid(StrCat("V in K has ", v.dims[0], " values; must be at most K's ", k.dims[0]));
  }
  return KvShape{static_cast<int>(k.dims[1]), static_cast<int>(k.dims[0]),
                 static_cast<int>(v.dims[0]), AreInKeys(v)};
}

TensorView KeysOf(const LayerKv& layer, const CellRun& cells) {
  TensorView view = TensorView::Dense(layer.k, layer.k_type, layer.shape.k_dim,
                                      layer.shape.kv_heads, cells.length);
  view.data += cells.cell * view.stride_bytes[2];
  return view;
}

TensorView ValuesOf(const LayerKv& layer, const CellRun& cells) {
  if (layer.shape.v_in_k) {
    TensorView view = KeysOf(layer, cells);
    view.dims[0] = layer.shape.v_dim;
    return view;
  }
  if (!layer.v_transposed) {
    TensorView view = TensorView::Dense(layer.v, layer.v_type, layer.shape.v_dim,
                                        layer.shape.kv_heads, cells.length);
    view.data += cells.cell * view.stride_bytes[2];
    return view;
  }
  TensorView view = TensorView::Dense(layer.v, layer.v_type, layer.cells, layer.shape.v_dim,
                                      layer.shape.kv_heads);
  view.dims[0] = cells.length;
  view.data += cells.cell * view.stride_bytes[0];
  return view;
}

DenseKv DenseViews(const LayerKv& layer, const CellRun& cells, const TensorView& mask) {
  return {KeysOf(layer, cells), ValuesOf(layer, cells), mask, cells.cell};
}

}  // namespace kvcache
